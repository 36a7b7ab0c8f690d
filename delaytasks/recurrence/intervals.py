"""The times of every=, and of a series of delay=, period= and repeat=: they count elapsed time."""

from datetime import UTC, datetime, timedelta
from typing import Protocol
from zoneinfo import ZoneInfo

from ..exceptions import BadSchedule, short_repr
from .wall_times import Firing, from_instant

SHORTEST = timedelta(milliseconds=100)
LONGEST = timedelta(days=3660)
LONGEST_SERIES = timedelta(days=31)  # the longest series that each time of a cron may start
MAX_OVERLAPPING = 1_000  # series of a cron at the same time: next_after() looks at each of them
MAX_REPEAT = 1_000_000


class Times(Protocol):
    """The times of a schedule.

    fixed   True: they are wall times and keep them if the rules of the time zone change. False: elapsed time
    """

    @property
    def fixed(self) -> bool: ...

    def next_after(self, moment: datetime) -> Firing | None:
        """Return the first firing later than the moment (aware), or None if there is none."""
        ...

    def __hash__(self) -> int: ...


class Every:
    """Every `interval` from `start` on, without drift. `start` itself is the first time.

    Raises BadSchedule.
    """

    fixed = False

    def __init__(self, interval: timedelta, zone: ZoneInfo, *, start: datetime) -> None:
        self.interval = check_interval(interval, "every")
        self.zone, self.start = zone, start.astimezone(UTC)

    def next_after(self, moment: datetime) -> Firing | None:
        passed = max(moment - self.start, -self.interval) // self.interval
        return from_instant(self.start + (passed + 1) * self.interval, self.zone)


class Series:
    """`repeat` + 1 runs, `period` apart. The first is `delay` after the start, or after each time of a cron.

    start    the beginning of the only series; not used with cron
    cron     each of its times starts a series. Series may overlap; runs of two series at the same instant are one
    repeat   None: without end

    As in ActiveMQ's scheduled messages, cron decides when a series starts, and the others apply to each series. Raises
    BadSchedule.
    """

    def __init__(
        self, zone: ZoneInfo, *, start: datetime, delay: timedelta = timedelta(), period: timedelta | None = None,
        repeat: int | None = 0, cron: Times | None = None,
    ) -> None:  # fmt: skip
        self.zone, self.start, self.cron = zone, start.astimezone(UTC), cron
        self.delay = _check_delay(delay)
        self.repeat = check_repeat(repeat)
        if self.repeat != 0 and period is None:
            raise BadSchedule(f"repeat is {repeat!r} without period: give the time between two runs as period.")
        self.period = None if period is None else check_interval(period, "period")
        if cron is not None and (self._length is None or self._length > LONGEST_SERIES):
            raise BadSchedule(
                f"Each time of cron starts a series of delay, period and repeat; it may last {LONGEST_SERIES.days} "
                "days at most: give a number as repeat, or a smaller one."
            )
        if cron is not None and self._has_too_many_at_once(cron):
            raise BadSchedule(
                f"Each time of cron starts a series of delay, period and repeat, so that more than {MAX_OVERLAPPING:,} "
                "would run at the same time: give a cron with fewer times, or a smaller repeat or period."
            )

    @property
    def fixed(self) -> bool:
        return self.cron is not None and self.cron.fixed

    @property
    def _length(self) -> timedelta | None:
        """The time from the start to the last run; None if the series has no end."""
        if self.period is None:
            return self.delay
        if self.repeat is None:
            return None
        repeat = min(self.repeat, LONGEST_SERIES // self.period + 1)  # avoids an overflow: longer series are refused
        return self.delay + self.period * repeat

    def _has_too_many_at_once(self, cron: Times) -> bool:
        """Return whether more than MAX_OVERLAPPING series start before the first one ends."""
        assert self._length is not None
        first = begin = cron.next_after(self.start - timedelta(microseconds=1))
        for _ in range(MAX_OVERLAPPING + 1):
            if first is None or begin is None or begin.due > first.due + self._length - self.delay:
                return False
            begin = cron.next_after(begin.due)
        return True

    def next_after(self, moment: datetime) -> Firing | None:
        if self.cron is None:
            found = self._next_in_series(self.start, moment)
            return None if found is None else from_instant(found, self.zone)
        assert self._length is not None
        best, begin = None, self.cron.next_after(moment - self._length - timedelta(microseconds=1))
        while begin is not None and (best is None or begin.due + self.delay < best):
            found = self._next_in_series(begin.due, moment)
            best = found if best is None else min(best, found or best)
            begin = self.cron.next_after(begin.due)
        return None if best is None else from_instant(best, self.zone)

    def _next_in_series(self, start: datetime, moment: datetime) -> datetime | None:
        first = start + self.delay
        if first > moment:
            return first
        if self.period is None:
            return None
        number = (moment - first) // self.period + 1
        return None if self.repeat is not None and number > self.repeat else first + number * self.period


def check_interval(interval: object, what: str) -> timedelta:
    """Convert an interval (timedelta or seconds) to a timedelta. Raises BadSchedule."""
    if isinstance(interval, int | float) and not isinstance(interval, bool):
        interval = timedelta(seconds=interval) if 0 <= interval <= LONGEST.total_seconds() else interval
    if not isinstance(interval, timedelta) or not SHORTEST <= interval <= LONGEST:
        raise BadSchedule(f"{what} is {short_repr(interval)}: give a timedelta or seconds, from 0.1 s to ten years.")
    if interval.microseconds % 1000:
        raise BadSchedule(f"{what} is {interval}: give whole milliseconds.")
    return interval


def check_repeat(repeat: object) -> int | None:
    """Return the number of repetitions. Raises BadSchedule."""
    if repeat is None:
        return None
    if isinstance(repeat, bool) or not isinstance(repeat, int) or not 0 <= repeat <= MAX_REPEAT:
        raise BadSchedule(f"repeat is {short_repr(repeat)}: give a whole number from 0 to {MAX_REPEAT:,}, or None.")
    return repeat


def _check_delay(delay: object) -> timedelta:
    if isinstance(delay, int | float) and not isinstance(delay, bool):
        delay = timedelta(seconds=delay) if 0 <= delay <= LONGEST.total_seconds() else delay
    if not isinstance(delay, timedelta) or not timedelta() <= delay <= LONGEST:
        raise BadSchedule(f"delay is {short_repr(delay)}: give a timedelta or seconds, up to ten years.")
    return delay
