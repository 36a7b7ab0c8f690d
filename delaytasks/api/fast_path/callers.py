"""Find the caller of a request: without a query if the token was seen in the last seconds, otherwise in a thread."""

import asyncio
import copy
import time

from asgiref.sync import sync_to_async
from django.db import connections

from ..access import token_cache
from ..access.permissions import TokenCaller, caller_of, find_caller, record_use

RECHECK_SECONDS = 0.25
MAX_CHECKED = 10_000

_checked_at: dict[bytes, float] = {}  # by the hash of the secret
_lookups: dict[tuple[int, int, str], "asyncio.Future[TokenCaller | None]"] = {}


async def find(secret: str) -> TokenCaller | None:
    """Return the caller with this secret, or None if no valid token has it."""
    answer = token_cache.answers.get(secret)
    return await _ask(secret) if answer is None else caller_of(answer)


async def find_again(secret: str) -> TokenCaller | None:
    """Return the caller as the database has it now, or had it up to RECHECK_SECONDS ago.

    For requests that have waited for a job: a token that was revoked meanwhile must not get one.
    """
    key, now = token_cache.hashed(secret), time.monotonic()
    if now - _checked_at.get(key, -RECHECK_SECONDS) < RECHECK_SECONDS:
        return await find(secret)
    if len(_checked_at) > MAX_CHECKED:
        _checked_at.clear()
    _checked_at[key] = now
    token_cache.answers.discard(secret)
    return await _ask(secret)


async def _ask(secret: str) -> TokenCaller | None:
    # The epoch is part of the key: after a revocation, a request must not share a query that began before it.
    running = (id(asyncio.get_running_loop()), token_cache.answers.epoch, secret)
    if running not in _lookups:  # concurrent requests of one caller share a lookup
        _lookups[running] = asyncio.ensure_future(sync_to_async(_look_up, thread_sensitive=False)(secret))
        _lookups[running].add_done_callback(lambda _: _lookups.pop(running))
    caller = await asyncio.shield(_lookups[running])
    return copy.copy(caller)  # a copy, because each request sets its own `source`


def _look_up(secret: str) -> TokenCaller | None:
    try:
        caller = find_caller(secret)
        if caller is not None:
            record_use(caller.token)
        return caller
    finally:
        for connection in connections.all(initialized_only=True):
            connection.close()
