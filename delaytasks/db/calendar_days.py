"""Read the days of calendars that staff have changed, at most once a second per process."""

import logging
import threading
import time
from collections.abc import Mapping
from datetime import date
from typing import Any

from django.db import connections, router, transaction

from ..calendars.opening_hours import Windows
from ..exceptions import BadCalendar

logger = logging.getLogger("delaytasks")
CACHE_SECONDS = 1.0
_cache: dict[tuple[str, int], tuple[float, Mapping[date, tuple[Windows, str]]]] = {}  # (monotonic time, days)
_logged: set[str] = set()  # errors of rows


def stored_days(calendar: str) -> Mapping[date, tuple[Windows, str]]:
    """Return {day: (open windows, note)} of a calendar. Another process's changes are seen within a second."""
    key = _key(calendar)
    read_at, days = _cache.get(key, (0.0, {}))
    if not read_at or time.monotonic() - read_at > CACHE_SECONDS:
        read_at, days = time.monotonic(), _read(calendar)
        if not _has_changes():
            _cache[key] = read_at, days
    return days


def _key(calendar: str) -> tuple[str, int]:
    """Return the key in the cache. A transaction has its own: its snapshot may be too old for other threads."""
    from ..models import CalendarDay

    inside = connections[router.db_for_write(CalendarDay)].in_atomic_block
    return calendar, threading.get_ident() if inside else 0


def _has_changes() -> bool:
    """Return whether days were changed in the current transaction, which may be rolled back."""
    from ..models import CalendarDay

    pending = connections[router.db_for_write(CalendarDay)].run_on_commit  # without what was rolled back
    return any(callback[1] is clear_cache for callback in pending)


def _read(calendar: str) -> Mapping[date, tuple[Windows, str]]:
    days, errors = _parse(calendar)
    for error in errors:
        if error not in _logged:
            _logged.add(error)
            logger.error("%s The row is ignored: the day has its usual hours.", error)
    return days


def errors_of(calendar: str) -> list[str]:
    """Return what is wrong with those rows of a calendar whose hours cannot be read. They were not saved by save()."""
    return _parse(calendar)[1]


def _parse(calendar: str) -> tuple[Mapping[date, tuple[Windows, str]], list[str]]:
    """Return the days, and the errors of the rows that are left out: one of them must not stop all calculations."""
    from ..models import CalendarDay

    days, errors = {}, []
    for row in CalendarDay.objects.using(router.db_for_write(CalendarDay)).filter(calendar=calendar):
        try:
            days[row.day] = row.windows(), row.note
        except BadCalendar as error:
            errors.append(str(error))
    return days, errors


def refresh(calendar: str) -> None:
    """Read the days of a calendar again when they are next used."""
    _cache.pop(_key(calendar), None)


def on_change(*, using: str, **_kwargs: Any) -> None:
    """Read all calendars again, now and after the commit; receiver of the signals of CalendarDay."""
    clear_cache()
    transaction.on_commit(clear_cache, using=using)


def clear_cache() -> None:
    """Read all calendars again when they are next used."""
    _cache.clear()
    _logged.clear()
