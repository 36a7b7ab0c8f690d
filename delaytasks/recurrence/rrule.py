"""Recurrence rules of iCalendar (RFC 5545), read by the library python-dateutil; some are refused.

Occurrences are computed as wall times and resolved with zoneinfo, because dateutil's own zones are an hour early in a
gap. A time in a gap runs at the end of the gap, as for cron; RFC 5545 would shift it by the length of the gap.
"""

import calendar
import functools
import re
import threading
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil import rrule as dateutil_rrule

from ..exceptions import BadSchedule, short_repr
from .wall_times import Firing, Gap, Overlap, next_firing

MAX_LENGTH = 1000
LAST_YEARS = 100  # a rule ends so many years after its start
SEARCHED_DAYS = 41 * 366  # 29 February on a given weekday may take 40 years
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_FREQUENCIES = ("YEARLY", "MONTHLY", "WEEKLY", "DAILY", "HOURLY", "MINUTELY", "SECONDLY")
_PARTS = {
    "FREQ", "UNTIL", "COUNT", "INTERVAL", "WKST", "BYSETPOS", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO",
    "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND",
}  # fmt: skip
_UNTIL = re.compile(r"\d{8}T\d{6}Z?", re.ASCII)


class RRule:
    """The times of a recurrence rule in a zone.

    text    such as "FREQ=MONTHLY;BYDAY=-1FR", with or without "RRULE:" before it
    start   naive: the wall time DTSTART, which is the first occurrence if it matches the rule

    Raises BadSchedule.
    """

    def __init__(
        self, text: str, zone: ZoneInfo, *, start: datetime, gap: Gap = "run", overlap: Overlap = "once"
    ) -> None:
        parts = check(text)
        self.text, self.zone, self.start = _as_text(parts), zone, start.replace(microsecond=0, tzinfo=None, fold=0)
        self.gap, self.overlap = gap, overlap
        _check_days(parts, self.start)
        self.until = _until(parts, zone)
        count = parts.get("COUNT")
        self._occurrences = _occurrences(
            _as_text(parts, without={"COUNT", "UNTIL"}), self.start, None if count is None else int(count)
        )

    def next_after(self, moment: datetime) -> Firing | None:
        """Return the first firing later than the moment, or None after COUNT, UNTIL or 100 years."""
        found = next_firing(self._occurrences.walls_from, self.zone, moment, self.gap, self.overlap)
        return None if found is None or (self.until is not None and found.due > self.until) else found


class Occurrences:
    """The wall times of a rule. A query for a later time than the last one continues from there."""

    def __init__(self, rule: dateutil_rrule.rrule, count: int | None) -> None:
        self._rule, self._count = rule, count
        self._lock = threading.Lock()
        self._restart()

    def _restart(self) -> None:
        self._iterator: Iterator[datetime] = islice(self._rule, self._count)
        self._recent: list[datetime] = []  # what was read already and may be asked for again, ascending
        self._forgotten: datetime | None = None

    def walls_from(self, wall: datetime) -> Iterator[datetime]:
        """Yield the wall times from `wall` on."""
        with self._lock:
            if self._forgotten is not None and wall <= self._forgotten:
                self._restart()
            while not self._recent or self._recent[0] < wall:
                if self._recent:
                    self._forgotten = self._recent.pop(0)
                if not self._recent and not self._read():
                    return
        position = wall
        while (found := self._first_from(position)) is not None:
            yield found
            position = found + timedelta(seconds=1)

    def _read(self) -> bool:
        for wall in islice(self._iterator, 1):
            self._recent.append(wall)
            return True
        return False

    def _first_from(self, wall: datetime) -> datetime | None:
        with self._lock:
            while True:
                for each in self._recent:
                    if each >= wall:
                        return each
                if not self._read():
                    return None


@functools.lru_cache(maxsize=1000)
def _occurrences(text: str, start: datetime, count: int | None) -> Occurrences:
    try:
        last = start.replace(year=start.year + LAST_YEARS, day=min(start.day, 28))
        rule = dateutil_rrule.rrulestr(f"RRULE:{text};UNTIL={last:%Y%m%dT%H%M%S}", dtstart=start)
        assert isinstance(rule, dateutil_rrule.rrule)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadSchedule(f"rrule is {text!r}: {error}.") from None
    return Occurrences(rule, count)


def _check_days(parts: Mapping[str, str], start: datetime) -> None:
    """Raise BadSchedule if no day of the rule ever comes: dateutil would look for one up to the year 9999."""
    months, days, year_days = (_numbers(parts, name) for name in ("BYMONTH", "BYMONTHDAY", "BYYEARDAY"))
    weekdays = {_WEEKDAYS.index(day[-2:]) for day in parts["BYDAY"].split(",")} if "BYDAY" in parts else set()
    step = int(parts.get("INTERVAL", "1")) if parts["FREQ"] == "DAILY" else 1
    for number in range(0, SEARCHED_DAYS * step, step):
        try:
            day = start + timedelta(days=number)
        except OverflowError:
            break
        last = calendar.monthrange(day.year, day.month)[1]
        year_day, year_length = day.timetuple().tm_yday, 366 if calendar.isleap(day.year) else 365
        if (
            (not months or day.month in months)
            and (not days or not days.isdisjoint({day.day, day.day - last - 1}))
            and (not year_days or not year_days.isdisjoint({year_day, year_day - year_length - 1}))
            and (not weekdays or day.weekday() in weekdays)
        ):
            return
    raise BadSchedule(f"rrule is {_as_text(parts)!r}: no such day comes after its start, {start.isoformat()}.")


def _numbers(parts: Mapping[str, str], name: str) -> set[int]:
    return {int(value) for value in parts[name].split(",")} if name in parts else set()


