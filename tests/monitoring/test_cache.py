"""The shared cache for statistics, also with a cache that is missing or fails."""

import logging

import pytest
from django.core.cache import cache

from delaytasks.circuit_breaker import CircuitBreaker
from delaytasks.monitoring import cache as stats_cache
from delaytasks.monitoring.caching import shared_cache


@pytest.fixture(autouse=True)
def _closed_breaker() -> None:
    stats_cache._breaker.reset()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(stats_cache, "time", self)
        breaker = CircuitBreaker(Exception, stats_cache.PAUSE_SECONDS, monotonic=self.monotonic)
        monkeypatch.setattr(stats_cache, "_breaker", breaker)

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_a_value_is_computed_once_while_it_is_fresh(clock):
    calls = []
    for _ in range(3):
        assert stats_cache.get_or_compute("n", 5, lambda previous: calls.append(previous) or len(calls)) == 1
        clock.now += 2
    clock.now += 5
    assert stats_cache.get_or_compute("n", 5, lambda previous: calls.append(previous) or len(calls)) == 2
    assert calls == [None, 1]  # compute() receives the previous value


def test_a_value_that_is_slow_to_compute_is_kept_longer(clock):
    def slow(previous: object) -> str:
        clock.now += 3
        return "slow"

    stats_cache.get_or_compute("n", 5, slow)
    clock.now += 3 * stats_cache.FRESH_PER_COMPUTE_SECOND - 1
    assert stats_cache.get_or_compute("n", 5, lambda previous: "again") == "slow"
    clock.now += 5
    assert stats_cache.get_or_compute("n", 5, lambda previous: "again") == "again"


def test_a_value_whose_computation_hung_is_soon_computed_again(clock):
    def hang(previous):
        clock.now += 300
        return "old"

    stats_cache.get_or_compute("n", 4, hang)
    clock.now += 31
    assert stats_cache.get_or_compute("n", 4, lambda previous: "new") == "new"


def test_a_value_of_a_host_whose_clock_is_ahead_is_not_fresh(clock):
    clock.now += 600
    stats_cache.get_or_compute("n", 5, lambda previous: "ahead")
    clock.now -= 60
    assert stats_cache.get_or_compute("n", 5, lambda previous: "now") == "now"
    assert stats_cache.get_or_compute("n", 5, lambda previous: pytest.fail("it is fresh")) == "now"


def test_while_one_caller_computes_the_others_get_the_previous_value(clock):
    stats_cache.get_or_compute("n", 5, lambda previous: "old")
    clock.now += 6

    def compute(previous: object) -> str:
        assert stats_cache.get_or_compute("n", 5, lambda previous: pytest.fail("computed twice at once")) == "old"
        return "new"

    assert stats_cache.get_or_compute("n", 5, compute) == "new"
    assert stats_cache.get_or_compute("n", 5, lambda previous: pytest.fail("it is fresh")) == "new"


def test_while_a_computation_hangs_the_others_get_no_value_that_is_much_older(clock):
    stats_cache.get_or_compute("n", 5, lambda previous: "old")
    clock.now += 5 + stats_cache.WORKING_SECONDS

    def hang(previous: object) -> str:
        assert stats_cache.get_or_compute("n", 5, lambda previous: "new") == "new"
        return "late"

    assert stats_cache.get_or_compute("n", 5, hang) == "late"


def test_a_failed_computation_does_not_block_the_next_caller(clock):
    stats_cache.get_or_compute("n", 5, lambda previous: "old")
    clock.now += 6
    with pytest.raises(ZeroDivisionError):
        stats_cache.get_or_compute("n", 5, lambda previous: 1 / 0)
    assert stats_cache.get_or_compute("n", 5, lambda previous: "new") == "new"


def test_a_failing_cache_is_logged_once_and_not_tried_again_for_a_while(monkeypatch, caplog, clock):
    operations = []

    class Broken:
        def __getattr__(self, name: str) -> object:
            def fail(*args: object) -> None:
                operations.append(name)
                raise ConnectionError("no Redis")

            return fail

    monkeypatch.setattr(shared_cache, "cache", Broken())
    with caplog.at_level(logging.WARNING, logger="delaytasks"):
        assert [stats_cache.get_or_compute("n", 5, lambda previous: "made") for _ in range(3)] == ["made"] * 3
    assert operations == ["get"]
    assert len(caplog.records) == 1
    clock.now += stats_cache.PAUSE_SECONDS
    stats_cache.get_or_compute("n", 5, lambda previous: "made")
    assert len(operations) == 2


def test_a_foreign_value_under_the_same_key_is_ignored(clock):
    cache.set("n", "something else")
    assert stats_cache.get_or_compute("n", 5, lambda previous: "made") == "made"


def test_cache_keys_are_short_and_distinct():
    many = [f"a.rather.long.topic.name.{n}" for n in range(500)]
    keys = {
        stats_cache.cache_key("due", "default"), stats_cache.cache_key("due", "default", topics=[]),
        stats_cache.cache_key("due", "default", topics=["a", "b"]),
        stats_cache.cache_key("due", "default", topics=["ab"]),
        stats_cache.cache_key("due", "default", topics=many), stats_cache.cache_key("now", "default"),
    }  # fmt: skip
    assert len(keys) == 6
    assert all(len(key) < 120 for key in keys)
    assert stats_cache.cache_key("due", topics=["b", "a"]) == stats_cache.cache_key("due", topics=["a", "b"])
