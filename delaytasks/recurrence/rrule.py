"""Recurrence rules of iCalendar (RFC 5545), parsed by the library python-dateutil. Some rules are refused.

Occurrences are computed as wall times and resolved with zoneinfo, because dateutil's own zones are an hour early in a
gap. A time in a gap runs at the end of the gap, as for cron; RFC 5545 would shift it by the length of the gap.
"""

import calendar
import functools
import math
import re
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from dateutil import rrule as dateutil_rrule

from ..calendars.wall_time import resolve
from ..exceptions import BadSchedule, short_repr
from .wall_times import Firing, Gap, Overlap, next_firing

MAX_LENGTH = 1000
MAX_COUNT = 10_000  # a rule with COUNT is read from its start in each process
LAST_YEARS = 100  # a rule ends this many years after its start
SEARCHED_DAYS = 41 * 366  # 29 February on a given weekday may take 40 years
MAX_PERIODS = 100_000  # the most that one search reads, which takes half a second
MAX_CPU_SECONDS = 5.0  # limit of one search, because some periods take long to read
_PERIODS_A_YEAR = {"YEARLY": 1, "MONTHLY": 12, "WEEKLY": 53, "DAILY": 366}
_WEEKDAYS = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
_PERIODS = {
    "WEEKLY": timedelta(weeks=1), "DAILY": timedelta(days=1), "HOURLY": timedelta(hours=1),
    "MINUTELY": timedelta(minutes=1),
}  # fmt: skip
_FREQUENCIES = ("YEARLY", "MONTHLY", *_PERIODS)
_PARTS = {
    "FREQ", "UNTIL", "COUNT", "INTERVAL", "WKST", "BYSETPOS", "BYMONTH", "BYMONTHDAY", "BYYEARDAY", "BYWEEKNO",
    "BYDAY", "BYHOUR", "BYMINUTE", "BYSECOND",
}  # fmt: skip
_UNTIL = re.compile(r"\d{8}T\d{6}Z?", re.ASCII)


class RRule:
    """The times of a recurrence rule in a zone.

    text    such as "FREQ=MONTHLY;BYDAY=-1FR", with or without "RRULE:" before it
    start   naive: the wall time DTSTART, which is the first occurrence if it matches the rule. With fold=1, it is the
            second of two equal times

    Raises BadSchedule.
    """

    fixed = True

    def __init__(
        self, text: str, zone: ZoneInfo, *, start: datetime, gap: Gap = "run", overlap: Overlap = "once"
    ) -> None:
        parts = check(text)
        self.text, self.zone, self.start = _as_text(parts), zone, _next_second(start.replace(tzinfo=None, fold=0))
        self.gap, self.overlap, self.begin = gap, overlap, resolve(self.start, zone, fold=start.fold)
        _check_days(parts, self.start)
        self.until = _until(parts, zone)
        self._occurrences = _occurrences(_as_text(parts, without={"UNTIL"}), self.start)
        if next(self._occurrences.walls_from(self.start), None) is None:
            raise _no_such_time(parts, self.start)

    def next_after(self, moment: datetime) -> Firing | None:
        """Return the first firing later than the moment, or None after COUNT, UNTIL or 100 years."""
        found = next_firing(self._occurrences.walls_from, self.zone, moment, self.gap, self.overlap, self.begin)
        return None if found is None or (self.until is not None and found.due > self.until) else found


class SearchTooLong(Exception):
    """A search read the most periods allowed and found no time."""


class Search(tuple[int, ...]):
    """The BYSETPOS values of a rule, which also limit dateutil's search: dateutil calls bool() on them in each period.

    Without a limit, dateutil would search up to the year 9999 for a time that never comes, which takes minutes.
    """

    _most: int
    _left: int
    _until: float

    def __new__(cls, values: Iterable[int], parts: Mapping[str, str]) -> "Search":
        self = super().__new__(cls, values)
        a_year = _PERIODS_A_YEAR.get(parts["FREQ"], MAX_PERIODS)
        self._most = a_year * LAST_YEARS // int(parts.get("INTERVAL", "1")) + 2
        self.begin()
        return self

    def begin(self) -> None:
        self._left, self._until = min(self._most, MAX_PERIODS), time.thread_time() + MAX_CPU_SECONDS

    def __bool__(self) -> bool:
        self._left -= 1
        if self._left < 0 or (self._left % 256 == 0 and time.thread_time() > self._until):
            raise SearchTooLong
        return len(self) > 0


