"""Call a function in a forked process, and see whether a thread delays forks."""

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest


def succeeds_in_fork(act: Callable[[], object]) -> bool:
    """Call `act` in a forked process, which may take 20 s. Return whether it returned anything but False."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, about threads and forks
        child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends a child that hangs
        status = 1
        try:
            status = int(act() is False)
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def record_blocks(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> Callable[[], bool]:
    """Return a function that says whether the calling thread is inside of no_fork() in this module."""
    inside: set[int] = set()
    no_fork = module.no_fork

    @contextmanager
    def recorded() -> Iterator[None]:
        with no_fork():
            inside.add(threading.get_ident())
            try:
                yield
            finally:
                inside.remove(threading.get_ident())

    monkeypatch.setattr(module, "no_fork", recorded)
    return lambda: threading.get_ident() in inside
