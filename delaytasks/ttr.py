"""The TTR, enforced: an interrupt at its end, and a watchdog for a handler that does not listen.

Only where it is safe: in the main thread of a process that runs one task at a time (Celery's
prefork and solo pools say so through worker_process_init). In thread and gevent pools the
lease alone takes a job back. The watchdog is a C thread that needs no GIL; it ends a child
process with a traceback of where it hung. It is not armed in a worker's main process.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from .exceptions import TTRExceeded

SLACK_SECONDS = 1.0  # twice this the watchdog may come later than asked for, so that it need not be set for each job

_enforced = False
_watched = False
_stays = False  # inside watching()
_watched_until = 0.0  # monotonic; 0: nothing is armed
_grace_seconds = 5.0
_before_interrupt: Callable[[], None] | None = None
_armed = False


def enforce(*, watchdog: bool, grace_seconds: float, before_interrupt: Callable[[], None] | None = None) -> None:
    """Switch the interrupt on in this process.

    watchdog           the process may be ended when a handler is deaf
    before_interrupt   called in the signal's handler: what must be stopped elsewhere first, such as a query
    """
    global _enforced, _watched, _grace_seconds, _before_interrupt
    _enforced, _watched, _grace_seconds, _before_interrupt = True, watchdog, grace_seconds, before_interrupt


def _interrupt(signum: int, frame: Any) -> None:
    if _armed:
        if _before_interrupt:
            _before_interrupt()
        raise TTRExceeded("The handler ran longer than its TTR and was interrupted.")


def _set(seconds: float) -> None:
    # It comes again: one that strikes inside a __del__ is swallowed by Python.
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), _grace_seconds / 2)
    if _watched and sys.__stderr__ is not None:
        _watch(seconds + _grace_seconds, sys.__stderr__)


def _watch(seconds: float, file: TextIO) -> None:
    """Arm the watchdog, unless it is armed for about that time: it is a thread each time."""
    global _watched_until
    now, slack = time.monotonic(), SLACK_SECONDS if _stays else 0.0
    if not now + seconds <= _watched_until <= now + seconds + 2 * slack:
        faulthandler.dump_traceback_later(seconds + slack, exit=True, file=file)
        _watched_until = now + seconds + slack


def _watch_no_more() -> None:
    global _watched_until
    if _watched:  # whatever we believe: an interrupt may have come between arming it and knowing of it
        faulthandler.cancel_dump_traceback_later()
        _watched_until = 0.0


@contextmanager
def watching() -> Iterator[None]:
    """Inside, the watchdog stays armed from one limit to the next: hundreds of quick handlers need it once."""
    global _stays
    if _stays or threading.current_thread() is not threading.main_thread():
        yield
        return
    _stays = True
    try:
        yield
    finally:
        _stays = False
        _watch_no_more()


def _forget() -> None:
    """A forked child has neither the timer nor the watchdog's thread, and would wait for that thread for ever."""
    global _enforced, _watched, _armed, _stays, _watched_until
    _enforced = _watched = _armed = _stays = False
    _watched_until = 0.0


os.register_at_fork(after_in_child=_forget)


def rearm(ms: int) -> None:
    """Begin anew with `ms` from now, for a lease that was renewed; nothing where no limit is in force."""
    if _armed and threading.current_thread() is threading.main_thread():
        _set(ms / 1000)


@contextmanager
def limit(ms: int) -> Iterator[None]:
    """Raise TTRExceeded inside the block after `ms`; nothing where it cannot be enforced, or inside another's limit."""
    global _armed
    if _armed or not _enforced or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _interrupt)
    try:
        _armed = True
        _set(ms / 1000)
        yield
    finally:
        try:
            _armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)
        finally:  # the interrupt may come in the middle of the line above
            _armed = False
            if not _stays:
                _watch_no_more()
            signal.signal(signal.SIGALRM, before)
