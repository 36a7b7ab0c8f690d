"""Convert wall times (naive times, as clocks in a zone show them) to instants, including around clock changes.

A *gap* is a period that clocks skip, an *overlap* one that they show twice.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ..exceptions import BadTimeZone, short_repr


def to_zone(zone: str | ZoneInfo) -> ZoneInfo:
    """Return the zone with this IANA name. Raises BadTimeZone."""
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone
    try:
        if not isinstance(zone, str):
            raise TypeError
        return ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError, OSError):  # OSError: the name of a folder, such as "Europe"
        raise BadTimeZone(
            f"{short_repr(zone)} is not a time zone: give an IANA name, for example 'Europe/Berlin' or 'UTC'."
        ) from None


def in_gap(wall: datetime, zone: tzinfo) -> bool:
    """Return whether clocks in the zone never show this naive time."""
    instant = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    return instant.astimezone(zone).replace(tzinfo=None, fold=0) != wall.replace(fold=0)


def in_overlap(wall: datetime, zone: tzinfo) -> bool:
    """Return whether clocks in the zone show this naive time twice."""
    first, second = (wall.replace(tzinfo=zone, fold=fold).utcoffset() for fold in (0, 1))
    return first != second and not in_gap(wall, zone)


def resolve(wall: datetime, zone: tzinfo, *, fold: int = 0) -> datetime:
    """Return the instant, in UTC, at which clocks in the zone show this naive time.

    fold   for a time in an overlap: 0 the first instant, 1 the second

    A time in a gap means the instant at which the gap ends.
    """
    if in_gap(wall, zone):
        return _end_of_gap(wall, zone)
    return wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)


def _end_of_gap(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant after the gap, by bisection to the second: zones change at whole seconds."""
    low = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # uses the offset after the gap: is before the gap
    high = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)  # uses the offset before the gap: is after the gap
    before = low.astimezone(zone).utcoffset()
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        if middle.astimezone(zone).utcoffset() == before:
            low = middle
        else:
            high = middle
    return high
