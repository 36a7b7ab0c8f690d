"""Detect clients that disconnect before they are answered, without a task for requests that are answered soon."""

import asyncio
from types import TracebackType

from .bodies import Disconnected, Receive

WATCH_AFTER_SECONDS = 0.1


class CancelOnDisconnect:
    """Cancel the block if the client goes away while it runs. To be used in a `with` statement, in a task.

    Watching starts after WATCH_AFTER_SECONDS, because receive() needs a task of its own. For a faster request, call
    has_left(). The request's body must be complete.

    Raises Disconnected at the end of a cancelled block, as asyncio.timeout() raises TimeoutError. If the client goes
    away in the moment in which the block ends, the block is not cancelled: see the attribute has_left.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._watching: asyncio.Task[None] | None = None
        self._has_cancelled = self._is_over = False
        self.has_left = False

    def __enter__(self) -> "CancelOnDisconnect":
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_SECONDS, self._begin)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._timer.cancel()
        self._is_over = True
        if self._watching is not None and not self._watching.cancel():
            self.has_left = True  # the client is gone, although the event loop may not have called _cancel() yet
        if self._has_cancelled and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError:
            raise Disconnected from error

    def _begin(self) -> None:
        self._watching = asyncio.ensure_future(_until_gone(self._receive))
        self._watching.add_done_callback(self._cancel)

    def _cancel(self, watching: "asyncio.Task[None]") -> None:
        if watching.cancelled():
            return
        watching.exception()  # a connection that cannot be read is gone as well
        if not self._is_over:
            self._has_cancelled = True
            self._task.cancel()


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def has_left(receive: Receive) -> bool:
    """Return whether the client has disconnected, as far as known without waiting. The body must be complete."""
    message = receive().__await__()
    try:
        next(message)  # run receive() up to its first wait
    except StopIteration as received:
        return bool(received.value["type"] == "http.disconnect")
    finally:
        message.close()
    return False
