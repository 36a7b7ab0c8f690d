"""Enforce the TTR: an interrupt at its end, and a watchdog for a handler that ignores the interrupt.

The TTR is enforced only where that is safe: in the main thread of a process that runs one task at a time (Celery's
prefork and solo pools call enforce() through worker_process_init). In thread and gevent pools a handler is not
interrupted; its job is taken back when the lease ends. The watchdog is a C thread that does not need the GIL. It prints
the traceback of the hanging handler and ends the process. It is not armed in a worker's main process.
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

from ..exceptions import TTRExceeded

SLACK_SECONDS = 1.0  # the watchdog may fire up to twice this time late, so that it need not be armed for each job

_enforced = False
_watched = False
_grace_seconds = 5.0
_before_interrupt: Callable[[], None] | None = None
_stays_armed = False  # inside keeping_armed()
_armed = False  # inside limit()
_deadline = 0.0  # when the current limit ends; this and the next two are times of time.monotonic(), 0: not armed
_timer_until = 0.0
_watched_until = 0.0
_former_handler: list[Any] = []  # the handler of SIGALRM that ours has replaced; empty while ours is not installed


def enforce(*, watchdog: bool, grace_seconds: float, before_interrupt: Callable[[], None] | None = None) -> None:
    """Enforce the TTR in this process: interrupt a handler at the end of its TTR.

    watchdog           end the process if a handler ignores the interrupt for `grace_seconds`
    before_interrupt   called in the signal handler before TTRExceeded is raised, for example to cancel a query
    """
    global _enforced, _watched, _grace_seconds, _before_interrupt
    _enforced, _watched, _grace_seconds, _before_interrupt = True, watchdog, grace_seconds, before_interrupt


def stop_enforcing() -> None:
    """Enforce no TTR in this process any more."""
    global _enforced, _watched
    _enforced = _watched = False


def _interrupt(signum: int, frame: Any) -> None:
    if not _armed:
        return
    if (remaining := _deadline - time.monotonic()) > 0:  # the timer was set for an earlier handler
        _set_timer(remaining)
        return
    if _before_interrupt:
        _before_interrupt()
    raise TTRExceeded("The handler ran longer than its TTR and was interrupted.")


def _start(seconds: float) -> None:
    """Let the current limit end after `seconds`. A timer that fires earlier is kept: _interrupt() sets it anew."""
    global _deadline
    now = time.monotonic()
    _deadline = now + seconds
    if not now < _timer_until <= _deadline:
        _set_timer(seconds)
    if _watched and sys.__stderr__ is not None:
        _arm_watchdog(seconds + _grace_seconds, sys.__stderr__)


def _set_timer(seconds: float) -> None:
    global _timer_until
    seconds = max(seconds, 0.001)
    _timer_until = time.monotonic() + seconds
    # The signal is repeated, because Python swallows an exception that is raised inside a __del__.
    signal.setitimer(signal.ITIMER_REAL, seconds, _repeat_seconds())


def _repeat_seconds() -> float:
    return _grace_seconds / 2


def _install() -> None:
    if not _former_handler:
        _former_handler.append(signal.signal(signal.SIGALRM, _interrupt))


def _is_ours() -> bool:
    """Return whether the project's code has changed neither the timer nor the handler of SIGALRM."""
    repeats = signal.getitimer(signal.ITIMER_REAL)[1] == _repeat_seconds()
    return repeats and signal.getsignal(signal.SIGALRM) is _interrupt


def _stop() -> None:
    """Stop the timer and the watchdog and restore the former handler of SIGALRM, unless all are kept armed."""
    global _timer_until
    if not _stays_armed:
        _disarm_watchdog()
    elif _is_ours():
        return
    if not _former_handler:
        return  # a timer that runs is the project's
    signal.setitimer(signal.ITIMER_REAL, 0)
    _timer_until = 0.0
    while _former_handler:
        signal.signal(signal.SIGALRM, _former_handler.pop())


def _arm_watchdog(seconds: float, file: TextIO) -> None:
    """Arm the watchdog to fire after `seconds`, unless it is already armed to fire then or a little later.

    Arming starts a thread. To arm less often, the watchdog may fire up to 2 × SLACK_SECONDS late inside
    keeping_armed().
    """
    global _watched_until
    now, slack = time.monotonic(), SLACK_SECONDS if _stays_armed else 0.0
    if not now + seconds <= _watched_until <= now + seconds + 2 * slack:
        faulthandler.dump_traceback_later(seconds + slack, exit=True, file=file)
        _watched_until = now + seconds + slack


def _disarm_watchdog() -> None:
    global _watched_until
    if _watched:  # even if _watched_until is 0: an interrupt may have prevented its assignment after the arming
        faulthandler.cancel_dump_traceback_later()
        _watched_until = 0.0


@contextmanager
def keeping_armed() -> Iterator[None]:
    """Keep timer and watchdog armed inside the block, so that hundreds of quick handlers arm them only once."""
    global _stays_armed
    if _stays_armed or threading.current_thread() is not threading.main_thread():
        yield
        return
    _stays_armed = True
    try:
        yield
    finally:
        _stays_armed = False
        _stop()


def _reset_in_child() -> None:
    """Reset the state in a forked child.

    A child has neither the timer nor the watchdog's thread of its parent, and would wait for that thread forever.
    """
    global _enforced, _watched, _armed, _stays_armed, _timer_until, _watched_until
    _enforced = _watched = _armed = _stays_armed = False
    _timer_until = _watched_until = 0.0
    _former_handler.clear()


os.register_at_fork(after_in_child=_reset_in_child)


def rearm(ms: int) -> None:
    """Restart the current limit for a renewed lease: it now ends after `ms`. No effect without a current limit."""
    global _timer_until
    if _armed and threading.current_thread() is threading.main_thread():
        _timer_until = 0.0  # the handler may have used the timer itself
        _start(ms / 1000)


@contextmanager
def limit(ms: int) -> Iterator[None]:
    """Raise TTRExceeded inside the block after `ms`.

    No effect inside another limit, outside the main thread or in a process that has not called enforce().
    """
    global _armed, _deadline
    if _armed or not _enforced or threading.current_thread() is not threading.main_thread():
        yield
        return
    _install()
    try:
        _deadline = time.monotonic() + ms / 1000  # before the next line: a timer of an earlier handler may fire
        _armed = True
        _start(ms / 1000)
        yield
    finally:
        try:
            _armed = False
        finally:  # the interrupt may come before the line above
            _armed = False
            _stop()
