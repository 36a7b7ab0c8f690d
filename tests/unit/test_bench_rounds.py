"""The order of the benchmark's figures, and what becomes of a contestant that cannot keep up."""

import pytest

from benchmarks import filling
from benchmarks.drivers import DriverFailed
from benchmarks.plan import Form, Measured, Options
from benchmarks.results import Result
from benchmarks.rounds import Run


class FakeSink:
    def await_count(self, *_, **__):
        return True


class FakeStand:
    """Fills take `needs_seconds` of a clock that stands still otherwise."""

    database = "postgres"

    def __init__(self, name, can=(), needs_seconds=0.0):
        self.name = self.label = name
        self.said = {"can": can}
        self.needs_seconds = needs_seconds
        self.now = 1000.0
        self.slowness = {}
        self.sink = FakeSink()
        self.done = []

    def do(self, command, **fields):
        self.now += self.needs_seconds
        self.done.append(command)

    def revive(self):
        pass

    def clear(self):
        self.done.append("clear")

    def analyze(self):
        self.done.append("analyze")

    def await_quiet(self):
        return True


@pytest.fixture
def clocked(monkeypatch):
    def use(stand):
        monkeypatch.setattr(filling.time, "time", lambda: stand.now)
        return stand

    return use


def fill(stand):
    return filling.fill_ahead(stand, "noop", 5000, lambda start: [start] * 5000)


def test_a_fill_in_time_is_due_some_seconds_after_it_began(clocked):
    stand = clocked(FakeStand("x", needs_seconds=1))
    assert fill(stand) == 1005  # 3 seconds, and 5,000 at 2,500 in a second
    assert (stand.done, stand.slowness) == (["fill", "analyze"], {})


def test_a_fill_that_was_too_slow_begins_earlier_the_next_time(clocked):
    stand = clocked(FakeStand("x", needs_seconds=7))
    fill(stand)
    assert (stand.done, stand.slowness) == (["fill", "clear", "fill", "analyze"], {"noop": 2})
    stand.done.clear()
    fill(stand)
    assert stand.done == ["fill", "analyze"]


def test_a_contestant_that_never_keeps_up_is_given_up(clocked):
    with pytest.raises(DriverFailed, match="5000 jobs of kind noop could not be filled"):
        fill(clocked(FakeStand("x", needs_seconds=1000)))


def run(stands, forms, repeats=3):
    result, saved = Result(), []
    Run(stands, Options(repeats=repeats), result, lambda: saved.append(len(result.figures))).scenario(forms)
    return result, saved


def test_contestants_take_turns_and_the_first_is_another_in_each_round():
    order = []

    def measure(stand, options):
        order.append(stand.name)
        return Measured(1.0)

    forms = [Form("s", "a", "u", measure), Form("s", "b", "u", measure, needs="b", repeats=1)]
    run([FakeStand("x", ["b"]), FakeStand("y"), FakeStand("z")], forms)
    assert "".join(order) == "xyz" + "x" + "yzx" + "zxy"


def test_one_measure_may_have_several_figures():
    several = [Measured(1.0, form="p"), Measured(2.0, {"z": 3.0}, form="q", unit="w", better="less")]
    result, _ = run([FakeStand("x")], [Form("s", "a", "u", lambda *_: several)], repeats=2)
    assert [(f.form, f.unit, f.better, f.values) for f in result.figures] == [
        ("p", "u", "more", [1.0, 1.0]),
        ("q", "w", "less", [2.0, 2.0]),
    ]


def test_who_fails_is_noted_and_soon_left_alone_while_the_others_go_on():
    asked = []

    def measure(stand, options):
        asked.append(stand.name)
        if stand.name == "x":
            raise DriverFailed("x: broken\nits log")
        return Measured(5.0)

    result, saved = run([FakeStand("x"), FakeStand("y")], [Form("s", "a", "u", measure)])
    assert asked.count("x") == 2
    assert [(f.contestant, f.values) for f in result.figures] == [("y", [5.0] * 3)]
    assert result.notes == ["s a, round 1: x: broken", "s a, round 2: x: broken"]
    assert len(saved) == 5  # after each figure, so that nothing is lost when the run is broken off
