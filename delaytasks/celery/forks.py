"""Keep the pool from forking while a thread of the worker's main process uses a database.

A forked process inherits the locks of libraries as they are at that moment, such as those inside SQLite's allocator. A
lock that another thread held would never be released there, and the new process would hang at its first query.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WAIT_SECONDS = 2.0  # longest delay of a fork, if a thread still waits for a database

_threads = 0  # number of threads inside a block of no_fork()
_changed = threading.Condition()
_forking = threading.local()  # .locked: this thread's fork has acquired _changed


@contextmanager
def no_fork() -> Iterator[None]:
    """Delay the forks of this process until the end of the block, but for at most WAIT_SECONDS.

    Any number of threads may be inside: one that hangs must not stop the others.
    """
    global _threads
    with _changed:
        _threads += 1
    try:
        yield
    finally:
        with _changed:
            _threads -= 1
            _changed.notify_all()


def _before() -> None:
    _forking.locked = _changed.acquire(timeout=WAIT_SECONDS)
    if _forking.locked:
        _changed.wait_for(lambda: not _threads, WAIT_SECONDS)


def _after() -> None:
    if getattr(_forking, "locked", False):
        _forking.locked = False
        _changed.release()


def _after_in_child() -> None:
    global _threads, _changed
    _threads, _changed = 0, threading.Condition()


os.register_at_fork(before=_before, after_in_parent=_after, after_in_child=_after_in_child)
