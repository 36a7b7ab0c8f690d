"""Retry delays: they grow up to the cap, with jitter, and are never zero."""

import dataclasses
import math
import random
import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaytasks import handler, handlers, schedule
from delaytasks.backoff import DEFAULT_BACKOFF, Backoff
from delaytasks.conf import Settings

MAX_ATTEMPTS = 25  # the default
HOUR_MS = 3_600_000


def test_delays_start_at_the_base_and_grow_by_the_factor() -> None:
    delays = Backoff(base_seconds=5, factor=2, cap_seconds=3600, jitter=0)
    assert [delays.delay_ms(failures) for failures in (1, 2, 3, 4)] == [5_000, 10_000, 20_000, 40_000]


def test_no_delay_exceeds_the_cap() -> None:
    delays = Backoff(base_seconds=5, factor=2, cap_seconds=60, jitter=0)
    assert [delays.delay_ms(failures) for failures in (4, 5, 6, 1000)] == [40_000, 60_000, 60_000, 60_000]


def test_a_base_above_the_cap_is_capped() -> None:
    assert Backoff(base_seconds=90, cap_seconds=60, jitter=0).delay_ms(1) == 60_000


def test_with_a_factor_of_one_all_delays_are_equal() -> None:
    assert {Backoff(base_seconds=3, factor=1, jitter=0).delay_ms(failures) for failures in range(1, 50)} == {3_000}


def test_zero_failures_count_as_one() -> None:
    assert Backoff(jitter=0).delay_ms(0) == Backoff(jitter=0).delay_ms(-3) == 5_000


@settings(database=None)
@given(failures=st.integers(1, 200), jitter=st.floats(0, 1), seed=st.integers())
def test_jitter_changes_a_delay_by_at_most_its_share(failures: int, jitter: float, seed: int) -> None:
    without_jitter = Backoff(jitter=0).delay_ms(failures)
    with_jitter = Backoff(jitter=jitter).delay_ms(failures, rng=random.Random(seed))
    assert without_jitter * (1 - jitter) - 1 <= with_jitter <= without_jitter * (1 + jitter) + 1
    assert with_jitter >= 1


def test_jobs_that_fail_together_are_retried_at_different_times() -> None:
    assert len({Backoff().delay_ms(3) for _ in range(20)}) > 10


@settings(database=None)
@given(
    base=st.floats(min_value=0, exclude_min=True),
    factor=st.floats(min_value=1),
    cap=st.floats(0, 1e9, exclude_min=True),
    jitter=st.floats(0, 1),
    failures=st.integers(0, 100_000),
)
def test_all_valid_parameters_give_a_delay_within_the_cap(
    base: float, factor: float, cap: float, jitter: float, failures: int
) -> None:
    delay_ms = Backoff(base, factor, cap, jitter).delay_ms(failures)
    assert 1 <= delay_ms <= max(1, math.ceil(cap * (1 + jitter) * 1000) + 1)


@pytest.mark.parametrize(
    "parameters",
    [
        {"base_seconds": 0},
        {"base_seconds": -1},
        {"base_seconds": math.nan},
        {"factor": 0.5},
        {"factor": math.nan},
        {"cap_seconds": 0},
        {"cap_seconds": math.nan},
        {"cap_seconds": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": math.nan},
    ],
    ids=str,
)
def test_invalid_parameters_are_refused_and_named(parameters: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(parameters))}={next(iter(parameters.values()))}"):
        Backoff(**parameters)


@pytest.mark.parametrize("value", [timedelta(seconds=5), Decimal(5), "5", None, True], ids=repr)
@pytest.mark.parametrize("name", ["base_seconds", "factor", "cap_seconds", "jitter"])
def test_a_parameter_that_is_no_int_or_float_is_refused_and_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^Backoff: {name} is {re.escape(repr(value))}; give an int or a float\.$"):
        Backoff(**{name: value})


def test_the_default_outlives_an_outage_from_friday_evening_to_monday_morning() -> None:
    """Also if the delays vary as they do by chance: their sum varies by a few per cent."""
    rng = random.Random(7)
    totals = [sum(DEFAULT_BACKOFF.delay_ms(n, rng=rng) for n in range(1, MAX_ATTEMPTS)) for _ in range(1000)]
    assert min(totals) > 63 * HOUR_MS
    assert max(totals) < 4 * 24 * HOUR_MS


def test_the_first_delays_of_the_default_are_short_and_none_is_longer_than_six_hours() -> None:
    exact = dataclasses.replace(DEFAULT_BACKOFF, jitter=0)
    assert [exact.delay_ms(n) // 1000 for n in range(1, 11)] == [5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560]
    assert exact.delay_ms(MAX_ATTEMPTS - 1) == 6 * HOUR_MS


def test_a_backoff_that_a_handler_gives_keeps_its_own_defaults() -> None:
    assert Backoff() == Backoff(base_seconds=5, factor=2, cap_seconds=3600, jitter=0.2)


@pytest.mark.parametrize("hours", [2, 63], ids=["two hours", "a weekend"])
def test_a_job_outlives_an_outage_with_the_defaults_and_dies_in_one_without_end(timeouts, hours) -> None:
    end = timeouts.now + timedelta(hours=hours)

    def pay(job) -> None:
        if timeouts.now < end or job.key == "never":
            raise ConnectionError

    handler("test.pay")(pay)
    try:
        schedule("test.pay", "a", delay=0)
        schedule("test.pay", "never", delay=0)
        runs = timeouts.advance(days=10)
    finally:
        handlers.unregister("test.pay")
    assert [run.outcome for run in runs if run.key == "a"][-1] == "finished"
    never = [run for run in runs if run.key == "never"]
    assert (len(never), never[-1].outcome) == (MAX_ATTEMPTS, "dead")
    assert timedelta(days=3) < never[-1].at - never[0].at < timedelta(days=4)


def test_a_subclass_may_have_fields_of_its_own() -> None:
    @dataclasses.dataclass(frozen=True)
    class Named(Backoff):
        name: str = "of the bank"

    assert Named(base_seconds=1).name == "of the bank"


def test_topics_without_a_handler_have_the_same_number_of_attempts() -> None:
    assert Settings().max_attempts == MAX_ATTEMPTS
