"""Cron: the cases of cronsim and ActiveMQ, gaps and overlaps, and what is refused."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from delaytasks.exceptions import BadSchedule
from delaytasks.recurrence.cron import Cron
from delaytasks.recurrence.wall_times import first_wall

from .tables import at, follow, local, ours, rows

BERLIN = "Europe/Berlin"
GAP, OVERLAP = at("2026-03-28T23:50", BERLIN), at("2026-10-25T00:50", BERLIN)


@pytest.mark.parametrize("row", rows("cronsim.txt"), ids=lambda row: row[0])
def test_times_are_those_of_cronsim(row):
    _name, expression, zone, start, expected = row
    if len(expression.split()) == 6:
        with pytest.raises(BadSchedule, match="with 6 fields"):
            Cron(expression, ZoneInfo(zone))
        return
    firings = follow(Cron(expression, ZoneInfo(zone)), at(start, zone), len(expected.split()))
    assert [text.removesuffix("+00:00") for text in local(firings, zone)] == expected.split()


@pytest.mark.parametrize("row", rows("activemq.txt"), ids=lambda row: f"{row[0]} {row[1]}")
def test_times_are_those_of_activemq(row):
    _name, expression, zone, start, expected = row
    if ours(expected) == "refused":
        with pytest.raises(BadSchedule):
            Cron(expression, ZoneInfo(zone))
        return
    (firing,) = follow(Cron(expression, ZoneInfo(zone)), at(start, zone), 1)
    assert ours(expected) in ("valid", firing.due.isoformat().removesuffix("+00:00"))


def test_the_tables_are_whole():
    assert len({row[0].partition(",")[0] for row in rows("activemq.txt")}) == 16  # the tests of CronParserTest
    assert len({row[0] for row in rows("cronsim.txt")}) == 45  # TestIterator and TestDstTransitions


def times(expression: str, after: datetime, count: int, **options: str) -> list[str]:
    cron = Cron(expression, ZoneInfo(BERLIN), **options)  # type: ignore[arg-type]
    return [text[8:-6] + text[-6:-3] for text in local(follow(cron, after, count), BERLIN)]


def test_a_fixed_time_in_a_gap_runs_at_its_end_or_is_skipped():
    assert times("30 2 * * *", GAP, 2) == ["29T03:00:00+02", "30T02:30:00+02"]
    assert times("30 2 * * *", GAP, 2, gap="skip") == ["30T02:30:00+02", "31T02:30:00+02"]
    assert times("15,45 2 * * *", GAP, 2) == ["29T03:00:00+02", "30T02:15:00+02"]  # one instant, one firing


@pytest.mark.parametrize(("expression", "gap"), [("*/30 2 * 3 0L", "run"), ("30 2 * 3 0L", "skip")])
def test_an_expression_has_no_time_if_clocks_skip_all_of_them(expression, gap):
    assert Cron(expression, ZoneInfo(BERLIN), gap=gap).next_after(at("2026-01-01")) is None


def test_a_fixed_time_in_an_overlap_runs_once_or_twice():
    assert times("30 2 * * *", OVERLAP, 2) == ["25T02:30:00+02", "26T02:30:00+01"]
    both = ["25T02:30:00+02", "25T02:30:00+01", "26T02:30:00+01"]
    assert times("30 2 * * *", OVERLAP, 3, overlap="both") == both
    both = ["25T02:15:00+02", "25T02:45:00+02", "25T02:15:00+01", "25T02:45:00+01", "26T02:15:00+01"]
    assert times("15,45 2 * * *", OVERLAP, 5, overlap="both") == both


def test_a_step_follows_elapsed_time():
    both = ["25T01:30:00+02", "25T02:00:00+02", "25T02:30:00+02", "25T02:00:00+01", "25T02:30:00+01", "25T03:00:00+01"]
    assert times("*/30 * * * *", at("2026-10-25T01:20", BERLIN), 6) == both


def test_a_step_at_fixed_hours_runs_at_the_times_that_clocks_show():
    """Chile's clocks skip the hour after midnight, and those of Lord Howe half an hour."""
    cron = Cron("*/20 1 * * 0", ZoneInfo("America/Santiago"))
    found = local(follow(cron, at("2026-09-05T12:00", "America/Santiago"), 4), "America/Santiago")
    assert [text[8:16] for text in found] == ["06T01:00", "06T01:20", "06T01:40", "13T01:00"]
    cron = Cron("*/20 0 * * *", ZoneInfo("Australia/Lord_Howe"))
    found = local(follow(cron, at("2026-10-04T01:00", "Australia/Lord_Howe"), 4), "Australia/Lord_Howe")
    assert [text[8:16] for text in found] == ["05T00:00", "05T00:20", "05T00:40", "06T00:00"]


