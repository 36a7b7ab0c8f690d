"""Validate the arguments of sla(). The messages are for developers. Never queries a database."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Q

from ..calendars import WorkingDays
from ..calendars.calendar import Calendar
from ..exceptions import BadInput, short_repr
from ..timeouts import conditions
from ..timeouts.validation import LONGEST

MAX_WARNINGS = 20


def check_target(who: str, target: Any, calendar: Any) -> None:
    if not (calendar is None or isinstance(calendar, Calendar)):
        raise BadInput(f"{who}: calendar is {short_repr(calendar)}; give a Calendar, or None for elapsed time.")
    if isinstance(target, WorkingDays):
        raise BadInput(f"{who}: target is a number of working days, which have no length; give open time: hours(8).")
    if not isinstance(target, timedelta) or target < timedelta(milliseconds=1):
        raise BadInput(f"{who}: target is {short_repr(target)}; give a timedelta above 0, such as hours(8).")
    if calendar is not None and target > calendar.max_open_time:
        raise BadInput(
            f"{who}: target is {_hours(target)}, but the calendar {calendar.name!r} has at most "
            f"{_hours(calendar.max_open_time)} of open time within its horizon of 20 years. Give a shorter target, "
            "or a calendar with more open hours."
        )
    if calendar is not None and not calendar.has_open_time(datetime.now(UTC), target):
        raise BadInput(
            f"{who}: target is {_hours(target)}, but the calendar {calendar.name!r} is closed on so many days that it "
            "has less within its horizon of 20 years. Give a shorter target, or a calendar with more open days."
        )
    if calendar is None and target > LONGEST:
        raise BadInput(f"{who}: target is {target.days:,} days; at most {LONGEST.days:,}, ten years, are possible.")


def _hours(span: timedelta) -> str:
    return f"{span / timedelta(hours=1):,.0f} hours"


def check_warn(who: str, warn: Any) -> tuple[float, ...]:
    """Return the warnings in ascending order. Raises BadInput."""
    given = list(warn) if isinstance(warn, Iterable) and not isinstance(warn, str) else None
    if given is None or not all(isinstance(each, int | float) and not isinstance(each, bool) for each in given):
        raise BadInput(f"{who}: warn is {short_repr(warn)}; give a list of parts of the target, such as [0.5, 0.9].")
    for each in given:
        if not 0 < each < 1:
            raise BadInput(
                f"{who}: warn has {each!r}; a warning is a part of the target between 0 and 1, such as 0.9. The "
                "breach itself, at 1, needs no entry."
            )
    if len(set(given)) != len(given) or len(given) > MAX_WARNINGS:
        raise BadInput(f"{who}: warn is {short_repr(warn)}; give up to {MAX_WARNINGS} different parts of the target.")
    return tuple(sorted(map(float, given)))


def check_conditions(who: str, start: Any, pause: Any, stop: Any) -> None:
    """Raise BadInput if a condition is not a Q, or if the clock can never start, run or pause with these conditions."""
    for name, each in (("start", start), ("pause", pause), ("stop", stop)):
        if not (isinstance(each, Q) or (each is None and name != "stop")):
            raise BadInput(f"{who}: {name} is {short_repr(each)}; give a Q, such as Q(state='answered').")
    for name, each in (("pause", pause), ("stop", stop)):
        if each is not None and not each:
            raise BadInput(f"{who}: {name} is an empty Q, which matches all rows: the clock would never run.")
    for name, each, effect in (("start", start, "starts"), ("pause", pause, "pauses")):
        if each and implies(each, stop):
            raise BadInput(
                f"{who}: {name} and stop overlap: each row that matches {name} also matches stop, which comes first. "
                f"So the clock never {effect}. Correct one of the two conditions."
            )


def implies(first: Q, second: Q) -> bool:
    """Return True if each row that matches `first` certainly matches `second`; False if that is not known.

    Recognizes equal conditions, and field values joined by AND: Q(state="new") implies Q(state__in=["new", "open"]).
    """
    if conditions.has_query(first) or conditions.has_query(second):  # system checks refuse conditions with a query
        return False
    if conditions.canonical(first) == conditions.canonical(second):
        return True
    ours, theirs = _values(first), _values(second)
    if ours is None or theirs is None:
        return False
    return all(name in ours and all(each in allowed for each in ours[name]) for name, allowed in theirs.items())


def _values(condition: Q) -> Mapping[str, list[Any]] | None:
    """Return the possible values of each field; None if the condition is not a conjunction of such values."""
    if condition.negated or (condition.connector != Q.AND and len(condition.children) > 1):
        return None
    found: dict[str, list[Any]] = {}
    for child in condition.children:
        pairs = _values(child) if isinstance(child, Q) else _pair(child)
        if pairs is None or not found.keys().isdisjoint(pairs):
            return None
        found |= pairs
    return found


def _pair(child: Any) -> dict[str, list[Any]] | None:
    if not isinstance(child, tuple):
        return None
    name, value = child
    if name.endswith("__in") and isinstance(value, list | tuple | set | frozenset):
        return {name.removesuffix("__in"): list(value)}
    plain = value is None or isinstance(value, str | int | bool)
    return {name.removesuffix("__exact"): [value]} if plain else None
