"""Compare time zone databases: the UTC offsets that this process, the executors' Python and their Java compute.

Python takes zones from the system or the package tzdata, Java from its own files. Two versions may differ in a few
zones, typically by an hour for some months. Due times would then be wrong, and there would be no error.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F

from ...calendars.wall_time import to_zone
from ..config import BadSettings

FIRST, LAST = 0, 2_840_140_800  # the compared period, 1970 to 2060, in seconds since 1970
WEEK = 7 * 86_400

Offsets = tuple[tuple[int, int], ...]  # (instant in seconds since 1970, offset from UTC in seconds)


def offsets(zone: str) -> Offsets:
    """Return the offsets of a zone once a week, and just before and after each change. Raises BadTimeZone."""
    weeks = range(FIRST, LAST, WEEK)
    instants = {*weeks}
    for first in weeks:
        if offset_at(zone, first) != offset_at(zone, first + WEEK):
            instants |= _around_change(zone, first, first + WEEK)
    return tuple((instant, offset_at(zone, instant)) for instant in sorted(instants))


def offset_at(zone: str, instant: int) -> int:
    """Return the offset from UTC in seconds at an instant, as this process's Python computes it. Raises BadTimeZone."""
    moment = datetime.fromtimestamp(instant, UTC).astimezone(to_zone(zone))
    return round((moment.utcoffset() or timedelta()).total_seconds())


def _around_change(zone: str, low: int, high: int) -> set[int]:
    """Return the last second before the offset changes, and the next second. The offsets at low and high differ."""
    before = offset_at(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset_at(zone, middle) == before else (low, middle)
    return {low, high}


def java_offsets(zones: Sequence[tuple[str, Offsets]], row: Column) -> Column:
    """Return a map column: zone -> the offsets that Java computes at the instants of `zones`.

    row   any numeric column of the frame without nulls. Its values do not matter
    """

    def computed(zone: str, expected: Offsets) -> Column:
        instants = F.transform(F.lit([instant for instant, _ in expected]), lambda each: each + row - row)
        return F.transform(instants, lambda each: F.unix_seconds(
            F.from_utc_timestamp(F.timestamp_seconds(each), zone)) - each)  # fmt: skip

    # `row - row` is 0. Without a column, Spark would evaluate the constant expression on the driver.
    return F.create_map(*(part for zone, expected in zones for part in (F.lit(zone), computed(zone, expected))))


def check_java(spark: SparkSession, zones: Iterable[str]) -> None:
    """Raise BadSettings if the driver's Java does not know one of these zones, which Python knows."""
    for zone in zones:
        try:
            spark.sql("SELECT from_utc_timestamp(timestamp_seconds(0), :zone)", {"zone": zone}).collect()
        except Exception as error:  # the class depends on whether Spark plans the query here or on a server
            if zone not in str(error):
                raise
            raise BadSettings(
                f"Java has no time zone {zone!r}, though Python has it; an audit's weeks are computed by Java. Update "
                "Java and its time zone data, or use an equivalent zone that Java knows."
            ) from error


def difference(expected: Offsets, found: Sequence[int]) -> str:
    """Return the first difference as text; "" if there is none. found: offsets at the instants of `expected`."""
    for (instant, offset), other in zip(expected, found, strict=True):
        if other != offset:
            moment = datetime.fromtimestamp(instant, UTC)
            return f"{_text(other)} instead of {_text(offset)} at {moment:%Y-%m-%dT%H:%MZ}"
    return ""


def _text(offset: int) -> str:
    hours, minutes = divmod(abs(offset) // 60, 60)
    return f"{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}"