def test_times_that_clocks_show_again_are_searched_only_shortly_before():
    """Each time of a cron such as "* * * * *" would otherwise take a search of an hour on the whole day before."""
    moments = [at("2026-10-24T23:59"), at("2026-10-25T00:10"), at("2026-10-25T01:10")]
    found = [first_wall(ZoneInfo(BERLIN), moment).isoformat()[8:16] for moment in moments]
    assert found == ["25T01:59", "25T01:10", "25T02:10"]


def test_a_firing_keeps_the_wall_time_that_clocks_skip():
    firing = Cron("30 2 * * *", ZoneInfo(BERLIN)).next_after(GAP)
    assert firing is not None
    assert firing.label == "2026-03-29T02:30:00"
    assert firing.due == datetime(2026, 3, 29, 1, tzinfo=UTC)


def test_the_second_of_two_equal_times_has_a_label_of_its_own():
    labels = [f.label for f in follow(Cron("30 2 * * *", ZoneInfo(BERLIN), overlap="both"), OVERLAP, 2)]
    assert labels == ["2026-10-25T02:30:00", "2026-10-25T02:30:00/2"]


def test_a_day_that_a_zone_skipped_runs_at_the_beginning_of_the_next():
    """Samoa had no 30 December 2011."""
    cron = Cron("30 12 * * *", ZoneInfo("Pacific/Apia"))
    found = local(follow(cron, at("2011-12-29T13:00", "Pacific/Apia"), 2), "Pacific/Apia")
    assert found == ["2011-12-31T00:00:00+14:00", "2011-12-31T12:30:00+14:00"]


def test_the_last_day_of_the_month():
    assert times("0 9 L 2 *", at("2028-01-01", BERLIN), 1) == ["29T09:00:00+01"]
    assert times("0 9 31 * *", at("2026-02-01", BERLIN), 2) == ["31T09:00:00+02", "31T09:00:00+02"]  # March, May


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("* * * * * *", "with 6 fields; write five"),
        ("* * * *", "with 4 fields"),
        ("", "with 0 fields"),
        ("@reboot", "names such as @daily"),
        ("@daily", "names such as @daily"),
        ("0 0 30 2 *", "no such day comes"),
        ("0 0 31 2 *", "no such day comes"),
        ("0 0 32 2 *", "Bad day-of-month"),
        ("0 0 */100 * MON#4", "no such day comes in 50 years"),
        ("0 0 12-12 * *", "has only one value"),
        ("0 9-9 * * *", "has only one value"),
        ("0 0 * * 5-1", "is backwards"),
        ("0 0 * * fri-mon", "is backwards"),
        ("0 0 * nov-feb *", "is backwards"),
        ("0-59 * * * *", "means every value"),
        ("0-59/5 * * * *", r"write '\*/5'"),
        ("0 0-23/2 * * *", r"write '\*/2'"),
        ("0 0-23 * * *", r"means every value: write '\*'\."),
        ("0 0 1-31 * *", "means every value"),
        ("0 0 * jan-dec *", "means every value"),
        ("0 0 * * 0-6", "means every value"),
        ("0 0 * * 0-7", "means every value"),
        ("0 0 * * sun-sat", "means every value"),
        ("0 0 *,5 * *", "write '\\*' alone"),
        ("0 0 L/2 * *", "step after the last day"),
        ("0 0 -1 * *", "Bad day-of-month"),
        ("*/0 * * * *", "Bad minute"),
        ("61 * * * *", "Bad minute"),
        ("1_0 * * * *", "Bad minute"),
        ("0 0 ? * *", "Bad day-of-month"),
        ("0 0 * * mon " + " " * 300, "give a text"),
        (None, "give a text"),
        (5, "give a text"),
    ],
)
def test_what_is_refused_is_named(expression, words):
    with pytest.raises(BadSchedule, match=words):
        Cron(expression, ZoneInfo("UTC"))


@pytest.mark.parametrize("field", ["61", "-1", "ABC", "2/", "/2", "2#", "#2", "1##1", "1//2", "¹", "LL", "LWX", "x-y"])
@pytest.mark.parametrize(
    "pattern", ["{} * * * *", "* {} * * *", "* * {} * *", "* * * {} *", "* * * * {}", "1-{} * * * *"]
)
def test_a_wrong_field_is_refused(pattern, field):
    with pytest.raises(BadSchedule):
        Cron(pattern.format(field), ZoneInfo("UTC"))
