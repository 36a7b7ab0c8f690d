"""Stop condition of a run without a natural end: a signal, the end of the parent process, or a time limit."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

LOCK_CHECK_SECONDS = 30.0  # between two checks that the run still holds its lock


class StopCondition:
    """Callable that returns whether a run has to stop: it got a signal, its parent process ended, or its time is up.

    stop         event that stop_signals() yields
    check_lock   raises DatabaseUnavailable if the run no longer holds its lock; called every LOCK_CHECK_SECONDS
    parent       process id; None: no parent is watched
    end          value of time.monotonic() at which to stop; None: no time limit
    """

    def __init__(
        self, stop: threading.Event, check_lock: Callable[[], None], parent: int | None, end: float | None
    ) -> None:
        self.stop, self.check_lock, self.parent, self.end = stop, check_lock, parent, end
        self._checked = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._checked > LOCK_CHECK_SECONDS:
            self.check_lock()
            self._checked = now
        orphan = self.parent is not None and os.getppid() != self.parent
        return self.stop.is_set() or orphan or (self.end is not None and now >= self.end)


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM and SIGINT set. In a thread that is not the main thread, it is never set."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    previous = {each: signal.signal(each, lambda *_: stop.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
