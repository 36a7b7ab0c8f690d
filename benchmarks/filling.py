"""Giving a contestant its jobs in good time before the first of them is due."""

import math
import time
from collections.abc import Callable, Sequence

from .drivers import DriverFailed
from .stand import Stand

TRIES = 4
LEAST_LEAD_SECONDS = 3.0
FILLED_PER_SECOND = 2_500  # by the slowest of them, while its workers run
REST_SECONDS = 1.0  # between the end of a fill and the first due time


def fill_ahead(stand: Stand, kind: str, count: int, due_times: Callable[[float], Sequence[float]]) -> float:
    """Fill the jobs that `due_times(start)` names, all before `start`; the start. Begins again if it took too long.

    due_times   the due time of each job, given the unix time, a whole second, from which on jobs may be due

    Raises DriverFailed if the contestant cannot do it in several times what was left to it.
    """
    lead = (LEAST_LEAD_SECONDS + count / FILLED_PER_SECOND) * stand.slowness.get(kind, 1)
    for _ in range(TRIES):
        start = float(math.ceil(time.time() + lead))
        stand.do("fill", due=list(due_times(start)), kind=kind)
        if time.time() < start - REST_SECONDS / 2:
            stand.analyze()
            return start
        lead *= 2
        stand.slowness[kind] = stand.slowness.get(kind, 1) * 2  # it begins earlier from now on
        _let_run(stand, count)
    raise DriverFailed(f"{stand.label}: {count} jobs of kind {kind} could not be filled in {lead / 2:.0f} s.")


def _let_run(stand: Stand, count: int) -> None:
    """A fill that came too late: its jobs run, and are forgotten."""
    stand.sink.await_count(count, 600, stalled=60)
    stand.await_quiet()
    stand.clear()
