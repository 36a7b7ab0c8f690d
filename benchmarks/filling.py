"""Schedule a contestant's jobs before the first one is due."""

import math
import time
from collections.abc import Callable, Sequence

from .drivers import DriverFailed
from .stand import Testbed

ATTEMPTS = 4
MIN_LEAD_SECONDS = 3.0
FILL_RATE = 2_500  # jobs per second of the slowest contestant, while its workers run
MARGIN_SECONDS = 1.0  # between the end of a fill and the first due time


def fill_ahead(testbed: Testbed, kind: str, count: int, due_times: Callable[[float], Sequence[float]]) -> float:
    """Schedule the jobs of `due_times(start)` before `start`; return `start`. If that takes too long, try again later.

    due_times   returns the due time of each job; `start` is the earliest one, in whole seconds of unix time

    Raises DriverFailed if the contestant is too slow in every attempt.
    """
    lead = (MIN_LEAD_SECONDS + count / FILL_RATE) * testbed.slowness.get(kind, 1)
    for _ in range(ATTEMPTS):
        start = float(math.ceil(time.time() + lead))
        testbed.do("fill", due=list(due_times(start)), kind=kind)
        if time.time() < start - MARGIN_SECONDS / 2:
            testbed.analyze()
            return start
        lead *= 2
        testbed.slowness[kind] = testbed.slowness.get(kind, 1) * 2  # later fills of this kind start earlier
        _discard(testbed, count)
    raise DriverFailed(f"{testbed.label}: {count} jobs of kind {kind} could not be filled in {lead / 2:.0f} s.")


def _discard(testbed: Testbed, count: int) -> None:
    """Let the jobs of a late fill run and remove them."""
    testbed.sink.await_count(count, 600, stalled=60)
    testbed.await_quiet()
    testbed.clear()
