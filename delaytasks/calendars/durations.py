"""Durations for calendars: hours and minutes are open time, days are working days."""

from dataclasses import dataclass
from datetime import timedelta

from ..exceptions import BadInput, short_repr


@dataclass(frozen=True)
class WorkingDays:
    """A number of working days, for Calendar.add() and Calendar.subtract().

    count   int; a negative one counts backwards

    Not a timedelta: one working day is not 24 open hours. Raises BadInput.
    """

    count: int

    def __post_init__(self) -> None:
        if isinstance(self.count, bool) or not isinstance(self.count, int):
            raise BadInput(f"WorkingDays({short_repr(self.count)}): give a whole number of days.")


def minutes(count: float) -> timedelta:
    """Return a duration of `count` minutes."""
    return timedelta(minutes=count)


def hours(count: float) -> timedelta:
    """Return a duration of `count` hours."""
    return timedelta(hours=count)


def days(count: int) -> WorkingDays:
    """Return a duration of `count` working days; a negative count goes back. Raises BadInput if it is not an int.

    For 24-hour days use timedelta(days=...).
    """
    return WorkingDays(count)
