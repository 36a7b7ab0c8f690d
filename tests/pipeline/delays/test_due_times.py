"""Due times after days of a zone or working time of a calendar: clock changes, and Spark's columns."""

import pickle
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from delaytasks import Calendar
from delaytasks.calendars import registry, snapshot
from delaytasks.exceptions import BadCalendar
from delaytasks.management.subcommands.pipeline.calendars import snapshot_of
from delaytasks.pipeline.delays.due_times import DueTimes
from delaytasks.pipeline.rules.rules import BadRule, rules_of
from delaytasks.pipeline.transforms import promises

from ..conftest import at, ms

HOUR = timedelta(hours=1)
RULE = {"topic": "order.close", "table": "t", "columns": {"id": "int", "placed_at": "timestamp", "grace": "int"},
        "key": "id", "since": "placed_at"}  # fmt: skip


@pytest.fixture
def office() -> Iterator[dict[str, Any]]:
    """Open from 9 to 17 in Berlin on weekdays, also on Saturday 2030-04-06, and closed on Monday 2030-04-01."""
    days = {date(2030, 4, 1): "", date(2030, 4, 6): "10:00-12:00"}
    calendar = Calendar(
        "due times",
        tz="Europe/Berlin",
        hours={"mon-fri": "09:00-17:00"},
        exceptions=days,
        editable=False,
    )
    yield snapshot.take(calendar, date(2030, 1, 1), date(2030, 12, 31))
    registry.unregister("due times")


@pytest.mark.parametrize(
    ("since", "days", "due"),
    [
        ("02-01 12:00", 60, "04-02 11:00"),  # 13:00 in Rome: UTC+1 in February, UTC+2 in April
        ("09-01 10:00", 60, "10-31 11:00"),  # 12:00 in Rome: UTC+2 in September, UTC+1 after 27 October
        ("05-01 10:00", 60, "06-30 10:00"),  # no change between
        ("03-30 01:30", 1, "03-31 01:00"),  # 02:30 is skipped on 31 March: the gap ends at 03:00, 01:00 UTC
        ("10-26 00:30", 1, "10-27 00:30"),  # 02:30 comes twice on 27 October: the first is 00:30 UTC
        ("10-27 01:30", 0, "10-27 01:30"),  # no days: the second 02:30 stays what it is
        ("03-30 12:00", 1, "03-31 11:00"),  # a day of 23 hours
        ("10-26 12:00", 1, "10-27 13:00"),  # and one of 25: 14:00 in Rome on both days
    ],
)
def test_days_of_a_zone_keep_the_local_time_over_a_clock_change(since: str, days: int, due: str) -> None:
    assert DueTimes("Europe/Rome").add(at(since), days, timedelta()) == at(due)
    assert DueTimes("Europe/Rome").add(at(since), days, 5 * HOUR) == at(due) + 5 * HOUR, "the rest is elapsed time"


@pytest.mark.parametrize(
    ("since", "days", "time", "due"),
    [
        ("03-29 14:00", None, 3 * HOUR, "04-02 08:00"),  # Friday 15:00; Monday is closed; Tuesday 10:00 is UTC+2
        ("03-29 14:00", 1, 0 * HOUR, "04-02 13:00"),  # one working day: Tuesday 15:00
        ("04-05 14:00", None, 2 * HOUR, "04-06 09:00"),  # Friday 16:00; Saturday is open from 10:00
        ("04-06 14:00", None, 0 * HOUR, "04-08 07:00"),  # no time: the next opening
        ("04-06 14:00", 0, 0 * HOUR, "04-06 14:00"),  # no days: the moment itself
        ("10-25 14:00", None, 2 * HOUR, "10-28 09:00"),  # Friday 16:00; Monday 10:00 is UTC+1 again
    ],
)
def test_a_snapshot_of_a_calendar_counts_working_time_like_the_calendar(
    office: dict[str, Any], since: str, days: int | None, time: timedelta, due: str
) -> None:
    due_times = pickle.loads(pickle.dumps(DueTimes(calendar=office)))
    registry.unregister("due times")  # an executor has none
    assert due_times.add(at(since), days, time) == at(due)
    assert registry.find("due times") is None


