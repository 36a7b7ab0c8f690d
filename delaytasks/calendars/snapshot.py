"""A calendar as plain data: for fingerprints, and for processes without Django and the library `holidays`."""

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Any

from ..exceptions import NoOpenHours
from . import public_holidays
from .calendar import Calendar, CalendarDate, Span
from .opening_hours import Windows, parse_windows
from .wall_time import to_zone


def definition(calendar: Calendar) -> str:
    """Return the calendar's definition as text. Processes with equal texts compute the same working time.

    The days that staff have changed are not part of it.
    """
    region = calendar._region
    holidays = sorted(calendar._closed) if region is None else public_holidays.compared_days(*region)
    exceptions = [f"{day} {_to_text(windows)}" for day, windows in sorted(calendar._exceptions.items())]
    week = [_to_text(windows) for windows in calendar._week]
    days = [day.isoformat() for day in holidays]
    return repr([calendar.name, calendar.zone.key, calendar.editable, week, exceptions, region, days])


def take(calendar: Calendar, first: date, last: date) -> dict[str, Any]:
    """Return the calendar's weekly hours, and the days in this period on which its hours differ, as JSON values.

    Public holidays and the days that staff have changed are included as they are now.
    """
    stored = calendar._stored_days()
    days = (first + timedelta(days=n) for n in range((last - first).days + 1))
    hours = {day: calendar._date_info(day, stored).windows for day in days}
    return {
        "name": calendar.name, "zone": calendar.zone.key, "first": first.isoformat(), "last": last.isoformat(),
        "week": [_to_text(windows) for windows in calendar._week],
        "days": {
            day.isoformat(): _to_text(windows)
            for day, windows in hours.items() if windows != calendar._week[day.weekday()]
        },
    }  # fmt: skip


def _to_text(windows: Windows) -> str:
    return ",".join(map(str, windows))


class CalendarSnapshot(Calendar):
    """A calendar made from the result of take(). It is not registered and does not read the database.

    Calculations that need a day outside the period raise NoOpenHours. Open times are computed once for each day.
    """

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.name, self.editable = values["name"], False
        self.zone = to_zone(values["zone"])
        self._week = tuple(map(parse_windows, values["week"]))
        self._region, self._closed = None, frozenset()
        self._exceptions = {date.fromisoformat(day): parse_windows(text) for day, text in values["days"].items()}
        self._first, self._last = (date.fromisoformat(values[name]) for name in ("first", "last"))
        self._known_spans: dict[date, list[Span]] = {}

    def _date_info(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> CalendarDate:
        if not self._first <= day <= self._last:
            raise NoOpenHours(f"The days of the calendar {self.name!r} are known from {self._first} to {self._last}.")
        return super()._date_info(day, stored)

    def _spans(self, day: date, stored: Mapping[date, tuple[Windows, str]]) -> list[Span]:
        if day not in self._known_spans:
            self._known_spans[day] = super()._spans(day, stored)
        return self._known_spans[day]
