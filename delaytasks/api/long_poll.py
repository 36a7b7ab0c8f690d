"""Long polling for ready jobs: an async view that wraps the sync view, for ASGI and WSGI.

A waiting request holds no database connection and, under ASGI, no thread; api/notifier.py wakes the request. Under
ASGI, no job is reserved for a client that disconnects while it waits. A client that disconnects during the response
holds its jobs until their TTR is over. Under WSGI, which does not report disconnects, this applies at any time.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from asgiref.sync import SyncToAsync, sync_to_async
from django.db import connections
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.response import Response

from .. import conf
from ..worker import leases
from ..worker.attempt import RunningJob
from . import notifier
from .access.permissions import Right
from .access.throttling import COUNTED
from .views.base import BaseView, count_request

logger = logging.getLogger("delaytasks")
MAX_CONCURRENT_POLLS = 8  # per process: 200 requests woken together must not open 200 connections
Show = Callable[[Sequence[RunningJob]], Any]

_semaphores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()


def _semaphore() -> asyncio.Semaphore:
    return _semaphores.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONCURRENT_POLLS))


class LongPoll(BaseView):
    """Base class of views that reserve jobs. Their methods return self.poll(...)."""

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Any]:
        view = super().as_view(**initkwargs)

        async def long_poll(request: Any, *args: Any, **kwargs: Any) -> Any:
            response = await sync_to_async(view)(request, *args, **kwargs)
            wait: Wait | None = getattr(response, "wait", None)
            return response if wait is None else await wait.respond_counted(request, response)

        return functools.update_wrapper(long_poll, view)

    def poll(self, topic: str, *, count: int, wait_seconds: float, consumer: str, show: Show, empty: Any) -> Response:
        """Return a response with up to `count` jobs of the topic, at once or as soon as a job is ready.

        wait_seconds   longest wait; API_MAX_WAIT_SECONDS is the upper limit
        consumer       name of the caller's consumer; stored in Job.worker
        show           function that returns the response data for the reserved jobs
        empty          response data if no job became ready in time
        """
        wait = Wait(self, topic, count, consumer, show)
        seconds = min(wait_seconds, conf.get().api_max_wait_seconds)
        if seconds <= 0:
            jobs = wait.reserve()
            return Response(show(jobs) if jobs else empty)
        _close_connections()  # before waiting for the semaphore, whose holders may need the connections
        response = Response(empty)
        wait.deadline = self._began() + seconds
        response.wait = wait
        return response

    def _began(self) -> float:
        """Return when the request began: before now, if FastPath has waited for jobs and then passed it on."""
        scope: Mapping[str, Any] = getattr(self.request._request, "scope", {})
        return float(scope.get(COUNTED) or time.monotonic())


class Wait:
    """A waiting request."""

    def __init__(self, view: Any, topic: str, count: int, consumer: str, show: Show) -> None:
        self.view, self.topic, self.count, self.show = view, topic, count, show
        self.worker = view.caller.worker(consumer)
        self.deadline = self.began = 0.0

    def reserve(self) -> list[RunningJob]:
        return leases.reserve(self.topic, self.count, using=self.view.using, worker=self.worker)

    async def respond_counted(self, request: Any, response: Response) -> Response:
        """Do the same as respond(), and count the request in the metrics."""
        response = await self.respond(response)
        count_request(self.began, request, response)
        return response

    async def respond(self, response: Response) -> Response:
        """Return `response` with the reserved jobs, or unchanged after the deadline, or an error response."""
        consumers = notifier.waiting_consumers(self.view.using)
        waiter = consumers.join(self.topic)
        is_retry = wake_unused = False  # wake_unused: woken, but has not tried to reserve since
        try:
            while True:
                result = await self._try_reserve(response, is_retry)
                wake_unused = result is not None and not self._reserved
                if result is not None:
                    return result
                _release_thread()
                is_late = time.monotonic() >= self.deadline  # woken again during each try, it would never be answered
                wake_unused = await waiter.wait_for_wake(self.deadline - time.monotonic())
                if is_late or not wake_unused:
                    return response
                is_retry = True
                consumers.rejoin(waiter)
        finally:
            consumers.leave(waiter)
            if wake_unused:
                consumers.wake(self.topic, 1)

    async def _try_reserve(self, response: Response, is_retry: bool) -> Response | None:
        """Try once to reserve jobs. Return the response, or None if no job was ready.

        If the client disconnects meanwhile, complete the attempt and release the jobs that it reserved.
        """
        async with _semaphore():
            poll = asyncio.ensure_future(sync_to_async(self._try_reserve_sync)(response, is_retry))
            try:
                return await asyncio.shield(poll)
            except asyncio.CancelledError:
                await poll
                await sync_to_async(self._release_all)()
                raise

    def _try_reserve_sync(self, response: Response, is_retry: bool) -> Response | None:
        self._reserved: list[RunningJob] = []
        try:
            if is_retry:
                self._check_caller()
            self._reserved = self.reserve()
            if self._reserved:
                response.data = self.show(self._reserved)
                return response
        except Exception as error:
            return self.view.finalize_response(self.view.request, self.view.handle_exception(error))
        _close_connections()
        return None

    def _check_caller(self) -> None:
        """Check the caller again: the token or rights may have been revoked during the wait."""
        if not self.view.caller.still_valid():
            raise AuthenticationFailed("The token was revoked or has expired.")
        self.view.caller.require(Right.CONSUME, self.topic)

    def _release_all(self) -> None:
        for job in self._reserved:
            try:
                leases.release(job.id, job.attempt, using=self.view.using, by=self.view.caller.signature)
            except Exception as error:  # release the other jobs; this one is taken back after its TTR
                logger.warning("Could not release %r: %s", job, error)
        _close_connections()


def _close_connections() -> None:
    """Close this thread's database connections: thousands of requests may wait, and need no connection."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close()


def _release_thread() -> None:
    """Release the thread that Django keeps for a request under ASGI. The next attempt to reserve gets another one."""
    context = SyncToAsync.thread_sensitive_context.get(None)
    threads = getattr(
        SyncToAsync, "context_to_thread_executor", {}
    )  # private API of asgiref: if it is missing, the thread is kept
    thread = threads.pop(context, None) if context else None
    if thread is not None:
        thread.shutdown(wait=False)
