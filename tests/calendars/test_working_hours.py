"""The cases of working_hours, a Ruby library: data/working_hours.txt says where they come from."""

from collections.abc import Callable
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from delaytasks import Calendar
from delaytasks.calendars import days

TABLE = Path(__file__).parent / "data" / "working_hours.txt"


class Case(NamedTuple):
    name: str
    definition: dict[str, str]
    call: str
    arguments: list[str]
    expected: str


def read_cases() -> list[Case]:
    rows = [line.split("|") for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return [
        Case(name.strip(), dict(part.strip().split("=", 1) for part in definition.split(";") if part.strip()),
             call.strip(), arguments.split(), ours(expected.strip()))
        for name, definition, call, arguments, expected in rows
    ]  # fmt: skip


def ours(expected: str) -> str:
    """Return what Calendar is expected to return: the value after "but", if there is one."""
    return expected.partition(" but ")[2].partition(" (")[0] or expected


def calendar_of(definition: dict[str, str]) -> Calendar:
    week = definition.get("week", "mon-fri 09:00-17:00").split()
    special = definition.get("special", "").split()
    return Calendar(
        "cases",
        tz=definition.get("tz", "UTC"),
        hours=dict(zip(week[::2], week[1::2], strict=True)),
        holidays=[date.fromisoformat(day) for day in definition.get("closed", "").split()],
        exceptions={date.fromisoformat(d): hours for d, hours in zip(special[::2], special[1::2], strict=True)},
        editable=False,
    )


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


CALLS: dict[str, Callable[..., Any]] = {
    "add": lambda c, at, seconds: c.add(moment(at), timedelta(seconds=float(seconds))),
    "add_days": lambda c, at, count: c.add(moment(at), days(int(count))),
    "opening": lambda c, at: c.add(moment(at), timedelta()),
    "closing": lambda c, at: c.next_closing(moment(at)),
    "next_opening": lambda c, at: c.next_opening(moment(at)),
    "last_closing": lambda c, at: c.subtract(moment(at), timedelta()),
    "between": lambda c, start, end: c.between(moment(start), moment(end)).total_seconds(),
    "days_between": lambda c, start, end: c.days_between(*map(day_or_moment, (start, end))),
    "is_open": lambda c, at: c.is_open(moment(at)),
    "is_working_day": lambda c, day: c.is_working_day(date.fromisoformat(day)),
}


def day_or_moment(text: str) -> date:
    return moment(text) if "T" in text else date.fromisoformat(text)


def parsed(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return moment(text) if "T" in text else float(text)


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: f"{case.name}-{'-'.join(case.arguments)}")
def test_the_calendar_gives_the_expected_result(case):
    calendar = calendar_of(case.definition)
    result, expected = CALLS[case.call](calendar, *case.arguments), parsed(case.expected)
    assert result == expected
    if isinstance(result, datetime):
        assert result.tzinfo is calendar.zone
        assert case.definition.get("tz") is None or result.utcoffset() == expected.utcoffset()


def test_the_table_is_whole():
    assert len({case.name for case in read_cases()}) == 134
