"""Parse durations such as "60 days" in audit rules and in the mappings of loads. Needs no Spark."""

import re
from typing import NamedTuple

MAX_SECONDS = 3650 * 86_400
DAY_SECONDS = 86_400
UNITS = {"second": (None, 1), "minute": (None, 60), "hour": (None, 3600), "day": (1, 0), "week": (7, 0)}
# Spark reads "60 days" as the number 60 with the name `days`, and "60d" as a floating-point number.
NUMBER_AND_UNIT = re.compile(r"\s*([+-]?\d[\d.]*)\s*([A-Za-z]+)\s*", re.ASCII)


class BadDuration(ValueError):
    """A duration is invalid. The message continues a sentence: "is '60 dayz', …"."""


class Duration(NamedTuple):
    """A delay: days in a time zone or working days of a calendar, then elapsed time or open time.

    days   None: the delay has no days, only seconds
    """

    days: int | None
    seconds: int


def parse(text: str) -> Duration | None:
    """Return the duration, or None if the text is not a number with a unit: then it is an SQL expression.

    Raises BadDuration if the unit is unknown, or the number is not whole, is negative or exceeds ten years.
    """
    match = NUMBER_AND_UNIT.fullmatch(text)
    if not match:
        return None
    number, unit = match[1], match[2].lower().removesuffix("s")
    if unit not in UNITS:
        raise BadDuration(
            f"is {text!r}, but {match[2]!r} is not a unit: use {', '.join(f'{each}s' for each in UNITS)}."
        )
    if not number.lstrip("+-").isdecimal():
        raise BadDuration(f"is {text!r}: give a whole number of a smaller unit.")
    if number.startswith("-"):
        raise BadDuration(f"is {text!r}: it must not be negative.")
    days, seconds = UNITS[unit]
    found = Duration(None if days is None else days * int(number), seconds * int(number))
    if (found.days or 0) * DAY_SECONDS + found.seconds > MAX_SECONDS:
        raise BadDuration(f"is {text!r}: it must be at most ten years.")
    return found


def check(text: str, duration: Duration, *, zone: str, calendar: str, options: str) -> None:
    """Raise BadDuration if a duration in days has neither a zone nor a calendar, or weeks are counted in a calendar.

    options   how to give a zone or a calendar, for the message
    """
    if duration.days is None:
        return
    if calendar and "week" in text.lower():
        raise BadDuration(f"is {text!r}: a calendar counts working days, hours, minutes and seconds.")
    if not zone and not calendar:
        raise BadDuration(
            f"is {text!r}, and a day is not always 24 hours: give {options}, or {duration.days * 24} hours."
        )
