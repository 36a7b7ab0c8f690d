"""Durations as text: what is one, and the message for each mistake. No Spark."""

import pytest

from delaytasks.pipeline.delays import durations


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("60 days", (60, 0)), ("1 day", (1, 0)), (" 2  Weeks ", (14, 0)), ("90 minutes", (None, 5400)),
        ("48 hours", (None, 172_800)), ("0 seconds", (None, 0)), ("3650 days", (3650, 0)), ("30days", (30, 0)),
    ],
)  # fmt: skip
def test_a_number_and_a_unit_are_a_duration(text: str, found: tuple[int | None, int]) -> None:
    assert durations.parse(text) == found


@pytest.mark.parametrize("text", ["60", "1e3", "1.5", "interval 60 days", "grace", "days * 86400", "60 * 60", ""])
def test_anything_else_is_an_expression(text: str) -> None:
    assert durations.parse(text) is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("60 dayz", "'dayz' is not a unit: use seconds, minutes, hours, days, weeks"),
        ("2 months", "'months' is not a unit"),
        ("60d", "'d' is not a unit"),  # a floating-point number of Spark
        ("-1 days", "must not be negative"),
        ("1.5 days", "give a whole number of a smaller unit"),
        ("3651 days", "at most ten years"),
        ("99999999999 hours", "at most ten years"),
    ],
)
def test_a_mistake_in_a_duration_is_reported(text: str, problem: str) -> None:
    with pytest.raises(durations.BadDuration, match=problem):
        durations.parse(text)