def check(text: object) -> dict[str, str]:
    """Return the parts of a rule by name. Raises BadSchedule, which names the refused part."""
    if not isinstance(text, str) or len(text) > MAX_LENGTH:
        raise BadSchedule(f"rrule is {short_repr(text)}: give a text such as 'FREQ=MONTHLY;BYDAY=-1FR'.")
    parts: dict[str, str] = {}
    for part in text.strip().upper().removeprefix("RRULE:").split(";"):
        name, equals, value = part.partition("=")
        if name not in _PARTS or not equals or not value:
            raise BadSchedule(f"rrule has {part!r}: each part is NAME=VALUE, of {', '.join(sorted(_PARTS))}.")
        if name in parts:
            raise BadSchedule(f"rrule has {name} twice.")
        parts[name] = value
    if parts.get("FREQ") not in _FREQUENCIES:
        raise BadSchedule(f"rrule needs FREQ, one of {', '.join(_FREQUENCIES)}.")
    _check_numbers(parts)
    _check_weekdays(parts)
    _check_combinations(parts)
    return parts


def _check_weekdays(parts: Mapping[str, str]) -> None:
    for day in parts["BYDAY"].split(",") if "BYDAY" in parts else ():
        if not re.fullmatch(r"([+-]?\d{1,2})?(MO|TU|WE|TH|FR|SA|SU)", day, re.ASCII):
            raise BadSchedule(f"rrule has {day!r} in BYDAY: give days such as MO, or 1MO and -1FR.")


def _check_numbers(parts: Mapping[str, str]) -> None:
    for name in ("COUNT", "INTERVAL"):
        value = parts.get(name, "1")
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= 1_000_000):
            raise BadSchedule(f"rrule has {name}={value}: give a whole number from 1 to 1,000,000.")
    limits = {"BYSECOND": (0, 59), "BYMINUTE": (0, 59), "BYHOUR": (0, 23), "BYMONTH": (1, 12), "BYMONTHDAY": (-31, 31),
              "BYYEARDAY": (-366, 366), "BYWEEKNO": (-53, 53), "BYSETPOS": (-366, 366)}  # fmt: skip
    for name, (lowest, highest) in limits.items():
        for value in parts[name].split(",") if name in parts else ():
            if not re.fullmatch(r"[+-]?\d{1,3}", value, re.ASCII) or not lowest <= int(value) <= highest:
                raise BadSchedule(f"rrule has {value!r} in {name}: give numbers from {lowest} to {highest}.")
            if int(value) == 0 and lowest < 0:
                raise BadSchedule(f"rrule has 0 in {name}: counting begins with 1, or with -1 from the end.")
    if "UNTIL" in parts and not _UNTIL.fullmatch(parts["UNTIL"]):
        raise BadSchedule(
            f"rrule has UNTIL={parts['UNTIL']}: give a date with a time, such as 20301231T235959Z for UTC or "
            "20301231T235959 for the schedule's zone."
        )


def _check_combinations(parts: Mapping[str, str]) -> None:
    """Refuse what RFC 5545 forbids, and what dateutil reads otherwise than RFC 5545 or libical."""
    frequency, by = parts["FREQ"], {name for name in parts if name.startswith("BY")}
    problems = {
        "COUNT and UNTIL exclude each other": {"COUNT", "UNTIL"} <= parts.keys(),
        "BYSETPOS needs another BY part": by == {"BYSETPOS"},
        "BYSETPOS with FREQ=WEEKLY is not supported": "BYSETPOS" in by and frequency == "WEEKLY",
        "BYWEEKNO is for FREQ=YEARLY": "BYWEEKNO" in by and frequency != "YEARLY",
        "BYWEEKNO needs BYDAY": "BYWEEKNO" in by and "BYDAY" not in by,
        "BYWEEKNO with INTERVAL is not supported": "BYWEEKNO" in by and parts.get("INTERVAL", "1") != "1",
        "BYYEARDAY is not for FREQ=DAILY, WEEKLY or MONTHLY": (
            "BYYEARDAY" in by and frequency in ("DAILY", "WEEKLY", "MONTHLY")
        ),
        "BYMONTHDAY is not for FREQ=WEEKLY": "BYMONTHDAY" in by and frequency == "WEEKLY",
        "BYMONTHDAY with FREQ=YEARLY needs BYMONTH": (
            frequency == "YEARLY" and "BYMONTHDAY" in by and "BYMONTH" not in by
        ),
        "a number in BYDAY is for FREQ=MONTHLY or YEARLY": (
            re.search(r"\d", parts.get("BYDAY", "")) is not None and frequency not in ("MONTHLY", "YEARLY")
        ),
        "a number in BYDAY does not go with BYWEEKNO": (
            re.search(r"\d", parts.get("BYDAY", "")) is not None and "BYWEEKNO" in by
        ),
    }
    for problem, found in problems.items():
        if found:
            raise BadSchedule(f"rrule is {_as_text(parts)!r}: {problem}.")


def _as_text(parts: Mapping[str, str], *, without: frozenset[str] | set[str] = frozenset()) -> str:
    return ";".join(f"{name}={value}" for name, value in parts.items() if name not in without)


def _until(parts: Mapping[str, str], zone: ZoneInfo) -> datetime | None:
    if "UNTIL" not in parts:
        return None
    try:
        wall = datetime.strptime(parts["UNTIL"].rstrip("Z"), "%Y%m%dT%H%M%S")  # noqa: DTZ007  a wall time
    except ValueError:
        raise BadSchedule(f"rrule has UNTIL={parts['UNTIL']}, which is not a date.") from None
    return wall.replace(tzinfo=UTC if parts["UNTIL"].endswith("Z") else zone, fold=1).astimezone(UTC)
