"""A circuit breaker: after a failure, calls are refused for a while instead of each waiting for its timeout.

No library is used: pybreaker holds a lock during each call, and purgatory lets all callers try again at once after a
pause. Both measure the pause by the wall clock.
"""

import os
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# Never held during a call. Acquired before a fork and released after it: otherwise a child might inherit a lock that
# stays locked for ever.
_lock = threading.RLock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class CircuitOpen(Exception):
    """The service failed a moment ago and is not called for now."""


class CircuitBreaker:
    """Guard the calls to a service that may be down. Thread-safe; never sleeps.

    failures        the exceptions that mean "down"; others are raised but not counted
    pauses_seconds  the pause after one failure, after two in a row, ...; the last value also
                    applies to all further failures

    After the pause, one caller tries again. Other calls are refused until that call has succeeded.
    """

    def __init__(
        self,
        failures: type[Exception] | tuple[type[Exception], ...],
        *pauses_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._failures = failures
        self._pauses_seconds = pauses_seconds
        self._monotonic = monotonic
        self.reset()

    def reset(self) -> None:
        """Close the circuit: forget all failures."""
        with _lock:
            self._open_until: float | None = None  # None: closed
            self._failures_in_a_row = 0
            self._prober: tuple[int, int] | None = None  # ids of process and thread

    @property
    def closed(self) -> bool:
        """Whether the circuit is closed: no call has failed since the last success."""
        return self._open_until is None

    @property
    def refuses(self) -> bool:
        """Whether a call would be refused now."""
        until = self._open_until
        return until is not None and (self._monotonic() < until or self._probed_by_another())

    def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return function(...). While the service is down, raise CircuitOpen without calling it."""
        probing = self._open_until is not None and self._probe()
        try:
            result = function(*args, **kwargs)
        except self._failures:
            self._fail(probing)
            raise
        except BaseException:  # says nothing about the service: the next caller may probe
            if probing:
                self._prober = None
            raise
        if probing:
            self.reset()
        return result

    def _probe(self) -> bool:
        """Return True if this caller may probe, False if the circuit is closed again. Raises CircuitOpen otherwise."""
        with _lock:
            if self.closed:  # closed by another thread a moment ago
                return False
            if self.refuses:
                raise CircuitOpen
            self._prober = os.getpid(), threading.get_ident()
            return True

    def _probed_by_another(self) -> bool:
        """Return whether another thread of this process is probing. A probe of the parent process does not count."""
        prober = self._prober
        return prober is not None and prober[0] == os.getpid() and prober[1] != threading.get_ident()

    def _fail(self, probing: bool) -> None:
        with _lock:
            if not probing and not self.closed:
                return  # the call began before the circuit opened
            pause = self._pauses_seconds[min(self._failures_in_a_row, len(self._pauses_seconds) - 1)]
            self._open_until = self._monotonic() + pause
            self._failures_in_a_row += 1
            self._prober = None
