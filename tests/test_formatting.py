"""Formatting of durations, times and errors."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone
from django.utils.functional import Promise

from delaytasks import formatting

NOW = datetime(2030, 1, 1, tzinfo=UTC)
SECOND, MINUTE, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (SECOND, "1 s"),
        (59_999, "59 s"),
        (MINUTE, "1 min"),
        (HOUR - 1, "59 min"),
        (HOUR, "1 h 0 min"),
        (3 * HOUR + 20 * MINUTE, "3 h 20 min"),
        (DAY, "1 d 0 h"),
        (400 * DAY + 5 * HOUR, "400 d 5 h"),
    ],
)
def test_a_span_is_formatted_with_at_most_two_units(ms, text):
    assert formatting.duration(ms) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (12 * MINUTE, "in 12 min"),
        (-4 * SECOND, "4 s ago"),
        (999, "now"),
        (-999, "now"),
        (SECOND, "in 1 s"),
        (-SECOND, "1 s ago"),
    ],
)
def test_relative_times(ms, text):
    assert formatting.relative(NOW + timedelta(milliseconds=ms), NOW) == text


def test_absolute_times_use_the_active_time_zone():
    at = NOW + timedelta(microseconds=1999)
    with timezone.override("Asia/Kathmandu"):
        assert formatting.absolute(at) == "2030-01-01 05:45:00"
        assert formatting.absolute(at, ms=True) == "2030-01-01 05:45:00.001"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        ("", ""),
        (" \n\n ", ""),
        ("boom", "boom"),
        ("Traceback:\n  File x\nValueError: no\n\n", "ValueError: no"),
        ("x" * 500, "x" * 159 + "…"),
    ],
)
def test_an_error_is_shortened_to_one_line(error, line):
    assert formatting.last_line(error) == line


def test_labels_of_states_and_outcomes_are_translated_lazily():
    assert all(isinstance(label, Promise) for label in [*formatting.STATES.values(), *formatting.OUTCOMES.values()])
