"""What was worked out is kept for a moment, whatever the cache is like."""

import logging
from collections.abc import Iterator

import pytest
from django.core.cache import cache

from delaytasks import keeping


@pytest.fixture(autouse=True)
def _empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(keeping, "_left_alone_until", 0.0)
    cache.clear()
    yield
    cache.clear()


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000_000.0
        monkeypatch.setattr(keeping, "time", self)

    def time(self) -> float:
        return self.now

    monotonic = time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_it_is_worked_out_once_while_it_is_fresh(clock):
    made = []
    for _ in range(3):
        assert keeping.keep("n", 5, lambda before: made.append(before) or len(made)) == 1
        clock.now += 2
    clock.now += 5
    assert keeping.keep("n", 5, lambda before: made.append(before) or len(made)) == 2
    assert made == [None, 1]  # what it was before is told


def test_what_takes_long_is_kept_longer(clock):
    def slow(before: object) -> str:
        clock.now += 3
        return "slow"

    keeping.keep("n", 5, slow)
    clock.now += 3 * keeping.WORTH - 1
    assert keeping.keep("n", 5, lambda before: "again") == "slow"
    clock.now += 5
    assert keeping.keep("n", 5, lambda before: "again") == "again"


def test_while_one_works_it_out_the_others_get_what_it_was_before(clock):
    keeping.keep("n", 5, lambda before: "old")
    clock.now += 6

    def work(before: object) -> str:
        assert keeping.keep("n", 5, lambda before: pytest.fail("twice at once")) == "old"
        return "new"

    assert keeping.keep("n", 5, work) == "new"
    assert keeping.keep("n", 5, lambda before: pytest.fail("it is fresh")) == "new"


def test_whoever_fails_to_work_it_out_keeps_nobody_else_from_it(clock):
    keeping.keep("n", 5, lambda before: "old")
    clock.now += 6
    with pytest.raises(ZeroDivisionError):
        keeping.keep("n", 5, lambda before: 1 / 0)
    assert keeping.keep("n", 5, lambda before: "new") == "new"


def test_a_cache_that_fails_is_said_once_and_left_alone_for_a_moment(monkeypatch, caplog, clock):
    asked = []

    class Broken:
        def __getattr__(self, name: str) -> object:
            def fail(*args: object) -> None:
                asked.append(name)
                raise ConnectionError("no Redis")

            return fail

    monkeypatch.setattr(keeping, "cache", Broken())
    with caplog.at_level(logging.WARNING, logger="delaytasks"):
        assert [keeping.keep("n", 5, lambda before: "made") for _ in range(3)] == ["made"] * 3
    assert asked == ["get"]
    assert len(caplog.records) == 1
    clock.now += keeping.PAUSE_SECONDS
    keeping.keep("n", 5, lambda before: "made")
    assert len(asked) == 2


def test_what_somebody_else_left_there_is_no_answer(clock):
    cache.set("n", "something else")
    assert keeping.keep("n", 5, lambda before: "made") == "made"


def test_names_are_short_and_tell_apart():
    many = [f"a.rather.long.topic.name.{n}" for n in range(500)]
    names = {
        keeping.name_of("due", "default"), keeping.name_of("due", "default", topics=[]),
        keeping.name_of("due", "default", topics=["a", "b"]), keeping.name_of("due", "default", topics=["ab"]),
        keeping.name_of("due", "default", topics=many), keeping.name_of("now", "default"),
    }  # fmt: skip
    assert len(names) == 6
    assert all(len(name) < 120 for name in names)
    assert keeping.name_of("due", topics=["b", "a"]) == keeping.name_of("due", topics=["a", "b"])
