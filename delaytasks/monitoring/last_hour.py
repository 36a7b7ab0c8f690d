"""Events of the last hour, counted per topic and minute: outcomes, and the lateness of first attempts.

No index holds the time of an event, but ids grow with time. So events are read in chunks, the newest first, until
a time limit is reached. The counts of events older than a minute no longer change: they stay in the shared cache, and
their events are not read again. A page that stays open therefore soon shows the whole hour, even under high load.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .. import databases
from . import cache, event_counts
from .event_counts import EventGroup

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
SECONDS = 0.08  # time limit of reading events
FRESH_SECONDS = 5
CHUNKS = (2_000, 8_000, 20_000)  # events per statement; the first chunk is small, in case the database is slow


@dataclass(eq=False)
class EventCounts:
    """Event counts of one or more topics in one or more minutes."""

    outcomes: Counter[str] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)  # lateness in ms, cut to two digits -> first attempts
    worst_ms: int | None = None

    def add(self, other: "EventCounts") -> None:
        self.outcomes.update(other.outcomes)
        self.late.update(other.late)
        self._raise_worst(other.worst_ms)

    def count(self, group: EventGroup) -> None:
        self.outcomes[group.outcome] += group.total
        if group.late_ms is not None:
            self.late[group.late_ms] += group.total
            self._raise_worst(group.worst_ms)

    def _raise_worst(self, ms: int | None) -> None:
        if ms is not None:
            self.worst_ms = ms if self.worst_ms is None else max(self.worst_ms, ms)

    def late_ms(self, share: float) -> int | None:
        """Return a percentile of the lateness of first attempts in ms, cut to two digits, or None if there were none.

        share   for example 0.5 for the median, 0.99 for p99
        """
        remaining = share * self.late.total()
        for ms in sorted(self.late):
            remaining -= self.late[ms]
            if remaining <= 0.000_001:
                return ms
        return None


Minutes = dict[int, dict[str, EventCounts]]  # minute since 1970 -> topic -> counts


class IdRange(NamedTuple):
    """The events with after < id <= up_to."""

    after: int
    up_to: int


class LastHour(NamedTuple):
    now_ms: int
    since_ms: int  # earlier events are not counted
    complete: bool  # True: since_ms is an hour ago; False: the time limit was reached
    minutes: Minutes

    @property
    def minutes_counted(self) -> float:
        """The number of minutes counted; at least 1.0, so that it can be divided by."""
        return max(1.0, (self.now_ms - self.since_ms) / MINUTE_MS)

    def topics(self, only: Collection[str] | None) -> dict[str, EventCounts]:
        """Return the counts per topic, summed over all minutes.

        only   the topics to return; None: all topics
        """
        totals: dict[str, EventCounts] = {}
        for minute in self.minutes.values():
            for topic, tally in minute.items():
                if only is None or topic in only:
                    totals.setdefault(topic, EventCounts()).add(tally)
        return totals

    def series(self, only: Collection[str] | None) -> list[tuple[int, EventCounts]]:
        """Return (minute since 1970, its counts) of each minute counted, the oldest first.

        only   the topics to count; None: all topics
        """
        first, last = self.since_ms // MINUTE_MS, self.now_ms // MINUTE_MS
        minutes = []
        for minute in range(first, last + 1):
            tallies = self.minutes.get(minute, {}).items()
            minutes.append((minute, total(tally for topic, tally in tallies if only is None or topic in only)))
        return minutes


def total(tallies: Iterable[EventCounts]) -> EventCounts:
    """Return the sum of these counts."""
    result = EventCounts()
    for tally in tallies:
        result.add(tally)
    return result


def last_hour(using: str) -> LastHour:
    """Return the counts of the last hour, or of the part of it that could be read within the time limit.

    The counts may be a few seconds old.
    """
    progress: Progress = cache.get_or_compute(
        cache.cache_key("hour", using), FRESH_SECONDS, lambda previous: _read_on(using, previous), Progress
    )
    return _last_hour(progress)


class Progress(NamedTuple):
    """The events of the last hour that have been counted so far; cached between calls."""

    now_ms: int
    since_ms: int  # all events since this time have been read
    complete: bool
    newest: Minutes  # counts of the last minute, to which events may still be added
    settled: Minutes  # counts of the events in `ranges`
    ranges: tuple[IdRange, ...]  # ids of the events counted in `settled`, the newest range first


def _read_on(using: str, previous: Progress | None) -> Progress:
    """Read the events of the last minute, then older events that were not read yet, until the time limit."""
    deadline = time.monotonic() + SECONDS
    now_ms = databases.now_ms(using)
    first, settled, end = (i - 1 for i in event_counts.first_events(using, [now_ms - HOUR_MS, now_ms - MINUTE_MS]))
    newest, unread_up_to = _read(using, IdRange(settled, end), deadline, min_chunks=1)
    counts = _without_old(previous.settled, now_ms) if previous else {}
    ranges = [IdRange(max(r.after, first), r.up_to) for r in (previous.ranges if previous else ()) if r.up_to > first]
    for n, gap in enumerate(_gaps(ranges, first, settled)):
        new_counts, gap_unread_up_to = _read(using, gap, deadline, min_chunks=1 if n == 0 else 0)
        counts = _merged(counts, new_counts)
        ranges.append(IdRange(gap_unread_up_to, gap.up_to))
        if gap_unread_up_to > gap.after:
            break
    ranges = _joined(ranges)
    if unread_up_to == settled and ranges and ranges[0].up_to == settled:
        unread_up_to = ranges[0].after
    since_ms = _since_ms(using, unread_up_to, first, now_ms)
    return Progress(now_ms, since_ms, unread_up_to <= first, newest, counts, tuple(ranges))


def _gaps(ranges: Sequence[IdRange], first: int, settled: int) -> list[IdRange]:
    """Return the ranges between `first` and `settled` that have not been read, the newest first."""
    gaps, up_to = [], settled
    for each in ranges:
        gaps.append(IdRange(each.up_to, up_to))
        up_to = each.after
    return [gap for gap in [*gaps, IdRange(first, up_to)] if gap.after < gap.up_to]


def _joined(ranges: Iterable[IdRange]) -> list[IdRange]:
    """Return the ranges, the newest first, with adjacent ones merged and empty ones left out."""
    joined: list[IdRange] = []
    for each in sorted(ranges, reverse=True):
        if each.after == each.up_to:
            continue
        if joined and joined[-1].after <= each.up_to:
            joined[-1] = IdRange(each.after, joined[-1].up_to)
        else:
            joined.append(each)
    return joined


def _since_ms(using: str, after: int, first: int, now_ms: int) -> int:
    """Return the start of the first minute that is complete if all events with id > after have been read.

    Never later than the current minute, nor earlier than an hour ago.
    """
    current = now_ms // MINUTE_MS
    minute = current - HOUR_MS // MINUTE_MS + 1
    if after > first:
        oldest_ms = event_counts.event_ms(using, after)
        partly_read = current if oldest_ms is None else oldest_ms // MINUTE_MS
        minute = max(minute, min(partly_read + 1, current))
    return minute * MINUTE_MS


def _without_old(minutes: Minutes, now_ms: int) -> Minutes:
    return {minute: topics for minute, topics in minutes.items() if minute >= (now_ms - HOUR_MS) // MINUTE_MS}


def _last_hour(progress: Progress) -> LastHour:
    minutes = _merged(progress.settled, progress.newest)
    counted = {minute: topics for minute, topics in minutes.items() if minute >= progress.since_ms // MINUTE_MS}
    return LastHour(progress.now_ms, progress.since_ms, progress.complete, counted)


def _read(using: str, ids: IdRange, deadline: float, *, min_chunks: int = 0) -> tuple[Minutes, int]:
    """Count events, the newest first, until the deadline; return the counts and the largest id not read.

    min_chunks   the number of chunks that are read even after the deadline
    """
    minutes: Minutes = {}
    unread_up_to, chunk = ids.up_to, 0
    while unread_up_to > ids.after and (chunk < min_chunks or time.monotonic() < deadline):
        limit = CHUNKS[min(chunk, len(CHUNKS) - 1)]
        groups, unread_up_to = event_counts.newest_events(using, ids.after, unread_up_to, limit)
        chunk += 1
        for group in groups:
            minutes.setdefault(group.minute, {}).setdefault(group.topic, EventCounts()).count(group)
    return minutes, unread_up_to


def _merged(*parts: Minutes) -> Minutes:
    merged: Minutes = {}
    for part in parts:
        for minute, topics in part.items():
            for topic, tally in topics.items():
                merged.setdefault(minute, {}).setdefault(topic, EventCounts()).add(tally)
    return merged
