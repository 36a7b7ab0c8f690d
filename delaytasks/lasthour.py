"""What happened in the last hour, per topic and minute: outcomes, and how late due jobs were begun.

No index knows when an event happened, but ids grow with time: the newest events are read backwards, in
parts, as long as there is time. What is older than a minute does not change any more, so it is remembered
(in the cache, for everybody) and not read again: a page that stays open soon knows the whole hour, however
much happens.
"""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from . import engine, events, keeping
from .events import Happened

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
SECONDS = 0.08  # of reading events
FRESH_SECONDS = 5
PARTS = (2_000, 8_000, 20_000)  # events of one statement: the first shows how quick it is


class Tally:
    """What happened to one or more topics, in one or more minutes."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.late: Counter[int] = Counter()  # ms, to two digits -> first attempts
        self.worst_ms: int | None = None

    def add(self, other: "Tally") -> None:
        self.outcomes.update(other.outcomes)
        self.late.update(other.late)
        self._worst(other.worst_ms)

    def count(self, event: Happened) -> None:
        self.outcomes[event.outcome] += event.number
        if event.late_ms is not None:
            self.late[event.late_ms] += event.number
            self._worst(event.worst_ms)

    def _worst(self, ms: int | None) -> None:
        if ms is not None:
            self.worst_ms = ms if self.worst_ms is None else max(self.worst_ms, ms)

    def late_ms(self, share: float) -> int | None:
        """The lateness that `share` of the first attempts (0.5, 0.99) did not exceed, to two digits."""
        rest = share * self.late.total()
        for ms in sorted(self.late):
            rest -= self.late[ms]
            if rest <= 0.000_001:
                return ms
        return None


Minutes = dict[int, dict[str, Tally]]  # minute since 1970 -> topic -> what happened


class Span(NamedTuple):
    """The events with after < id <= up_to."""

    after: int
    up_to: int


class LastHour(NamedTuple):
    now_ms: int
    since_ms: int  # what happened before is not counted
    whole: bool  # whether that is an hour ago
    minutes: Minutes

    @property
    def minutes_known(self) -> float:
        """How many minutes it tells of; at least one, so that what happened can be told per minute."""
        return max(1.0, (self.now_ms - self.since_ms) / MINUTE_MS)

    def topics(self, only: Collection[str] | None) -> dict[str, Tally]:
        """Per topic, of all minutes."""
        found: dict[str, Tally] = {}
        for minute in self.minutes.values():
            for topic, tally in minute.items():
                if only is None or topic in only:
                    found.setdefault(topic, Tally()).add(tally)
        return found

    def series(self, only: Collection[str] | None) -> list[tuple[int, Tally]]:
        """(minute since 1970, what happened in it) of each minute that is counted, the oldest first."""
        first, last = self.since_ms // MINUTE_MS, self.now_ms // MINUTE_MS
        found = []
        for number in range(first, last + 1):
            tallies = self.minutes.get(number, {}).items()
            found.append((number, total(tally for topic, tally in tallies if only is None or topic in only)))
        return found


def total(tallies: Iterable[Tally]) -> Tally:
    """All of them together."""
    whole = Tally()
    for tally in tallies:
        whole.add(tally)
    return whole


def last_hour(using: str) -> LastHour:
    """What happened in the last hour, or in as much of it as could be counted; a few seconds old."""
    look: Look = keeping.keep(keeping.name_of("hour", using), FRESH_SECONDS, lambda before: _look(using, before))
    return _hour(look)


class Look(NamedTuple):
    now_ms: int
    since_ms: int  # what happened from then on is known, without a gap
    whole: bool
    newest: Minutes  # the last minute's events: more may come
    settled: Minutes  # all others that are known
    spans: tuple[Span, ...]  # which these are, the newest first


def _look(using: str, before: Look | None) -> Look:
    """What is known after reading on, first what is newest, as long as there is time."""
    over = time.monotonic() + SECONDS
    now_ms = engine.now_ms(using)
    first, settled, end = (i - 1 for i in events.first_events(using, [now_ms - HOUR_MS, now_ms - MINUTE_MS]))
    newest, rest = _read(using, Span(settled, end), over, least=1)
    known = _pruned(before.settled, now_ms) if before else {}
    spans = [
        Span(max(span.after, first), span.up_to) for span in (before.spans if before else ()) if span.up_to > first
    ]
    for n, gap in enumerate(_gaps(spans, first, settled)):
        found, read_to = _read(using, gap, over, least=1 if n == 0 else 0)
        known = _together(known, found)
        spans.append(Span(read_to, gap.up_to))
        if read_to > gap.after:
            break
    spans = _joined(spans)
    if rest == settled and spans and spans[0].up_to == settled:
        rest = spans[0].after
    return Look(now_ms, _since_ms(using, rest, first, now_ms), rest <= first, newest, known, tuple(spans))


def _gaps(spans: Sequence[Span], first: int, settled: int) -> list[Span]:
    """What is not known between `first` and `settled`, the newest first."""
    gaps, up_to = [], settled
    for span in spans:
        gaps.append(Span(span.up_to, up_to))
        up_to = span.after
    return [gap for gap in [*gaps, Span(first, up_to)] if gap.after < gap.up_to]


def _joined(spans: Iterable[Span]) -> list[Span]:
    """The same, the newest first, and those that touch as one."""
    joined: list[Span] = []
    for span in sorted(spans, reverse=True):
        if span.after == span.up_to:
            continue
        if joined and joined[-1].after <= span.up_to:
            joined[-1] = Span(span.after, joined[-1].up_to)
        else:
            joined.append(span)
    return joined


def _since_ms(using: str, after: int, first: int, now_ms: int) -> int:
    """From which minute on everything is known if all events behind `after` are; at the latest from this one on."""
    this = now_ms // MINUTE_MS
    minute = this - HOUR_MS // MINUTE_MS + 1
    if after > first:
        oldest_ms = events.event_ms(using, after)
        half_read = this if oldest_ms is None else oldest_ms // MINUTE_MS
        minute = max(minute, min(half_read + 1, this))
    return minute * MINUTE_MS


def _pruned(minutes: Minutes, now_ms: int) -> Minutes:
    return {minute: topics for minute, topics in minutes.items() if minute >= (now_ms - HOUR_MS) // MINUTE_MS}


def _hour(look: Look) -> LastHour:
    minutes = _together(look.settled, look.newest)
    known = {minute: topics for minute, topics in minutes.items() if minute >= look.since_ms // MINUTE_MS}
    return LastHour(look.now_ms, look.since_ms, look.whole, known)


def _read(using: str, span: Span, over: float, *, least: int = 0) -> tuple[Minutes, int]:
    """Its events, the newest first, until the time is over but `least` so many parts; the id it was read down to."""
    minutes: Minutes = {}
    rest, part = span.up_to, 0
    while rest > span.after and (part < least or time.monotonic() < over):
        found, rest = events.happened(using, span.after, rest, PARTS[min(part, len(PARTS) - 1)])
        part += 1
        for event in found:
            minutes.setdefault(event.minute, {}).setdefault(event.topic, Tally()).count(event)
    return minutes, rest


def _together(*parts: Minutes) -> Minutes:
    found: Minutes = {}
    for part in parts:
        for minute, topics in part.items():
            for topic, tally in topics.items():
                found.setdefault(minute, {}).setdefault(topic, Tally()).add(tally)
    return found
