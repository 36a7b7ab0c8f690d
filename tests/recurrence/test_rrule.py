"""Recurrence rules: the cases of dateutil and libical, zones, and what is refused."""

import re
from datetime import UTC, datetime, timedelta
from itertools import islice
from time import thread_time
from zoneinfo import ZoneInfo

import pytest
from dateutil import rrule as dateutil_rrule
from dateutil.rrule import rrulestr

from delaytasks.exceptions import BadSchedule
from delaytasks.recurrence import rrule, wall_times
from delaytasks.recurrence.rrule import RRule, _occurrences

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


@pytest.mark.parametrize("overlap", ["once", "both"])
def test_a_start_at_the_second_of_two_equal_times_is_the_first_run(overlap):
    start = datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo(BERLIN))
    rule = RRule("FREQ=MINUTELY;INTERVAL=20;COUNT=3", ZoneInfo(BERLIN), start=start, overlap=overlap)
    assert local(follow(rule, at("2026-01-01", BERLIN), 4), BERLIN) == [
        "2026-10-25T02:30:00+01:00", "2026-10-25T02:50:00+01:00", "2026-10-25T03:10:00+01:00",
    ]  # fmt: skip


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


def _endless() -> list[tuple[str, datetime]]:
    """Return the rules of both tables that are not refused, without their ends."""
    tables = [row[1:] for row in rows("dateutil_rrule.txt")] + rows("libical.txt")
    kept = [(rule, start) for rule, start, expected in tables if not expected.startswith("refused")]
    unique = {(re.sub(r";?(COUNT|UNTIL)=\w+", "", rule).strip(";"), start) for rule, start in kept}
    return [(rule, datetime.fromisoformat(start)) for rule, start in sorted(unique)]


