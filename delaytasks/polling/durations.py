"""Durations as text: "90s", "10m", "1h30m"."""

import re
from datetime import timedelta

from ..exceptions import BadDelay, short_repr

Duration = str | timedelta | float | int
LONGEST = timedelta(days=366)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)", re.ASCII)


def to_duration(given: Duration, *, what: str) -> timedelta:
    """Convert "1h30m", a timedelta or seconds to a timedelta, from 0 to 366 days, in whole milliseconds.

    what   name of the argument, for the error message

    Raises BadDelay.
    """
    try:
        duration = _parse(given) if isinstance(given, str) else _to_timedelta(given)
    except (ValueError, TypeError, OverflowError):
        raise BadDelay(
            f"{what} is {short_repr(given)}: give a timedelta, a number of seconds, or a text such as '90s', '10m' "
            "or '1h30m', with the units ms, s, m, h and d."
        ) from None
    if not timedelta(0) <= duration <= LONGEST:
        raise BadDelay(f"{what} is {short_repr(given)}: it must be from 0 to {LONGEST.days} days.")
    return -(-duration // timedelta(milliseconds=1)) * timedelta(milliseconds=1)  # rounded up


def _to_timedelta(given: timedelta | float | int) -> timedelta:
    if isinstance(given, bool):
        raise TypeError
    return given if isinstance(given, timedelta) else timedelta(seconds=given)


def _parse(text: str) -> timedelta:
    parts = _PART.findall(text)
    units = [unit for _, unit in parts]
    if not parts or "".join(number + unit for number, unit in parts) != text or len(set(units)) != len(units):
        raise ValueError
    return sum((timedelta(**{_UNITS[unit]: float(number)}) for number, unit in parts), timedelta(0))
