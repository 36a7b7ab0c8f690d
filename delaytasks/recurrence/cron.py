"""Cron expressions as in Debian's cron, parsed by the library cronsim. Ambiguous ones are refused.

If neither the minute nor the hour begins with a star, the expression means fixed wall times: by default it runs once at
a time that clocks show twice, and at the end of a gap for a time that they skip. Others run whenever clocks show a
matching time, so that steps follow elapsed time.
"""

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..exceptions import BadSchedule, short_repr
from .wall_times import Firing, Gap, Overlap, next_firing

FIELDS = ("minute", "hour", "day of month", "month", "day of week")
MAX_LENGTH = 255
SEARCHED_YEARS = 50  # as in cronsim
_WHOLE = {  # ranges that cover every value; without a star, the expression would count as a fixed time
    "minute": {(0, 59)}, "hour": {(0, 23)}, "day of month": {(1, 31)}, "month": {(1, 12)},
    "day of week": {(0, 6), (0, 7), (1, 7)},
}  # fmt: skip
_NAMES = {name: n for n, name in enumerate(("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))} | {
    name: n
    for n, name in enumerate(
        ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"), start=1
    )
}
_RANGE = re.compile(r"([0-9A-Z]+)-([0-9A-Z]+)", re.ASCII)
_LAST_WITH_STEP = re.compile(r"LW?/", re.ASCII)


class Cron:
    """The times of a cron expression in a zone.

    start     aware: earlier times do not count; None: all count
    gap       for a fixed time that clocks skip: "run" at the end of the gap, or "skip"
    overlap   for a fixed time that clocks show twice: "once", the first time, or "both"

    Raises BadSchedule.
    """

    def __init__(
        self, expression: str, zone: ZoneInfo, *, gap: Gap = "run", overlap: Overlap = "once",
        start: datetime | None = None,
    ) -> None:  # fmt: skip
        self.expression = check(expression)
        self.zone, self.gap, self.overlap, self.start = zone, gap, overlap, start
        minute, hour, *_ = self.expression.split()
        self.fixed = not minute.startswith("*") and not hour.startswith("*")

    def next_after(self, moment: datetime) -> Firing | None:
        """Return the first firing later than the moment, or None if there is none in 50 years."""
        moment = moment if self.start is None else max(moment, self.start - timedelta(microseconds=1))
        gap, overlap = (self.gap, self.overlap) if self.fixed else ("skip", "both")
        return next_firing(self._walls_from, self.zone, moment, gap, overlap)

    def _walls_from(self, first: datetime) -> Iterator[datetime]:
        # cronsim gives up after 50 years without a match, but clocks may skip all times that match.
        last = first.year + SEARCHED_YEARS
        return takewhile(lambda wall: wall.year <= last, CronSim(self.expression, first))


def check(expression: object) -> str:
    """Return the expression in capitals with single spaces. Raises BadSchedule."""
    if not isinstance(expression, str) or len(expression) > MAX_LENGTH:
        raise BadSchedule(f"cron is {short_repr(expression)}: give a text such as '30 2 * * mon-fri'.")
    parts = expression.upper().split()
    if expression.strip().startswith("@"):
        raise BadSchedule(f"cron is {expression!r}: names such as @daily are not supported; write '0 0 * * *'.")
    if len(parts) != len(FIELDS):
        raise BadSchedule(
            f"cron is {expression!r}, with {len(parts)} fields; write five: {', '.join(FIELDS)}. "
            "For seconds use every=."
        )
    for name, part in zip(FIELDS, parts, strict=True):
        _check_field(name, part)
    return _checked_by_cronsim(" ".join(parts), expression)


def _check_field(name: str, field: str) -> None:
    parts = field.split(",")
    if len(parts) > 1 and "*" in parts:
        raise BadSchedule(f"The {name} {field!r} of cron combines '*' with other values: write '*' alone.")
    for part in parts:
        if _LAST_WITH_STEP.match(part):
            raise BadSchedule(f"The {name} {part!r} of cron has a step after the last day, which means nothing.")
        _check_range(name, part)


def _check_range(name: str, part: str) -> None:
    values, slash, step = part.partition("/")
    match = _RANGE.fullmatch(values)
    if match is None:
        return
    first, last = (_NAMES.get(text, int(text) if text.isdigit() else None) for text in match.groups())
    if first is None or last is None:
        return  # cronsim reports the error
    if first >= last:
        kind = "has only one value" if first == last else "is backwards"
        raise BadSchedule(f"The {name} {part!r} of cron {kind}: write one value, or a range from lower to higher.")
    if (first, last) in _WHOLE[name]:
        raise BadSchedule(f"The {name} {part!r} of cron means every value: write '*{slash}{step}'.")


def _checked_by_cronsim(text: str, given: str) -> str:
    try:
        found = next(CronSim(text, datetime(2000, 1, 1)), None)  # noqa: DTZ001  a wall time
    except CronSimError as error:
        if str(error) != "Bad day-of-month" or not _has_days_in_another_month(text):
            raise BadSchedule(f"cron is {given!r}: {error}.") from None
        found = None
    if found is None:
        raise BadSchedule(f"cron is {given!r}: no such day comes in 50 years.")
    return text


def _has_days_in_another_month(text: str) -> bool:
    minute, hour, day, _, weekday = text.split()
    with suppress(CronSimError):
        CronSim(f"{minute} {hour} {day} * {weekday}", datetime(2000, 1, 1))  # noqa: DTZ001  a wall time
        return True
    return False
