"""A request that waits for ready jobs: an async view around the sync one, under ASGI and WSGI alike.

While it waits it holds neither a database connection nor, under ASGI, a thread that works. What
wakes it is in waiting.py. Under ASGI a consumer that goes away while it waits gets nothing
reserved; one that goes in the moment of its answer, or under WSGI, which does not say so, has a
job until its TTR is over.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connections
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.response import Response

from .. import conf, consuming, waiting
from ..attempt import Attempt
from .access import Right
from .base import BaseView

logger = logging.getLogger("delaytasks")
LOOKS_AT_ONCE = 8  # of one process: two hundred that are woken together must not take two hundred connections
Show = Callable[[Sequence[Attempt]], Any]

_turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _turn() -> asyncio.Semaphore:
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(LOOKS_AT_ONCE))


class LongPoll(BaseView):
    """A view that reserves jobs: `return self.poll(...)`."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Any]:
        view = super().as_view(**initkwargs)

        async def polling(request: Any, *args: Any, **kwargs: Any) -> Any:
            response = await sync_to_async(view)(request, *args, **kwargs)
            wait: Wait | None = getattr(response, "wait", None)
            return response if wait is None else await wait.answer(response)

        return functools.update_wrapper(polling, view)

    def poll(self, topic: str, *, count: int, wait_seconds: float, consumer: str, show: Show, empty: Any) -> Response:
        """The answer with up to `count` jobs of the topic: at once, or as soon as one is ready.

        wait_seconds   how long to wait at most; API_MAX_WAIT_SECONDS is the limit
        consumer       which of the caller's consumers asks; kept as the job's worker
        show           the answer's data of what was reserved
        empty          the answer's data if nothing became ready in that time
        """
        wait = Wait(self, topic, count, consumer, show)
        seconds = min(wait_seconds, conf.get().api_max_wait_seconds)
        if seconds <= 0:
            held = wait.reserve()
            return Response(show(held) if held else empty)
        _give_connections_back()  # before it queues for its turn: those whose turn it is may need them
        response = Response(empty)
        wait.until = time.monotonic() + seconds
        response.wait = wait
        return response


class Wait:
    """One waiting request."""

    def __init__(self, view: Any, topic: str, count: int, consumer: str, show: Show) -> None:
        self.view, self.topic, self.count, self.show = view, topic, count, show
        self.worker = view.caller.worker(consumer)
        self.until = 0.0

    def reserve(self) -> list[Attempt]:
        return consuming.reserve(self.topic, self.count, using=self.view.using, worker=self.worker)

    async def answer(self, response: Response) -> Response:
        """The response with what became ready, or as it is when the time is over."""
        room = waiting.room(self.view.using)
        ticket = room.join(self.topic)
        again = owed = False  # owed: it was woken, and has not looked since
        try:
            while True:
                found = await self._look(response, again)
                owed = found is not None and not self._held
                if found is not None:
                    return found
                _let_go_of_the_thread()
                if not await ticket.woken(self.until - time.monotonic()):
                    return response
                again = owed = True
                room.rejoin(ticket)
        finally:
            room.leave(ticket)
            if owed:
                room.wake(self.topic, 1)

    async def _look(self, response: Response, again: bool) -> Response | None:
        """What a look found. It is seen to its end even if the client goes away meanwhile, and then undone."""
        async with _turn():
            look = asyncio.ensure_future(sync_to_async(self._look_now)(response, again))
            try:
                return await asyncio.shield(look)
            except asyncio.CancelledError:
                await look
                await sync_to_async(self._give_back)()
                raise

    def _look_now(self, response: Response, again: bool) -> Response | None:
        self._held: list[Attempt] = []
        try:
            if again:
                self._check_caller()
            self._held = self.reserve()
            if self._held:
                response.data = self.show(self._held)
                return response
        except Exception as error:
            return self.view.finalize_response(self.view.request, self.view.handle_exception(error))
        _give_connections_back()
        return None

    def _check_caller(self) -> None:
        """Who has waited for a minute may have lost the right to what they waited for."""
        if not self.view.caller.still_valid():
            raise AuthenticationFailed("The token was revoked, or it has expired.")
        self.view.caller.require(Right.CONSUME, self.topic)

    def _give_back(self) -> None:
        for held in self._held:
            try:
                consuming.release(held.id, held.attempt, using=self.view.using, by=self.view.caller.signature)
            except Exception as error:  # whatever keeps this one keeps no other; it comes back when its TTR is over
                logger.warning("%r could not be given back: %s", held, error)
        _give_connections_back()


def _give_connections_back() -> None:
    """A request that waits needs no connection, and there may be thousands of them."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _let_go_of_the_thread() -> None:
    """Under ASGI Django keeps a thread for a request until its end. One that waits needs none; a look gets another."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    threads = getattr(SyncToAsync, "context_to_thread_executor", {})  # no public name: without it the thread stays
    thread = threads.pop(context, None) if context else None
    if thread is not None:
        thread.shutdown(wait=False)
