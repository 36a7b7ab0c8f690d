"""Work that a thread repeats while the caller does something else."""

import contextlib
import threading
from collections.abc import Callable, Iterator

from django.db import connections


@contextlib.contextmanager
def repeating(work: Callable[[], object], every_seconds: float) -> Iterator[None]:
    """Call work() in a thread inside the block, after each pause of `every_seconds`.

    At the end, wait for the call in progress, and close the database connections that the thread has opened.
    """
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_seconds):
            work()
        connections.close_all()

    thread = threading.Thread(target=repeat, name="repeating", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