def test_a_moment_outside_a_snapshots_days_has_no_due_time(office: dict[str, Any]) -> None:
    due_times = DueTimes(calendar=office)
    assert due_times.add_ms(ms("12-30 10:00"), None, 3_600_000) == ms("12-30 11:00")
    assert due_times.add_ms(ms("12-30 10:00"), 5, 0) is None
    old = round(datetime(1999, 1, 1, tzinfo=UTC).timestamp() * 1000)
    assert [due_times.add_ms(*each) for each in ((old, 1, 0), (None, 1, 0), (0, None, None))] == [None] * 3


def due_at(spark: Any, changed: dict[str, Any], calendar: Any, *rows: tuple[Any, ...]) -> list[Any]:
    """Return the due time by a rule, or the fault of its delay, for each row."""
    (rule,) = rules_of("audit.toml", [RULE | changed])
    frame = spark.createDataFrame([(n, *row) for n, row in enumerate(rows)], "id int, placed_at timestamp, grace int")
    found = sorted(promises.promised_jobs(frame, rule, calendar).collect(), key=lambda row: int(row.key))
    return [promises.DELAY_FAULTS[row.delay_fault - 1] if row.delay_fault else row.promised_ms for row in found]


def test_a_rules_delay_is_added_in_its_zone_or_calendar(spark: Any, office: dict[str, Any]) -> None:
    rome = {"delay": "60 days", "zone": "Europe/Rome"}
    spring, autumn, nothing = (at("02-01 12:00"), 0), (at("09-01 10:00"), 0), (None, 0)
    assert due_at(spark, rome, None, spring, autumn, nothing) == [ms("04-02 11:00"), ms("10-31 11:00"), None]
    working = {"delay": "cast(grace as interval day)", "calendar": "due times"}
    assert due_at(spark, working, office, (at("03-29 14:00"), 1), (at("12-30 10:00"), 9), (at("03-29 14:00"), -1)) == [
        ms("04-02 13:00"), "no_due", "negative_delay"]  # fmt: skip


def test_a_delay_that_is_null_negative_or_too_long_is_a_fault_of_the_row(spark: Any) -> None:
    day = at("02-01 12:00")
    rows = [(day, 60 * 86_400), (day, None), (day, -1), (day, 2_000_000_000), (None, 5)]
    assert due_at(spark, {"delay": "grace"}, None, *rows) == [
        ms("04-02 12:00"), "no_delay", "negative_delay", "long_delay", None]  # fmt: skip


@pytest.mark.usefixtures("office")
def test_a_calendar_is_found_by_name_and_an_unknown_one_is_refused() -> None:
    found = snapshot_of("due times")
    assert (found["zone"], found["week"][0]) == ("Europe/Berlin", "09:00-17:00")
    assert found["days"] == {"2030-04-01": "", "2030-04-06": "10:00-12:00"}
    with pytest.raises(BadCalendar, match=r"There is no calendar 'offce'\. Calendars of this project: .*due times"):
        snapshot_of("offce")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"delay": "60 days"},
            r"delay: it is '60 days', and a day is not always 24 hours: give a zone or .* 1440 hours",
        ),
        ({"delay": "60 dayz", "zone": "Europe/Rome"}, "delay: it is '60 dayz', but 'dayz' is not a unit"),
        ({"delay": "1 week", "calendar": "office"}, "delay: it is '1 week': a calendar counts working days, hours"),
        ({"delay": "60 days", "zone": "Mars/Base"}, "zone: 'Mars/Base' is invalid; expected a time zone"),
        ({"delay": "60 days", "zone": "Europe/Rome", "calendar": "x"}, "zone or calendar: both are given"),
        ({"delay": "60 hours", "delay_seconds": 1}, "delay or delay_seconds: both are given"),
        ({"zone": "Europe/Rome"}, "zone: it has no meaning without a delay"),
        ({"delay": 60}, 'delay: 60 is invalid; expected a duration such as "60 days"'),
    ],
)
def test_a_rules_delay_is_checked_without_spark(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRule, match=message):
        rules_of("audit.toml", [RULE | changed])
