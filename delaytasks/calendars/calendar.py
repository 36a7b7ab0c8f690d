"""Calendar: open hours, and working time counted in them."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from itertools import accumulate, islice
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ..exceptions import BadCalendar, BadInput, NoOpenHours, short_repr
from ..validators import check_aware
from . import public_holidays, registry
from .durations import WorkingDays
from .opening_hours import MINUTES_A_DAY, Windows, parse_week, parse_windows
from .wall_time import resolve, to_zone

HORIZON_DAYS = 20 * 366  # no calculation reads more days than these
ZERO = timedelta()
ONE_DAY = timedelta(days=1)
EARLIEST, LATEST = date.min, date.max


class CalendarDate(NamedTuple):
    """One day of a calendar: its open hours, and which rule they come from."""

    day: date
    windows: Windows
    source: str  # "hours", "holiday", "exception" (in the definition) or "staff"
    note: str  # the name of the holiday, or the note of staff


class Span(NamedTuple):
    """Uninterrupted open time, from `opens` to `closes` in UTC."""

    opens: datetime
    closes: datetime


class Calendar:
    """Open hours in a time zone, with holidays and exceptions. Counts working time.

    name        str, unique in the project; staff's exceptions are stored under it
    tz          IANA name of the zone, or a ZoneInfo
    hours       {days: windows}: {"mon-fri": "09:00-12:00,13:00-17:00", "sat": "10:00-14:00"}. A window whose
                end is before its beginning, such as 22:00-06:00, ends on the next day. Days that are not
                named are closed
    holidays    closed days: a country and perhaps a region, as in ("DE", "BW"), or a collection of dates
    exceptions  {date: windows} for days with other hours than usual, "" for closed; also on holidays
    editable    whether staff may add exceptions in the admin; then calculations read the database

    Open time is elapsed time: a window from 00:00 to 24:00 has 23 or 25 hours on a day on which clocks are changed.
    If clocks skip an opening or closing time, the end of the gap is used. If they show it twice, the first time is
    used. A window belongs to the day on which it begins: a working day's night shift continues into a holiday.

    Calculations read at most 20 years of days. Methods take aware datetimes, and return them in the calendar's
    zone; open_times() returns UTC. They are synchronous: in async code call them with sync_to_async, or set
    editable=False.

    Raises BadCalendar and BadTimeZone.
    """

    def __init__(
        self,
        name: str,
        *,
        tz: str | ZoneInfo,
        hours: Mapping[str, str | Sequence[str]],
        holidays: Collection[str] | Collection[date] = (),
        exceptions: Mapping[date, str | Sequence[str]] | None = None,
        editable: bool = True,
    ) -> None:
        if not isinstance(name, str) or not 0 < len(name.strip()) <= 100:
            raise BadCalendar(f"A calendar's name is {short_repr(name)}: give 1 to 100 characters.")
        self.name, self.editable = name, editable
        self.zone = to_zone(tz)
        self._week = parse_week(hours)
        self._region, self._closed = _parse_holidays(holidays)
        self._exceptions = _parse_exceptions({} if exceptions is None else exceptions)
        registry.add(self)

    def __repr__(self) -> str:
        return f"Calendar({self.name!r}, tz={self.zone.key!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calendar) and self._definition() == other._definition()

    def __hash__(self) -> int:
        return hash((self.name, self.zone.key))

    def _definition(self) -> tuple[object, ...]:
        closed = tuple(sorted(self._closed))
        return self.name, self.zone.key, self._week, self._region, closed, self._exceptions, self.editable

    @property
    def max_open_time(self) -> timedelta:
        """The most open time within 20 years, the horizon of calculations. A longer duration has no end.

        Counted as if holidays were open days, and without staff's exceptions.
        """
        weekly = sum(window.closes - window.opens for day in self._week for window in day)
        more = sum(window.closes - window.opens for windows in self._exceptions.values() for window in windows)
        return timedelta(minutes=weekly * (HORIZON_DAYS // 7 + 1) + more)

    def has_open_time(self, moment: datetime, duration: timedelta) -> bool:
        """Return whether the 20 years after the moment have `duration` of open time. Ignores staff's exceptions."""
        spans = self._forward(_to_utc(moment), {})
        total = accumulate((closes - opens for opens, closes in spans), initial=ZERO)
        return any(each >= duration for each in total)

    # Days

    def date_info(self, day: date) -> CalendarDate:
        """Return the day's open hours, and which rule they come from.

        A datetime counts as its date in the calendar's zone. Raises NaiveDatetime, BadInput.
        """
        return self._date_info(self._to_day(day), self._stored_days())

    def is_working_day(self, day: date) -> bool:
        """Return whether the day has any open hours. Takes a datetime as date_info() does."""
        return bool(self.date_info(day).windows)

    def _stored_days(self) -> Mapping[date, tuple[Windows, str]]:
        return registry.stored_days(self.name) if self.editable else {}

    def _date_info(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> CalendarDate:
        if day in stored:
            windows, note = stored[day]
            return CalendarDate(day, windows, "staff", note)
        if day in self._exceptions:
            return CalendarDate(day, self._exceptions[day], "exception", "")
        holiday = self._holiday(day)
        if holiday is not None:
            return CalendarDate(day, (), "holiday", holiday)
        return CalendarDate(day, self._week[day.weekday()], "hours", "")

    def _holiday(self, day: date) -> str | None:
        if self._region is not None:
            return public_holidays.of_year(*self._region, day.year).get(day)
        return "" if day in self._closed else None

    # Working time

    def is_open(self, moment: datetime) -> bool:
        """Return whether the calendar is open at the moment. It is open at its opening, and closed at its closing.

        Raises NaiveDatetime.
        """
        moment = _to_utc(moment)
        return any(self._within(moment, moment + datetime.resolution))

    def add(self, moment: datetime, duration: timedelta | WorkingDays) -> datetime:
        """Return the moment after `duration` of open time.

        duration   timedelta of open time, or days(n) for n working days; a negative one is subtracted

        If the duration ends with the open hours, the result is the closing and not the next opening: with hours from
        9:00 to 17:00, 8 hours after Monday 9:00 is Monday 17:00. Outside open hours, a duration of 0 returns the next
        opening. Working days keep the time of day, even outside open hours; days(0) returns the moment itself. On a
        closed day they are counted from the next working day: days(1) after a Saturday is Tuesday.

        Raises NaiveDatetime, BadInput, and NoOpenHours if the result is beyond the calendar's horizon.
        """
        left = _check_duration(duration)
        if isinstance(left, WorkingDays):
            return self._add_days(moment, left.count)
        if left < ZERO:
            return self.subtract(moment, -left)
        moment = _to_utc(moment)
        for opens, closes in self._forward(moment):
            begin = max(opens, moment)
            if left <= closes - begin:
                return (begin + left).astimezone(self.zone)
            left -= closes - begin
        raise self._no_open_hours(moment)

    def subtract(self, moment: datetime, duration: timedelta | WorkingDays) -> datetime:
        """Return the moment from which `duration` of open time leads to this one: the mirror image of add().

        With hours from 9:00 to 17:00, 8 hours before Monday 17:00 is Monday 9:00. Outside open hours or at an opening,
        a duration of 0 returns the last closing. On a closed day, working days are counted from the last working day.

        Raises NaiveDatetime, BadInput and NoOpenHours.
        """
        left = _check_duration(duration)
        if isinstance(left, WorkingDays):
            return self._add_days(moment, -left.count)
        if left < ZERO:
            return self.add(moment, -left)
        moment = _to_utc(moment)
        for opens, closes in self._backward(moment):
            end = min(closes, moment)
            if left <= end - opens:
                return (end - left).astimezone(self.zone)
            left -= end - opens
        raise self._no_open_hours(moment)

    def between(self, start: datetime, end: datetime) -> timedelta:
        """Return the open time from `start` to `end`; negative if `end` is earlier.

        Raises NaiveDatetime, and NoOpenHours if they are more than 20 years apart.
        """
        start, end = _to_utc(start), _to_utc(end)
        if end < start:
            return -self.between(end, start)
        if end - start > ONE_DAY * (HORIZON_DAYS - 2):
            raise NoOpenHours(f"{start.isoformat()} and {end.isoformat()} are more than {HORIZON_DAYS:,} days apart.")
        total = ZERO
        for opens, closes in self._forward(start):
            if opens >= end:
                break
            total += min(closes, end) - max(opens, start)
        return total

    def open_times(self, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
        """Yield the open times between two moments as (opens, closes) in UTC, earliest first. Adjacent ones are joined.

        Raises NaiveDatetime.
        """
        start, end = _to_utc(start), _to_utc(end)
        found: tuple[datetime, datetime] | None = None
        for opens, closes in self._within(start, end):
            if found is not None and opens > found[1]:
                yield found
                found = None
            found = max(opens, start) if found is None else found[0], min(closes, end)
        if found is not None:
            yield found

    def next_opening(self, moment: datetime) -> datetime:
        """Return the first moment later than this one at which the calendar opens. Raises NaiveDatetime, NoOpenHours.

        To get the moment itself if the calendar is open, use add(moment, timedelta()).
        """
        moment = _to_utc(moment)
        touching = None
        for opens, closes in self._forward(moment):
            if opens > moment and opens != touching:
                return opens.astimezone(self.zone)
            touching = closes
        raise self._no_open_hours(moment)

    def next_closing(self, moment: datetime) -> datetime:
        """Return the first moment later than this one at which the calendar closes. Raises NaiveDatetime, NoOpenHours.

        Raises NoOpenHours also for a calendar that never closes.
        """
        moment = _to_utc(moment)
        end: datetime | None = None
        for opens, closes in self._forward(moment):
            if end is not None and opens > end:
                return end.astimezone(self.zone)
            end = closes
        raise self._no_open_hours(moment)

    # Working days

    def days_between(self, start: date, end: date) -> int:
        """Return the number of working days after `start` up to and including `end`; negative if `end` is earlier.

        A datetime counts as its date in the calendar's zone. Raises NaiveDatetime, BadInput, NoOpenHours.
        """
        first, last = self._to_day(start), self._to_day(end)
        if last < first:
            return -self.days_between(last, first)
        if (last - first).days > HORIZON_DAYS:
            raise NoOpenHours(f"{first} and {last} are more than {HORIZON_DAYS:,} days apart.")
        stored = self._stored_days()
        days = (first + ONE_DAY * n for n in range(1, (last - first).days + 1))
        return sum(bool(self._date_info(day, stored).windows) for day in days)

    def _to_day(self, value: date) -> date:
        if not isinstance(value, date):
            raise BadInput(f"{short_repr(value)} is not a date: give a datetime.date or an aware datetime.")
        return _to_utc(value).astimezone(self.zone).date() if isinstance(value, datetime) else value

    def _add_days(self, moment: datetime, count: int) -> datetime:
        local = _to_utc(moment).astimezone(self.zone)
        if count == 0:
            return local
        stored, step = self._stored_days(), ONE_DAY if count > 0 else -ONE_DAY
        working = (day for day in _days_from(local.date(), step) if self._date_info(day, stored).windows)
        day = next(islice(working, min(abs(count), HORIZON_DAYS), None), None)
        if day is None:
            raise self._no_open_hours(moment)
        return resolve(datetime.combine(day, local.time()), self.zone).astimezone(self.zone)

    # Spans of open time

    def _spans(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> list[Span]:
        """Return the day's open time, without the part that belongs to a window of the previous day."""
        covered = self._covered(day, stored)
        spans = [Span(max(span.opens, covered or span.opens), span.closes) for span in self._raw_spans(day, stored)]
        return [span for span in spans if span.opens < span.closes]

    def _covered(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> datetime | None:
        """Return the end of the previous day's window that extends into this day, or None."""
        earlier = day - ONE_DAY
        late = [window for window in self._date_info(earlier, stored).windows if window.closes > MINUTES_A_DAY]
        return max(span.closes for span in self._raw_spans(earlier, stored)) if late else None

    def _raw_spans(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> Iterator[Span]:
        midnight = datetime.combine(day, time())
        for window in self._date_info(day, stored).windows:
            yield Span(*(resolve(midnight + timedelta(minutes=minute), self.zone) for minute in window))

    def _forward(self, moment: datetime, stored: Mapping[date, tuple[Windows, str]] | None = None) -> Iterator[Span]:
        """Yield the spans that close after the moment, earliest first, up to the horizon.

        stored   days that staff have changed; None: read them
        """
        stored = self._stored_days() if stored is None else stored
        for day in _days_from(moment.astimezone(self.zone).date() - ONE_DAY, ONE_DAY):
            yield from (span for span in self._spans(day, stored) if span.closes > moment)

    def _within(self, start: datetime, end: datetime) -> Iterator[Span]:
        """Yield the spans that are open at some time between these moments, earliest first."""
        stored, last = self._stored_days(), self._last_day(end)
        for day in _days_from(start.astimezone(self.zone).date() - ONE_DAY, ONE_DAY):
            if day > last:
                return
            spans = self._spans(day, stored)
            yield from (span for span in spans if max(span.opens, start) < min(span.closes, end))

    def _backward(self, moment: datetime) -> Iterator[Span]:
        """Yield the spans that open before the moment, latest first, up to the horizon."""
        stored = self._stored_days()
        for day in _days_from(self._last_day(moment), -ONE_DAY):
            yield from (span for span in reversed(self._spans(day, stored)) if span.opens < moment)

    def _last_day(self, moment: datetime) -> date:
        """Return the last day that may have begun: tomorrow, because clocks may have been set back over midnight."""
        return moment.astimezone(self.zone).date() + ONE_DAY

    def _no_open_hours(self, moment: datetime) -> NoOpenHours:
        return NoOpenHours(
            f"The calendar {self.name!r} has no such opening, closing or working time within {HORIZON_DAYS:,} days of "
            f"{moment.isoformat()}: check its hours and exceptions, and the duration."
        )


def _check_duration(duration: timedelta | WorkingDays) -> timedelta | WorkingDays:
    if not isinstance(duration, timedelta | WorkingDays):
        raise BadInput(f"duration is {short_repr(duration)}: give a timedelta of open time, hours(8) or days(2).")
    return duration


def _days_from(day: date, step: timedelta) -> Iterator[date]:
    """Yield days from this one on, in steps of `step`, up to the horizon and within the years 2 to 9998."""
    for _ in range(HORIZON_DAYS):
        if not EARLIEST.year < day.year < LATEST.year:
            return
        yield day
        day += step


def _to_utc(moment: datetime) -> datetime:
    check_aware(moment)
    if not EARLIEST.year < moment.year < LATEST.year:
        raise BadInput(f"{moment.isoformat()} is outside the years from 2 to 9998.")
    return moment.astimezone(UTC)


def _to_date(day: object) -> date:
    if not isinstance(day, date) or isinstance(day, datetime):
        raise BadCalendar(f"{short_repr(day)} is not a date: give datetime.date values.")
    return day


def _parse_holidays(
    holidays: Collection[str] | Collection[date],
) -> tuple[tuple[str, str | None] | None, frozenset[date]]:
    """Return ((country, region), no dates), or (None, dates). Raises BadCalendar."""
    if isinstance(holidays, str):
        raise BadCalendar(f"holidays is {holidays!r}: give a tuple, for example ({holidays!r},).")
    given = list(holidays) if isinstance(holidays, Iterable) else None
    if given is not None and not any(isinstance(each, str) for each in given):
        return None, frozenset(map(_to_date, given))
    if given is None or len(given) > 2 or not all(isinstance(each, str) for each in given):
        raise BadCalendar(f"holidays is {short_repr(holidays)}: give a country and perhaps a region, or dates.")
    country, region = str(given[0]), str(given[1]) if len(given) == 2 else None
    public_holidays.check_region(country, region)
    return (country, region), frozenset()


def _parse_exceptions(exceptions: Mapping[date, str | Sequence[str]]) -> dict[date, Windows]:
    """Return {date: windows}. Raises BadCalendar."""
    if not isinstance(exceptions, Mapping):
        raise BadCalendar(
            f"exceptions is {short_repr(exceptions)}: give a dict such as {{date(2026, 12, 24): '09:00-12:00'}}."
        )
    return {_to_date(day): parse_windows(text) for day, text in exceptions.items()}
