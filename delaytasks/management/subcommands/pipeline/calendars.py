"""Snapshots of calendars for the pipeline, which runs without Django. They are taken at the start of a run."""

from datetime import UTC, date, datetime
from typing import Any

from ....calendars import registry, snapshot
from ....exceptions import BadCalendar, short_repr

YEARS_BACK, YEARS_AHEAD = 40, 20


def snapshot_of(name: object) -> dict[str, Any]:
    """Return the days of the calendar with this name from 40 years ago to 20 years ahead. Raises BadCalendar."""
    calendar = registry.find(name) if isinstance(name, str) else None
    if calendar is None:
        known = ", ".join(registry.names()) or "none"
        raise BadCalendar(f"There is no calendar {short_repr(name)}. Calendars of this project: {known}.")
    this_year = datetime.now(UTC).year
    return snapshot.take(calendar, date(this_year - YEARS_BACK, 1, 1), date(this_year + YEARS_AHEAD, 12, 31))
