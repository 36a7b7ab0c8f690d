"""Run the coroutine of an `async def` handler to its end, so that the rest of the engine sees a plain call.

The coroutine runs in an event loop in a thread of its own. The calling thread meanwhile runs the synchronous parts:
`sync_to_async()`, and so the asynchronous methods of Django's ORM, use the connections of the calling thread. So the
coroutine of an atomic handler works inside the transaction that finishes its job.

A TTR interrupts the calling thread. The coroutine is cancelled then, and the interrupt is raised after its `finally`
blocks have run. A coroutine that blocks its event loop cannot be cancelled: the watchdog ends its process (see ttr.py).
"""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

from asgiref.sync import AsyncToSync, async_to_sync

from ..exceptions import TTRExceeded


def await_result(result: Any) -> Any:
    """Return the result of a handler. If it is a coroutine, run the coroutine and return its result."""
    return _Run(result).wait() if isinstance(result, Coroutine) else result


class _Run:
    """One coroutine that runs in an event loop of its own while the calling thread waits for it."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.coroutine = coroutine
        self.abandoned = False  # the caller was interrupted before the coroutine began
        self.task: asyncio.Task[Any] | None = None
        self.ended: Future[None] = Future()  # done when the coroutine and all tasks that it started have ended

    def wait(self) -> Any:
        executor = getattr(AsyncToSync.executors, "current", None)
        try:
            # A new loop, even if the caller runs in one: we cancel all tasks of the loop, so none may be another's.
            return async_to_sync(self._main, force_new_loop=True)()
        except BaseException:
            self._cancel()
            _restore(executor)
            raise

    async def _main(self) -> Any:
        self.task = asyncio.current_task()
        try:
            return None if self.abandoned else await self.coroutine
        finally:
            await _cancel_others()
            self.ended.set_result(None)

    def _cancel(self) -> None:
        """Cancel the coroutine if it still runs, and serve its synchronous parts until it has ended."""
        self.abandoned = True
        _release_lock()
        if self.task is None:
            self.coroutine.close()
            return
        loop = self.task.get_loop()
        executor = AsyncToSync.loop_thread_executors.get(loop)
        while executor is not None and not self.ended.done():
            try:
                _release_lock()
                loop.call_soon_threadsafe(self.task.cancel)
                executor.run_until_future(self.ended)
            except BaseException:
                continue  # the interrupt is repeated while the coroutine does not end; the first one is raised


def _restore(executor: Any) -> None:
    """Restore asgiref's executor for synchronous code, because asgiref does not if the interrupt came too early.

    Otherwise a later sync_to_async() of this context would wait for a thread that no longer serves it.
    """
    while True:
        try:
            _release_lock()
            AsyncToSync.executors.current = executor
            return
        except (TTRExceeded, KeyboardInterrupt, SystemExit):
            continue  # the interrupt is repeated; the first one is raised


def _release_lock() -> None:
    """Release the lock of asgiref's executors if an interrupt has left it locked by this thread.

    asgiref acquires it in one step and begins its `try` in the next. If the interrupt comes in between, each later
    sync_to_async() of this process would wait forever, also that of the coroutine which is being cancelled.
    """
    lock: Any = getattr(AsyncToSync.executors, "_lock", None)
    while lock is not None and lock._is_owned():
        lock.release()


async def _cancel_others() -> None:
    """Cancel the tasks that the coroutine has left behind, while the calling thread still serves them."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.gather(*others, return_exceptions=True)
