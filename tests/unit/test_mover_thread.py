"""The mover's thread between its passes: the guard once a tick, and a word to beat that it looks."""

from types import SimpleNamespace
from typing import Any

import pytest

from delaytasks import beat, engine, mover_thread, sweeper
from delaytasks.mover_thread import MoverThread

TICK_MS = 1000


class Stand:
    """A thread that never runs, its clock, and what it did."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.guards: list[float] = []
        self.said: list[Any] = []
        self.takes = 0.0
        self.fails = False
        self.thread = MoverThread()
        self.thread._movers["default"] = SimpleNamespace(move_due=lambda: self.rest_ms)  # type: ignore[assignment]
        self.rest_ms = TICK_MS
        found = SimpleNamespace(say_moving=lambda *args: self.said.append(args))
        monkeypatch.setattr(mover_thread, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(sweeper, "guard", self.guard)
        monkeypatch.setattr(engine, "mirror_of", lambda using: found)

    def guard(self, using: str) -> None:
        self.guards.append(self.now)
        self.now += self.takes
        if self.fails:
            raise RuntimeError("the guard failed")


@pytest.fixture
def stand(monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(monkeypatch)


def test_however_many_passes_there_are_the_guard_comes_once_a_tick(stand: Stand) -> None:
    stand.rest_ms = 10
    for _ in range(201):
        stand.thread._pass("default")
        stand.now += 0.010
    assert len(stand.guards) == 3


def test_a_rest_ends_when_the_guard_is_to_come_again(stand: Stand) -> None:
    assert stand.thread._pass("default") == TICK_MS
    stand.now += 0.625
    assert stand.thread._pass("default") == 375
    stand.now += 0.375
    stand.thread._pass("default")
    assert stand.guards == [100.0, 101.0]


def test_the_time_that_a_guard_takes_is_part_of_its_tick(stand: Stand) -> None:
    stand.takes = 0.25
    assert stand.thread._pass("default") == 750
    stand.now += 0.75
    stand.takes = 1.5
    assert stand.thread._pass("default") == 0


def test_after_each_guard_it_says_that_it_looks_for_longer_than_a_tick(stand: Stand) -> None:
    stand.thread._pass("default")
    assert stand.said == [(beat.handlers(), 1500)]


def test_a_thread_whose_guard_fails_does_not_say_that_it_looks_and_goes_on(stand: Stand, caplog) -> None:
    stand.fails = True
    assert stand.thread._pass("default") == TICK_MS
    assert "a pass failed" in caplog.text
    assert stand.said == []
