"""A short-lived shared cache for statistics, in Django's cache. Values are stored as JSON, never as pickles.

The cache may be missing, local to one process, or down together with the Redis that is being monitored. The
statistics are then computed on each call.
"""

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from .. import conf
from ..circuit_breaker import CircuitBreaker, CircuitOpen
from .caching import shared_cache, typed_json

logger = logging.getLogger("delaytasks")
KEPT_SECONDS = 3600  # how long the next computation can reuse a value
FORMAT = 10  # version of the stored values; raise it when a class in them changes
WORKING_SECONDS = 15  # after this time, another caller may compute the value that one caller is computing
FRESH_PER_COMPUTE_SECOND = 10  # a value that took one second to compute stays fresh for ten seconds
MOST_FRESH_SECONDS = 30  # the longest time that a slow computation keeps a value fresh
PAUSE_SECONDS = 10  # how long the cache is not used after a failure

_breaker = CircuitBreaker(Exception, PAUSE_SECONDS)  # Exception: each cache backend raises its own


def cache_key(*parts: Any, topics: Collection[str] | None = None) -> str:
    """Return a key for get_or_compute(). Topics are hashed, so that the key stays short."""
    topics_part = "all" if topics is None else hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:24]
    return ":".join([conf.get().prefix, f"numbers{FORMAT}", *map(str, parts), topics_part])


def get_or_compute(
    key: str, seconds: float | Callable[[Any], float], compute: Callable[[Any], Any], kind: Any = Any
) -> Any:
    """Return the cached value if it is at most `seconds` old; otherwise compute and store a new one.

    seconds   a number, or a function of the cached value that returns one
    compute   called with the previous value, or with None if there is none
    kind      the type of the value, as typed_json.decode() takes it: a cached value of another type is ignored

    While one caller computes, the others get the previous value, if it stopped being fresh less than WORKING_SECONDS
    ago. A value stays fresh for at least ten times as long as it took to compute, up to half a minute, so that a page
    left open cannot keep the database busy.
    """
    entry = get(key, kind)
    previous = entry[2] if entry else None
    if entry:
        age = time.time() - entry[0]
        fresh_seconds = seconds(previous) if callable(seconds) else seconds
        slow_seconds = min(FRESH_PER_COMPUTE_SECOND * entry[1], MOST_FRESH_SECONDS)
        stale_at = max(fresh_seconds, slow_seconds)
        if 0 <= age < stale_at:  # below 0: of a host whose clock is ahead
            return previous
        is_first = _call(functools.partial(shared_cache.add, f"{key}:working", WORKING_SECONDS), True)
        if not is_first and age < stale_at + WORKING_SECONDS:
            return previous
    began = time.monotonic()
    try:
        value = compute(previous)
        text = typed_json.encode((time.time(), time.monotonic() - began, value))
        _call(functools.partial(shared_cache.set_text, key, text, KEPT_SECONDS), None)
    finally:
        _call(functools.partial(shared_cache.delete, f"{key}:working"), None)
    return value


def get(key: str, kind: Any = Any) -> tuple[float, float, Any] | None:
    """Return (time stored, seconds taken to compute, value), or None if the cache has no entry of this type."""
    text = _call(functools.partial(_text, key), None)
    if text is None:
        return None
    try:
        entry: tuple[float, float, Any] = typed_json.decode(tuple[float, float, kind], text)
    except ValueError as error:
        logger.warning("The cache has an unexpected value under %s, which is ignored: %s", key, error)
        return None
    return entry


def _text(key: str) -> str | None:
    try:
        return shared_cache.get_text(key)
    except UnicodeDecodeError:
        return ""  # written by another program; get() ignores it, because it is not JSON


def _call(operation: Callable[[], Any], default: Any) -> Any:
    """Return the result of a cache operation, or `default` if the cache fails: statistics must work without it."""
    try:
        return _breaker.call(operation)
    except CircuitOpen:
        return default
    except Exception as error:
        logger.warning("The cache does not answer; statistics are computed on each request: %r", error)
        return default
