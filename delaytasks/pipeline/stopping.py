"""When a run that lasts is to end."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

HELD_SECONDS = 30.0  # between two looks whether nobody else has begun


class Over:
    """Whether a run is to end: it was told by a signal, its parent has ended, or its time is over.

    still    raises DatabaseAway if others are not kept away any more; asked now and then
    parent   a process's id; None: nobody's end matters
    end      of time.monotonic(); None: none
    """

    def __init__(self, told: threading.Event, still: Callable[[], None], parent: int | None, end: float | None) -> None:
        self.told, self.still, self.parent, self.end = told, still, parent, end
        self._held = time.monotonic()

    def __call__(self) -> bool:
        now = time.monotonic()
        if now - self._held > HELD_SECONDS:
            self.still()
            self._held = now
        orphan = self.parent is not None and os.getppid() != self.parent
        return self.told.is_set() or orphan or (self.end is not None and now >= self.end)


@contextlib.contextmanager
def stop_signals() -> Iterator[threading.Event]:
    """An event that SIGTERM and SIGINT set. Only a process's main thread hears signals."""
    told = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield told
        return
    before = {each: signal.signal(each, lambda *_: told.set()) for each in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
