"""The picture of a calendar's year: twelve months, with open, closed, holiday and changed days."""

import calendar as months
from collections.abc import Callable
from datetime import date
from typing import NamedTuple

from django.utils import formats
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ...calendars.calendar import Calendar, CalendarDate

EARLIEST, LATEST = 1970, 2200
LABELS = {
    "open": gettext_lazy("open"),
    "closed": gettext_lazy("closed"),
    "holiday": gettext_lazy("holiday"),
    "changed-open": gettext_lazy("exception, open"),
    "changed-closed": gettext_lazy("exception, closed"),
}


class Cell(NamedTuple):
    """One day of the picture."""

    day: date
    kind: str  # a key of LABELS
    text: str  # for a tooltip and for screen readers
    url: str  # where staff change the day; "" without permission


class Month(NamedTuple):
    name: str
    weeks: list[list[Cell | None]]


def months_of(calendar: Calendar, year: int, url_of: Callable[[date], str]) -> list[Month]:
    """Return the twelve months of a year, each as weeks from Monday to Sunday."""
    return [
        Month(
            formats.date_format(date(year, number, 1), "F"),
            [[_cell(calendar, day, number, url_of) for day in week] for week in _weeks(year, number)],
        )
        for number in range(1, 13)
    ]


def _weeks(year: int, month: int) -> list[list[date]]:
    return months.Calendar(months.MONDAY).monthdatescalendar(year, month)


def _cell(calendar: Calendar, day: date, month: int, url_of: Callable[[date], str]) -> Cell | None:
    if day.month != month:
        return None
    info = calendar.date_info(day)
    return Cell(day, _kind(info), _text(info), url_of(day))


def _kind(info: CalendarDate) -> str:
    if info.source == "holiday":
        return "holiday"
    state = "open" if info.windows else "closed"
    return state if info.source == "hours" else f"changed-{state}"


def _text(info: CalendarDate) -> str:
    hours = ", ".join(map(str, info.windows)) or _("closed")
    date_text = formats.date_format(info.day, "SHORT_DATE_FORMAT")
    return f"{date_text}: {hours} ({info.note})" if info.note else f"{date_text}: {hours}"
