"""The calendars of this process by name, and the days that staff have changed."""

from collections.abc import Callable, Mapping
from datetime import date
from typing import TYPE_CHECKING

from ..exceptions import BadCalendar
from .opening_hours import Windows

if TYPE_CHECKING:
    from .calendar import Calendar

_calendars: dict[str, "Calendar"] = {}
_stored_days: Callable[[str], Mapping[date, tuple[Windows, str]]] | None = None


def add(calendar: "Calendar") -> None:
    """Register a calendar. Raises BadCalendar if a calendar with another definition has its name."""
    old = _calendars.get(calendar.name)
    if old is not None and old != calendar:
        raise BadCalendar(f"There are two calendars named {calendar.name!r} with different definitions: rename one.")
    _calendars[calendar.name] = calendar


def find(name: str) -> "Calendar | None":
    return _calendars.get(name)


def names() -> list[str]:
    """Return the names of all calendars of this process, sorted."""
    return sorted(_calendars)


def editable() -> list[str]:
    """Return the names of the calendars that staff may change, sorted."""
    return [name for name in names() if _calendars[name].editable]


def unregister(name: str) -> None:
    """Unregister a calendar. For tests."""
    _calendars.pop(name, None)


def set_stored_days_reader(reader: Callable[[str], Mapping[date, tuple[Windows, str]]]) -> None:
    """Set the function that stored_days() calls: calendar's name -> {day: (hours, note)} of the days changed by staff.

    The AppConfig calls this, so that calendars do not import models.
    """
    global _stored_days
    _stored_days = reader


def stored_days(name: str) -> Mapping[date, tuple[Windows, str]]:
    """Return what staff have changed in a calendar: {day: (hours, note)}; {} before Django's apps are loaded."""
    return {} if _stored_days is None else _stored_days(name)