@pytest.mark.parametrize(("rule", "start"), _endless(), ids=str)
def test_questions_far_from_the_start_are_answered_as_if_read_from_there(rule, start):
    walls = list(islice(rrulestr(rule, dtstart=start), 400))
    walls = [wall for wall in walls if wall.year < start.year + 99]
    for number in range(0, len(walls) - 2, 37):
        _occurrences.cache_clear()
        asked = RRule(rule, ZoneInfo("UTC"), start=start)
        for moment, expected in zip(walls[number:][:2], walls[number + 1 :], strict=False):
            found = asked.next_after(moment.replace(tzinfo=UTC))
            assert found is not None
            assert found.wall == expected
        earlier = asked.next_after(walls[number // 2].replace(tzinfo=UTC))
        assert earlier is not None
        assert earlier.wall == walls[number // 2 + 1]


@pytest.fixture
def times_read(monkeypatch) -> list[datetime]:
    """The times that dateutil computes."""
    read, compute = [], dateutil_rrule.rrule._iter

    def count(rule):
        for wall in compute(rule):
            read.append(wall)
            yield wall

    monkeypatch.setattr(dateutil_rrule.rrule, "_iter", count)
    _occurrences.cache_clear()
    return read


@pytest.mark.parametrize("frequency", ["MINUTELY", "MINUTELY;INTERVAL=7", "HOURLY;BYMINUTE=0,15,30,45"])
def test_a_start_long_ago_costs_nothing(times_read, frequency):
    rule = RRule(f"FREQ={frequency}", ZoneInfo(BERLIN), start=datetime(2024, 1, 1))  # noqa: DTZ001
    follow(rule, at("2024-03-01"), 10)
    assert len(times_read) < 30


def test_a_change_of_clocks_costs_no_more_than_the_hour_that_comes_again(times_read, monkeypatch):
    asked, firings_of = [], wall_times.firings_of
    monkeypatch.setattr(wall_times, "firings_of", lambda wall, *rest: asked.append(wall) or firings_of(wall, *rest))
    rule = RRule("FREQ=MINUTELY", ZoneInfo(BERLIN), start=datetime(2026, 10, 1))  # noqa: DTZ001
    for hour in range(0, 48, 3):
        firing = rule.next_after(at("2026-10-24") + timedelta(hours=hour))
        assert firing is not None
        assert firing.due == at("2026-10-24") + timedelta(hours=hour, minutes=1)
    assert len(asked) < 16 * 70


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
        ("FREQ=MONTHLY;BYDAY=MO,TU,1MO", "BYDAY has days with and without a number"),
        ("FREQ=YEARLY;BYDAY=-1FR,TU", "BYDAY has days with and without a number"),
        ("FREQ=MONTHLY;BYDAY=XX", "XX"),
        ("FREQ=DAILY;INTERVAL=7;BYDAY=TU", "no such day comes"),
        ("FREQ=DAILY;UNTIL=20300101", "a date with a time"),
        ("FREQ=DAILY;UNTIL=20301301T000000Z", "not a date"),
        ("FREQ=DAILY;FREQ=WEEKLY", "FREQ twice"),
        ("FREQ=SOMETIMES", "needs FREQ"),
        ("BYDAY=MO", "needs FREQ"),
        ("FREQ=SECONDLY;INTERVAL=10", "give every="),
        ("FREQ=DAILY;COUNT=10001", "COUNT=10001: give a whole number from 1 to 10,000"),
        ("FREQ=MONTHLY;BYMINUTE=" + ",".join(map(str, range(60))) + ";BYHOUR=1,2", "more than 100 times a day"),
        ("FREQ=DAILY;RSCALE=HEBREW", "NAME=VALUE"),
        ("FREQ=DAILY;BYEASTER=1", "NAME=VALUE"),
        ("FREQ=DAILY\nDTSTART:20260101T000000", "needs FREQ"),
        ("DTSTART:20260101T000000\nRRULE:FREQ=DAILY", "NAME=VALUE"),
        ("FREQ=YEARLY;BYWEEKNO=20", "BYWEEKNO needs BYDAY"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY is not allowed with FREQ=WEEKLY"),
        ("", "NAME=VALUE"),
        (None, "give a text"),
        ("FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 600), "give a text"),
    ],
)
def test_what_is_refused_is_named(rule, words):
    with pytest.raises(BadSchedule, match=words):
        RRule(rule, ZoneInfo("UTC"), start=datetime(2026, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=MINUTELY;BYSECOND=0;BYSETPOS=2", "FREQ=HOURLY;BYMINUTE=0;BYSETPOS=5", "FREQ=DAILY;BYHOUR=9;BYSETPOS=2",
        "FREQ=HOURLY;INTERVAL=168;BYDAY=TU", "FREQ=WEEKLY;INTERVAL=52;BYMONTH=7;BYDAY=MO;BYHOUR=1;COUNT=7",
        "FREQ=MONTHLY;INTERVAL=12;BYMONTH=3;BYMONTHDAY=5", "FREQ=YEARLY;INTERVAL=4;BYMONTH=2;BYMONTHDAY=29",
        "FREQ=YEARLY;BYWEEKNO=53;BYMONTH=6;BYDAY=MO", "FREQ=MONTHLY;BYDAY=5MO;BYMONTHDAY=1",
        "FREQ=MINUTELY;INTERVAL=120;BYHOUR=8",  # dateutil notices that while it searches
    ],
)  # fmt: skip
def test_a_search_for_a_time_that_never_comes_is_short(rule):
    began = thread_time()
    with pytest.raises(BadSchedule, match="no such time comes"):
        RRule(rule, ZoneInfo("UTC"), start=datetime(2027, 1, 4, 9))  # noqa: DTZ001
    assert thread_time() - began < 5  # most take a tenth of a second


def test_a_search_that_was_too_long_is_too_long_again(monkeypatch):
    """And not the end of the rule. As for a rule that has some times, and then none for long."""
    rule = RRule("FREQ=MINUTELY;BYMONTH=1;BYMONTHDAY=4;BYHOUR=9", ZoneInfo("UTC"), start=datetime(2027, 1, 4, 9))  # noqa: DTZ001
    monkeypatch.setattr(rrule, "MAX_PERIODS", 50)
    for _ in range(2):
        with pytest.raises(BadSchedule, match="no such time comes"):
            rule.next_after(at("2027-01-04T10:00"))
    monkeypatch.undo()
    assert follow(rule, at("2027-01-04T10:00"), 1)[0].due == at("2028-01-04T09:00")


@pytest.mark.parametrize("frequency", ["YEARLY", "MONTHLY", "DAILY", "HOURLY", "MINUTELY"])
def test_a_rule_that_never_has_a_time_is_refused(frequency):
    with pytest.raises(BadSchedule, match="no such day comes"):
        RRule(f"FREQ={frequency};BYMONTH=2;BYMONTHDAY=30", ZoneInfo("UTC"), start=datetime(2026, 1, 1))  # noqa: DTZ001