class Occurrences:
    """The wall times of a rule. If it can, a query continues where the last one ended, not at the rule's start."""

    def __init__(self, parts: Mapping[str, str], start: datetime) -> None:
        self._parts, self._start = parts, start
        self._text = _as_text(parts, without={"COUNT", "UNTIL"})
        self._count = int(parts["COUNT"]) if "COUNT" in parts else None
        self._period = int(parts.get("INTERVAL", "1")), parts["FREQ"]
        self._lock = threading.Lock()
        self._begin(start)

    def walls_from(self, wall: datetime) -> Iterator[datetime]:
        """Yield the wall times from `wall` on."""
        with self._lock:
            self._forget_before(wall)
        while (found := self._first_from(wall)) is not None:
            yield found
            wall = found + timedelta(seconds=1)

    def _begin(self, start: datetime) -> None:
        rule = _rule(self._text, start, self._start)
        self._search = rule._bysetpos = Search(rule._bysetpos or (), self._parts)
        self._iterator: Iterator[datetime] = islice(rule, self._count)
        self._recent: list[datetime] = []  # times that were read and that a query may want again, ascending
        self._known_from = self._read_to = start  # _recent has all times in between; for earlier ones, begin again

    def _forget_before(self, wall: datetime) -> None:
        number = bisect_left(self._recent, wall)
        if number:
            self._known_from = self._recent[number - 1] + timedelta(seconds=1)
            del self._recent[:number]

    def _first_from(self, wall: datetime) -> datetime | None:
        with self._lock:
            if max(wall, self._start) < self._known_from or (
                self._read_to < wall and self._read_to < self._last_anchor_until(wall)
            ):
                self._begin(self._last_anchor_until(wall))
            position = bisect_left(self._recent, wall)
            while position == len(self._recent):
                found = self._read()
                if found is None:
                    return None
                self._recent.append(found)
                self._read_to = found
                position = bisect_left(self._recent, wall, lo=position)
            return self._recent[position]

    def _read(self) -> datetime | None:
        self._search.begin()
        try:
            return next(self._iterator, None)
        except (SearchTooLong, ValueError):  # dateutil: it has found that no time comes
            self._begin(self._start)  # an iterator that has raised would only report its end
            raise _no_such_time(self._parts, self._start) from None

    def _last_anchor_until(self, wall: datetime) -> datetime:
        """Return the last time up to `wall` that is whole periods after the start, or the start if COUNT is given."""
        interval, frequency = self._period
        if self._count is not None or wall <= self._start:
            return self._start
        if frequency in _PERIODS:
            period = interval * _PERIODS[frequency]
            return self._start + (wall - self._start) // period * period
        months = interval * (12 if frequency == "YEARLY" else 1)
        first = self._start.year * 12 + self._start.month - 1
        for month in range(first + (wall.year * 12 + wall.month - 1 - first) // months * months, first, -months):
            with suppress(ValueError):  # the month has no such day
                found = self._start.replace(year=month // 12, month=month % 12 + 1)
                if found <= wall:
                    return found
        return self._start


@functools.lru_cache(maxsize=1000)
def _occurrences(text: str, start: datetime) -> Occurrences:
    return Occurrences(check(text), start)


def _next_second(start: datetime) -> datetime:
    """Round up to a whole second: iCalendar has no fractions of a second."""
    return start.replace(microsecond=0) + timedelta(seconds=1 if start.microsecond else 0)


def _rule(text: str, start: datetime, first: datetime) -> dateutil_rrule.rrule:
    """Return dateutil's rule from `start` on, up to 100 years after `first`."""
    try:
        last = first.replace(year=first.year + LAST_YEARS, day=min(first.day, 28))
        rule = dateutil_rrule.rrulestr(f"RRULE:{text};UNTIL={last:%Y%m%dT%H%M%S}", dtstart=start)
        assert isinstance(rule, dateutil_rrule.rrule)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadSchedule(f"rrule is {text!r}: {error}.") from None
    return rule


def _no_such_time(parts: Mapping[str, str], start: datetime) -> BadSchedule:
    return BadSchedule(
        f"rrule is {_as_text(parts)!r}: no such time comes within {LAST_YEARS} years of its start, {start.isoformat()},"
        f" or none is found in {MAX_PERIODS:,} periods of FREQ={parts['FREQ']}. Give another rule."
    )


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
            known = ", ".join(sorted(_PARTS))
            raise BadSchedule(f"rrule has {part!r}: each part must be NAME=VALUE, with one of these names: {known}.")
        if name in parts:
            raise BadSchedule(f"rrule has {name} twice.")
        parts[name] = value
    if parts.get("FREQ") == "SECONDLY":
        raise BadSchedule("rrule has FREQ=SECONDLY: give every= instead, a number of seconds.")
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
    for name, highest in (("COUNT", MAX_COUNT), ("INTERVAL", 1_000_000)):
        value = parts.get(name, "1")
        if not (value.isascii() and value.isdigit() and 1 <= int(value) <= highest):
            raise BadSchedule(f"rrule has {name}={value}: give a whole number from 1 to {highest:,}.")
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
    """Refuse what RFC 5545 forbids, and what dateutil interprets differently from RFC 5545 or libical."""
    frequency, by = parts["FREQ"], {name for name in parts if name.startswith("BY")}
    problems = {
        "COUNT and UNTIL exclude each other": {"COUNT", "UNTIL"} <= parts.keys(),
        "BYSETPOS needs another BY part": by == {"BYSETPOS"},
        "BYSETPOS with FREQ=WEEKLY is not supported": "BYSETPOS" in by and frequency == "WEEKLY",
        "BYWEEKNO needs FREQ=YEARLY": "BYWEEKNO" in by and frequency != "YEARLY",
        "BYWEEKNO needs BYDAY": "BYWEEKNO" in by and "BYDAY" not in by,
        "BYWEEKNO with INTERVAL is not supported": "BYWEEKNO" in by and parts.get("INTERVAL", "1") != "1",
        "BYYEARDAY is not allowed with FREQ=DAILY, WEEKLY or MONTHLY": (
            "BYYEARDAY" in by and frequency in ("DAILY", "WEEKLY", "MONTHLY")
        ),
        "BYMONTHDAY is not allowed with FREQ=WEEKLY": "BYMONTHDAY" in by and frequency == "WEEKLY",
        "BYMONTHDAY with FREQ=YEARLY needs BYMONTH": (
            frequency == "YEARLY" and "BYMONTHDAY" in by and "BYMONTH" not in by
        ),
        "a number in BYDAY needs FREQ=MONTHLY or YEARLY": (
            re.search(r"\d", parts.get("BYDAY", "")) is not None and frequency not in ("MONTHLY", "YEARLY")
        ),
        "BYDAY has days with and without a number: make two schedules": (
            re.search(r"\d", parts.get("BYDAY", "")) is not None
            and re.search(r"(^|,)[A-Z]", parts.get("BYDAY", "")) is not None
        ),
        "a number in BYDAY is not allowed with BYWEEKNO": (
            re.search(r"\d", parts.get("BYDAY", "")) is not None and "BYWEEKNO" in by
        ),
    }
    times = math.prod(parts.get(name, "").count(",") + 1 for name in ("BYHOUR", "BYMINUTE", "BYSECOND"))
    problems["more than 100 times a day need FREQ=WEEKLY, DAILY, HOURLY or MINUTELY"] = (
        times > 100 and frequency in ("YEARLY", "MONTHLY")  # a process may have to read a year of them
    )
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
    try:
        return wall.replace(tzinfo=UTC if parts["UNTIL"].endswith("Z") else zone, fold=1).astimezone(UTC)
    except OverflowError:
        raise BadSchedule(f"rrule has UNTIL={parts['UNTIL']}: leave it out for a rule without end.") from None
