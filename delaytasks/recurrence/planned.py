"""Count the jobs that schedules will make in given periods, for the forecast.

Jobs that exist already are not counted.
"""

import functools
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import NamedTuple

from .. import clock
from ..exceptions import BadInput
from ..models import Schedule
from .definition import times_of_row
from .intervals import Every, Times

MAX_SCHEDULES = 1000
FEW_TOPICS = 20  # more topics are not filtered in the query, but afterwards
SECONDS = 0.05  # time limit of a call: at its end the numbers are lower bounds, and the next call counts more of them

Span = tuple[int, int]  # from ms (inclusive), until ms (exclusive)


class Planned(NamedTuple):
    """How many jobs schedules will make."""

    numbers: Mapping[int, Mapping[str, int]]  # start of the span in ms -> topic -> number of jobs
    complete: bool  # False: the numbers are lower bounds


def count(using: str, topics: Collection[str] | None, starts: Iterable[int], width_ms: int) -> Planned:
    """Return how many jobs, not made yet, schedules will have due in each span.

    topics     None: all
    starts     the beginning of each span, in ms since 1970, ascending
    width_ms   the length of each span
    """
    spans = [(start, start + width_ms) for start in starts]
    rows = _schedules(using, topics, spans[-1][1])
    numbers: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    deadline = time.monotonic() + SECONDS
    complete = [_add(row, spans, numbers, deadline) for row in rows[:MAX_SCHEDULES]]
    return Planned(numbers, all(complete) and len(rows) <= MAX_SCHEDULES)


def _schedules(using: str, topics: Collection[str] | None, until_ms: int) -> list[Schedule]:
    rows = Schedule.objects.using(using).filter(paused=False, ended=False, made_until__lt=clock.from_ms(until_ms))
    if topics is not None and len(topics) <= FEW_TOPICS:
        rows = rows.filter(topic__in=list(topics))
    found = list(rows.order_by("made_until", "id")[: MAX_SCHEDULES + 1])
    return found if topics is None else [row for row in found if row.topic in topics]


def _add(row: Schedule, spans: Sequence[Span], numbers: dict[int, dict[str, int]], deadline: float) -> bool:
    """Add the jobs of one schedule to `numbers`. Return False if the deadline came before all were counted."""
    try:
        times = times_of_row(row)
    except BadInput:
        return True  # a broken schedule makes no jobs
    made_ms = clock.to_ms(row.made_until)
    for since_ms, until_ms in spans:
        if until_ms <= made_ms:
            continue
        if time.monotonic() > deadline:
            return False
        numbers[since_ms][row.topic] += _count_between(times, max(since_ms - 1, made_ms), until_ms - 1)
    return True


@functools.lru_cache(maxsize=50_000)  # schedules with equal times share one Times object
def _count_between(times: Times, after_ms: int, until_ms: int) -> int:
    """Return the number of times after `after_ms`, up to `until_ms`."""
    if isinstance(times, Every):
        return _up_to(times, until_ms) - _up_to(times, after_ms)
    number, moment, until = 0, clock.from_ms(after_ms), clock.from_ms(until_ms)
    while (firing := times.next_after(moment)) is not None and firing.due <= until:
        number, moment = number + 1, firing.due
    return number


def _up_to(times: Every, moment_ms: int) -> int:
    interval_ms = times.interval // timedelta(milliseconds=1)
    return max(0, (moment_ms - clock.to_ms(times.start)) // interval_ms + 1)
