"""Read the days of calendars that staff have changed, at most once a second per process."""

import time
from collections.abc import Mapping
from datetime import date
from typing import Any

from django.db import router

from ..calendars.opening_hours import Windows, parse_windows

CACHE_SECONDS = 1.0
_cache: dict[str, tuple[float, Mapping[date, tuple[Windows, str]]]] = {}  # calendar -> (monotonic time, days)


def stored_days(calendar: str) -> Mapping[date, tuple[Windows, str]]:
    """Return {day: (open windows, note)} of a calendar. Another process's changes are seen within a second."""
    read_at, days = _cache.get(calendar, (0.0, {}))
    if not read_at or time.monotonic() - read_at > CACHE_SECONDS:
        read_at, days = time.monotonic(), _read(calendar)
        _cache[calendar] = read_at, days
    return days


def _read(calendar: str) -> Mapping[date, tuple[Windows, str]]:
    from ..models import CalendarDay

    rows = CalendarDay.objects.using(router.db_for_write(CalendarDay)).filter(calendar=calendar)
    return {day: (parse_windows(hours), note) for day, hours, note in rows.values_list("day", "hours", "note")}


def refresh(calendar: str) -> None:
    """Read the days of a calendar again when they are next used."""
    _cache.pop(calendar, None)


def clear_cache(**_kwargs: Any) -> None:
    """Read all calendars again when they are next used; receiver of the signals of CalendarDay."""
    _cache.clear()
