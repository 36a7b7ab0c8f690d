"""every=, and delay, period, repeat and cron together: the cases of ActiveMQ's scheduled messages."""

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaytasks.exceptions import BadSchedule
from delaytasks.recurrence.cron import Cron
from delaytasks.recurrence.intervals import Every, Series

from .tables import at, follow, local, rows

BERLIN = ZoneInfo("Europe/Berlin")
START = datetime(2026, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


def seconds(series: Series, after: datetime = START - SECOND, count: int = 100) -> list[float]:
    """Return the times as seconds after START."""
    return [(firing.due - START).total_seconds() for firing in follow(series, after, count)]


def test_every_counts_elapsed_time_without_drift():
    every = Every(timedelta(hours=7), BERLIN, start=at("2026-10-24T20:00", "Europe/Berlin"))
    found = local(follow(every, at("2026-10-24T20:00", "Europe/Berlin"), 2), "Europe/Berlin")
    assert found == ["2026-10-25T02:00:00+01:00", "2026-10-25T09:00:00+01:00"]


def test_the_start_is_the_first_time():
    assert [f.due for f in follow(Every(HOUR, BERLIN, start=START), START - 5 * HOUR, 2)] == [START, START + HOUR]


@given(st.integers(100, 10**9), st.integers(-(10**11), 10**11))
def test_every_is_the_next_multiple(interval_ms, after_ms):
    interval, after = timedelta(milliseconds=interval_ms), START + timedelta(milliseconds=after_ms)
    found = Every(interval, BERLIN, start=START).next_after(after)
    assert found is not None
    assert (found.due - START) % interval == timedelta()
    assert found.due > after
    assert found.due == START or found.due - interval <= after


@pytest.mark.parametrize("row", rows("activemq_jms.txt"), ids=lambda row: row[0])
def test_times_are_those_of_activemqs_scheduled_messages(row: list[str]):
    """Repeat n is n + 1 runs; each time of cron starts a series."""
    _name, given, expected = row
    options: dict[str, Any] = dict(part.split("=") for part in given.split())
    for name in {"delay", "period"} & options.keys():
        options[name] = float(options[name]) * SECOND
    if "repeat" in options:
        options["repeat"] = int(options["repeat"])
    if "cron" in options:
        options["cron"] = Cron(options["cron"].replace("_", " "), BERLIN)
    *times, last = expected.split()
    count = 100 if last == "end" else len(times) + 1
    assert seconds(Series(BERLIN, start=START, **options), START - SECOND, count) == [
        float(each) for each in expected.removesuffix(" end").split()
    ]


def test_series_that_overlap_are_in_order_and_one_instant_is_one_firing():
    series = Series(BERLIN, start=START, period=30 * SECOND, repeat=3, cron=Cron("* * * * *", BERLIN))
    assert seconds(series, START + 5 * MINUTE, 3) == [330, 360, 390]


def test_without_repeat_a_series_has_no_end():
    series = Series(BERLIN, start=START, period=MINUTE, repeat=None)
    assert seconds(series, START + timedelta(days=400), 1) == [400 * 86_400 + 60]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"period": timedelta()}, "period is"),
        ({"period": 0}, "period is datetime.timedelta\\(0\\)"),
        ({"period": -1}, "period is -1"),
        ({"period": True}, "period is True"),
        ({"period": timedelta(days=4000)}, "period is"),
        ({"period": timedelta(seconds=1, microseconds=1)}, "whole milliseconds"),
        ({"delay": -SECOND}, "delay is"),
        ({"delay": "1"}, "delay is"),
        ({"repeat": 3}, "without period"),
        ({"repeat": None}, "without period"),
        ({"period": SECOND, "repeat": -1}, "repeat is -1"),
        ({"period": SECOND, "repeat": 1.5}, "repeat is 1.5"),
        ({"period": SECOND, "repeat": 10**7}, "repeat is"),
        ({"period": SECOND, "repeat": None, "cron": Cron("0 * * * *", BERLIN)}, "31 days at most"),
        ({"period": HOUR, "repeat": 1000, "cron": Cron("0 * * * *", BERLIN)}, "31 days at most"),
        ({"period": MINUTE, "repeat": 1000, "cron": Cron("* * * * *", BERLIN)}, "more than 1,000 would run"),
    ],
)
def test_what_is_refused_is_named(options: dict[str, Any], words):
    with pytest.raises(BadSchedule, match=words):
        Series(BERLIN, start=START, **options)


def test_a_thousand_series_of_a_cron_may_run_at_the_same_time():
    Series(BERLIN, start=START, period=MINUTE, repeat=999, cron=Cron("* * * * *", BERLIN))
    Series(BERLIN, start=START, delay=timedelta(days=31), cron=Cron("* * * * *", BERLIN))


@pytest.mark.parametrize("interval", [0, -5, timedelta(), timedelta(milliseconds=99), "1h", None, float("nan")])
def test_an_interval_is_at_least_a_tenth_of_a_second(interval):
    with pytest.raises(BadSchedule, match="every is"):
        Every(interval, BERLIN, start=START)
