"""Recurrence rules: the cases of dateutil and libical, zones, and what is refused."""

import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from delaytasks.exceptions import BadSchedule
from delaytasks.recurrence.rrule import RRule

from .tables import at, follow, local, rows

BERLIN = "Europe/Berlin"


@pytest.mark.parametrize("row", rows("dateutil_rrule.txt"), ids=lambda row: row[0])
def test_occurrences_are_those_of_dateutils_tests(row):
    _judge(*row[1:])


@pytest.mark.parametrize("row", rows("libical.txt"), ids=lambda row: f"{row[0]} {row[1]}")
def test_occurrences_are_those_of_libicals_tests(row):
    _judge(*row)


def _judge(rule: str, start: str, expected: str) -> None:
    """Compare occurrences with the expected ones, and with their number if the rule has an end; or its refusal."""
    dtstart = datetime.fromisoformat(start)
    if expected.startswith("refused: "):
        with pytest.raises(BadSchedule, match=re.escape(expected.removeprefix("refused: "))):
            RRule(rule, ZoneInfo("UTC"), start=dtstart)
        return
    times = [datetime.fromisoformat(text).replace(tzinfo=UTC) for text in expected.replace("(100 years)", "").split()]
    ends = "COUNT" in rule or "UNTIL" in rule
    before = datetime(1900, 1, 1, tzinfo=UTC)
    found = follow(RRule(rule, ZoneInfo("UTC"), start=dtstart), before, len(times) + ends)
    assert [firing.due for firing in found] == times


def test_the_tables_are_whole():
    assert len(rows("dateutil_rrule.txt")) == 230
    assert len(rows("libical.txt")) == 144


def times(rule: str, start: str, count: int, **options: str) -> list[str]:
    dtstart = datetime.fromisoformat(start)
    times_of = RRule(rule, ZoneInfo(BERLIN), start=dtstart, **options)  # type: ignore[arg-type]
    return local(follow(times_of, at("2026-01-01", BERLIN), count), BERLIN)


def test_a_time_keeps_its_hour_across_a_change_of_clocks():
    found = times("FREQ=WEEKLY;BYDAY=SU", "2026-03-22T09:00", 2)
    assert found == ["2026-03-22T09:00:00+01:00", "2026-03-29T09:00:00+02:00"]


def test_a_time_in_a_gap_runs_at_its_end_not_an_hour_early():
    """dateutil with a zone of its own gives 01:30 here; RFC 5545 says 03:30."""
    assert times("FREQ=DAILY", "2026-03-29T02:30", 1) == ["2026-03-29T03:00:00+02:00"]
    assert times("FREQ=DAILY", "2026-03-29T02:30", 1, gap="skip") == ["2026-03-30T02:30:00+02:00"]


def test_a_time_in_an_overlap_runs_once_or_twice():
    assert times("FREQ=DAILY", "2026-10-25T02:30", 2) == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    found = times("FREQ=DAILY", "2026-10-25T02:30", 3, overlap="both")
    assert found == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-26T02:30:00+01:00"]


def test_an_end_in_utc_is_an_instant_and_one_without_z_a_wall_time():
    assert times("FREQ=DAILY;UNTIL=20260702T070000Z", "2026-07-01T09:00", 9) == [
        "2026-07-01T09:00:00+02:00", "2026-07-02T09:00:00+02:00",
    ]  # fmt: skip
    assert times("FREQ=DAILY;UNTIL=20260702T065959Z", "2026-07-01T09:00", 9) == ["2026-07-01T09:00:00+02:00"]
    assert len(times("FREQ=DAILY;UNTIL=20260702T090000", "2026-07-01T09:00", 9)) == 2


def test_the_last_day_of_the_month():
    assert times("FREQ=MONTHLY;BYMONTHDAY=-1", "2026-01-31T09:00", 2) == [
        "2026-01-31T09:00:00+01:00", "2026-02-28T09:00:00+01:00",
    ]  # fmt: skip


def test_questions_may_come_in_any_order():
    rule = RRule("FREQ=DAILY;COUNT=5", ZoneInfo("UTC"), start=datetime(2026, 1, 1, 9))  # noqa: DTZ001
    days = [rule.next_after(datetime(2026, 1, day, 12, tzinfo=UTC)) for day in (3, 1, 4, 2, 5, 1)]
    assert [firing and firing.due.day for firing in days] == [4, 2, 5, 3, None, 2]


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("FREQ=DAILY;COUNT=3;UNTIL=20300101T000000Z", "COUNT and UNTIL exclude each other"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS needs another BY part"),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL=0"),
        ("FREQ=DAILY;COUNT=0", "COUNT=0"),
        ("FREQ=DAILY;COUNT=-1", "COUNT=-1"),
        ("FREQ=DAILY;INTERVAL=²", "INTERVAL=²"),
        ("FREQ=YEARLY;BYMONTHDAY=0;BYMONTH=1", "0 in BYMONTHDAY"),
        ("FREQ=YEARLY;BYMONTH=13", "numbers from 1 to 12"),
        ("FREQ=DAILY;BYHOUR=24", "numbers from 0 to 23"),
        ("FREQ=DAILY;BYHOUR=", "NAME=VALUE"),
        ("FREQ=DAILY;BYDAY=1MO", "a number in BYDAY"),
        ("FREQ=MONTHLY;BYDAY=XX", "XX"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "no such day comes"),
        ("FREQ=DAILY;UNTIL=20300101", "a date with a time"),
        ("FREQ=DAILY;UNTIL=20301301T000000Z", "not a date"),
        ("FREQ=DAILY;FREQ=WEEKLY", "FREQ twice"),
        ("FREQ=SOMETIMES", "needs FREQ"),
        ("BYDAY=MO", "needs FREQ"),
        ("FREQ=DAILY;RSCALE=HEBREW", "NAME=VALUE"),
        ("FREQ=DAILY;BYEASTER=1", "NAME=VALUE"),
        ("FREQ=DAILY\nDTSTART:20260101T000000", "needs FREQ"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "NAME=VALUE"),
        ("FREQ=YEARLY;BYWEEKNO=20", "BYWEEKNO needs BYDAY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY is not for FREQ=WEEKLY"),
        ("", "NAME=VALUE"),
        (None, "give a text"),
        ("FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 600), "give a text"),
    ],
)
def test_what_is_refused_is_named(rule, words):
    with pytest.raises(BadSchedule, match=words):
        RRule(rule, ZoneInfo("UTC"), start=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize("frequency", ["YEARLY", "MONTHLY", "DAILY", "HOURLY", "SECONDLY"])
def test_a_rule_that_never_has_a_time_is_refused(frequency):
    with pytest.raises(BadSchedule, match="no such day comes"):
        RRule(f"FREQ={frequency};BYMONTH=2;BYMONTHDAY=30", ZoneInfo("UTC"), start=datetime(2026, 1, 1))  # noqa: DTZ001
