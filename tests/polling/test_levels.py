"""Delay levels by number, and durations as text."""

from datetime import timedelta

import pytest

from delaytasks import levels
from delaytasks.exceptions import BadDelay
from delaytasks.polling.durations import to_duration

ROCKETMQ = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"


def test_the_levels_of_rocketmq_are_known_by_name_and_counted_from_1():
    known = levels("rocketmq")
    assert list(known) == list(levels(ROCKETMQ))
    assert (len(known), known[1], known[3], known[18]) == (
        18, timedelta(seconds=1), timedelta(seconds=10), timedelta(hours=2),
    )  # fmt: skip


@pytest.mark.parametrize(("delay", "level"), [(0, 1), ("1s", 1), ("1001ms", 2), (17, 4), (30, 4), ("2h", 18)])
def test_a_delay_is_rounded_up_to_a_level(delay, level):
    known = levels("RocketMQ")
    assert (known.level(delay), known.round_up(delay)) == (level, known[level])


def test_a_delay_beyond_the_longest_level_is_refused():
    with pytest.raises(BadDelay, match="the longest level is 2:00:00: give schedule"):
        levels("rocketmq").round_up("2h1s")


@pytest.mark.parametrize("level", [0, 19, -1, "3", True, 3.0])
def test_a_level_that_does_not_exist_is_refused(level):
    with pytest.raises(BadDelay, match="the levels are 1 to 18"):
        levels("rocketmq")[level]


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "levels is empty"), ("1s soon", "level 2 is 'soon'"), ("10s 5s", "must grow"), (None, "levels is None"),
     ("5s 5s", "must grow")],
)  # fmt: skip
def test_levels_that_make_no_sense_are_refused(text, message):
    with pytest.raises(BadDelay, match=message):
        levels(text)


def test_levels_are_described_by_their_delays():
    assert repr(levels("1s 1m")) == "<Levels 1 to 2: 0:00:01, 0:01:00>"


@pytest.mark.parametrize(
    ("given", "duration"),
    [("90s", timedelta(seconds=90)), ("1h30m", timedelta(minutes=90)), ("1.5h", timedelta(minutes=90)),
     ("250ms", timedelta(milliseconds=250)), ("366d", timedelta(days=366)), (1.0001, timedelta(milliseconds=1001)),
     (timedelta(microseconds=1), timedelta(milliseconds=1)), (0, timedelta(0))],
)  # fmt: skip
def test_a_duration_is_text_a_timedelta_or_seconds(given, duration):
    assert to_duration(given, what="delay") == duration


@pytest.mark.parametrize(
    "given", ["", "s", "10", "10 m", "-1s", "1m1m", "10M", "367d", "1h 30m", "9" * 30 + "s", float("nan"), 1e300,
              True, None, [1], timedelta(days=-1), "١s"],
)  # fmt: skip
def test_what_is_no_duration_is_refused_with_its_name(given):
    with pytest.raises(BadDelay, match="delay is"):
        to_duration(given, what="delay")
