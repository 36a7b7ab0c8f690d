"""How long a failed job waits: longer each time, never beyond the cap and its jitter, never at once."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from delaytasks.backoff import Backoff


def test_delays_grow_by_the_factor_from_the_base_on() -> None:
    calm = Backoff(base_seconds=5, factor=2, cap_seconds=3600, jitter=0)
    assert [calm.delay_ms(failures) for failures in (1, 2, 3, 4)] == [5_000, 10_000, 20_000, 40_000]


def test_the_cap_ends_the_growth() -> None:
    calm = Backoff(base_seconds=5, factor=2, cap_seconds=60, jitter=0)
    assert [calm.delay_ms(failures) for failures in (4, 5, 6, 1000)] == [40_000, 60_000, 60_000, 60_000]


def test_a_base_above_the_cap_waits_for_the_cap() -> None:
    assert Backoff(base_seconds=90, cap_seconds=60, jitter=0).delay_ms(1) == 60_000


def test_a_factor_of_one_waits_the_same_each_time() -> None:
    assert {Backoff(base_seconds=3, factor=1, jitter=0).delay_ms(failures) for failures in range(1, 50)} == {3_000}


def test_no_failures_yet_waits_like_the_first() -> None:
    assert Backoff(jitter=0).delay_ms(0) == Backoff(jitter=0).delay_ms(-3) == 5_000


@settings(database=None)
@given(failures=st.integers(1, 200), jitter=st.floats(0, 1), seed=st.integers())
def test_jitter_spreads_a_delay_by_its_share_and_no_further(failures: int, jitter: float, seed: int) -> None:
    calm = Backoff(jitter=0).delay_ms(failures)
    spread = Backoff(jitter=jitter).delay_ms(failures, rng=random.Random(seed))
    assert calm * (1 - jitter) - 1 <= spread <= calm * (1 + jitter) + 1
    assert spread >= 1


def test_two_jobs_that_fail_together_do_not_come_back_together() -> None:
    assert len({Backoff().delay_ms(3) for _ in range(20)}) > 10


@settings(database=None)
@given(
    base=st.floats(min_value=0, exclude_min=True),
    factor=st.floats(min_value=1),
    cap=st.floats(0, 1e9, exclude_min=True),
    jitter=st.floats(0, 1),
    failures=st.integers(0, 100_000),
)
def test_whatever_terms_are_accepted_there_is_a_delay_within_the_cap(
    base: float, factor: float, cap: float, jitter: float, failures: int
) -> None:
    delay_ms = Backoff(base, factor, cap, jitter).delay_ms(failures)
    assert 1 <= delay_ms <= max(1, math.ceil(cap * (1 + jitter) * 1000) + 1)


@pytest.mark.parametrize(
    "terms",
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
def test_terms_that_make_no_delay_are_refused_and_named(terms: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(terms))}={next(iter(terms.values()))}"):
        Backoff(**terms)
