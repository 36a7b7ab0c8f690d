"""Convert wall times to instants according to gap= and overlap=, and to labels for the keys of firings.

A firing is one run of a schedule. It is identified by its wall time (what clocks in the schedule's zone show), and by
whether it is the first or the second if they show that time twice. Its instant is computed from the wall time, and may
change with the zone's rules.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

from ..calendars.wall_time import in_gap, in_overlap, resolve

Gap = Literal["run", "skip"]
Overlap = Literal["once", "both"]
LONGEST_SHIFT = timedelta(hours=26)  # the most that clocks were ever changed by; a few zones skipped or repeated a day


class Firing(NamedTuple):
    """One run of a schedule.

    wall   naive: what clocks in the schedule's zone show, also for a time that they skip
    fold   1: the second of two equal wall times
    due    the instant, in UTC
    """

    wall: datetime
    fold: int
    due: datetime

    @property
    def label(self) -> str:
        """The wall time as text, for keys: 2026-10-25T02:30:00, and with /2 for the second of two equal times."""
        text = self.wall.isoformat(timespec="milliseconds" if self.wall.microsecond else "seconds")
        return f"{text}/2" if self.fold else text


def from_instant(due: datetime, zone: ZoneInfo) -> Firing:
    """Return the firing at an instant that was computed as elapsed time."""
    local = due.astimezone(zone)
    return Firing(local.replace(tzinfo=None, fold=0), local.fold, due.astimezone(UTC))


def parse_label(label: str, zone: ZoneInfo) -> Firing:
    """Return the firing of a label, with the instant by the zone's present rules. Raises ValueError."""
    text, slash, second = label.partition("/")
    wall, fold = datetime.fromisoformat(text), 1 if slash else 0
    if wall.tzinfo is not None or "T" not in text or second not in ("", "2"):
        raise ValueError(f"{label!r} is not the label of a firing.")
    try:
        return Firing(wall, fold, resolve(wall, zone, fold=fold))
    except OverflowError:
        raise ValueError(f"{label!r} has no instant in the years 1 to 9999.") from None


def next_firing(
    walls_from: Callable[[datetime], Iterator[datetime]],
    zone: ZoneInfo,
    after: datetime,
    gap: Gap,
    overlap: Overlap,
    start: datetime | None = None,
) -> Firing | None:
    """Return the first firing later than `after`, or None.

    walls_from   returns the rule's wall times from a wall time on, ascending
    start        as in firings_of()
    """
    best: Firing | None = None
    for wall in walls_from(first_wall(zone, after)):
        for firing in firings_of(wall, zone, gap, overlap, start):
            if firing.due > after and (best is None or firing.due < best.due):
                best = firing
        if best is not None and resolve(wall, zone) >= best.due:
            break  # later wall times are later instants, and so are their second times
    return best


def first_wall(zone: ZoneInfo, after: datetime) -> datetime:
    """Return the earliest wall time that may occur after `after`: when clocks are set back, some occur again.

    If clocks are set back by an hour, they show past wall times again only if this is within an hour.
    """
    shift = _set_back(zone, after, _set_back(zone, after, LONGEST_SHIFT))
    return after.astimezone(zone).replace(tzinfo=None, fold=0) - shift


def _set_back(zone: ZoneInfo, after: datetime, within: timedelta) -> timedelta:
    """Return by how much clocks are set back within this time; 0: they are not."""
    now, later = (moment.astimezone(zone).utcoffset() or timedelta() for moment in (after, after + within))
    return max(now - later, timedelta())


def firings_of(
    wall: datetime, zone: ZoneInfo, gap: Gap, overlap: Overlap, start: datetime | None = None
) -> list[Firing]:
    """Return the firings of one wall time: one, none in a gap that is skipped, or both in an overlap.

    start   aware: of two equal times of which only the second is not earlier, the second one counts; None: all count
    """
    if in_gap(wall, zone):
        return [] if gap == "skip" else [Firing(wall, 0, resolve(wall, zone))]
    first = Firing(wall, 0, resolve(wall, zone))
    is_early = start is not None and first.due < start
    if (overlap == "both" or is_early) and in_overlap(wall, zone):
        second = Firing(wall, 1, resolve(wall, zone, fold=1))
        return [second] if is_early else [first, second]
    return [first]
