"""The order of the benchmark's measurements, and contestants that are too slow or fail."""

import pytest

from benchmarks import filling
from benchmarks.drivers import DriverFailed
from benchmarks.plan import Form, Measured, Options
from benchmarks.results import Result
from benchmarks.rounds import Run

pytestmark = pytest.mark.tools


class FakeSink:
    def await_count(self, *_, **__):
        return True


class FakeTestbed:
    """A testbed whose fills advance a fixed clock by `needs_seconds`."""

    database = "postgres"

    def __init__(self, name, can=(), needs_seconds=0.0):
        self.name = self.label = name
        self.info = {"can": can}
        self.needs_seconds = needs_seconds
        self.now = 1000.0
        self.slowness = {}
        self.sink = FakeSink()
        self.commands = []

    def do(self, command, **fields):
        self.now += self.needs_seconds
        self.commands.append(command)

    def revive(self):
        pass

    def clear(self):
        self.commands.append("clear")

    def analyze(self):
        self.commands.append("analyze")

    def await_quiet(self):
        return True


@pytest.fixture
def use_clock(monkeypatch):
    def patch(testbed):
        monkeypatch.setattr(filling.time, "time", lambda: testbed.now)
        return testbed

    return patch


def fill(testbed):
    return filling.fill_ahead(testbed, "noop", 5000, lambda start: [start] * 5000)


def test_jobs_of_a_fill_are_due_some_seconds_after_its_start(use_clock):
    testbed = use_clock(FakeTestbed("x", needs_seconds=1))
    assert fill(testbed) == 1005  # 3 s, and 5,000 jobs at 2,500 per second
    assert (testbed.commands, testbed.slowness) == (["fill", "analyze"], {})


def test_a_slow_fill_starts_earlier_the_next_time(use_clock):
    testbed = use_clock(FakeTestbed("x", needs_seconds=7))
    fill(testbed)
    assert (testbed.commands, testbed.slowness) == (["fill", "clear", "fill", "analyze"], {"noop": 2})
    testbed.commands.clear()
    fill(testbed)
    assert testbed.commands == ["fill", "analyze"]


def test_a_contestant_that_is_always_too_slow_fails(use_clock):
    with pytest.raises(DriverFailed, match="5000 jobs of kind noop could not be filled"):
        fill(use_clock(FakeTestbed("x", needs_seconds=1000)))


def run(testbeds, forms, repeats=3):
    result, saved = Result(), []
    Run(testbeds, Options(repeats=repeats), result, lambda: saved.append(len(result.figures))).scenario(forms)
    return result, saved


def test_each_round_starts_with_another_contestant():
    order = []

    def measure(testbed, options):
        order.append(testbed.name)
        return Measured(1.0)

    forms = [Form("s", "a", "u", measure), Form("s", "b", "u", measure, needs="b", repeats=1)]
    run([FakeTestbed("x", ["b"]), FakeTestbed("y"), FakeTestbed("z")], forms)
    assert "".join(order) == "xyz" + "x" + "yzx" + "zxy"


def test_one_measure_may_have_several_figures():
    several = [Measured(1.0, form="p"), Measured(2.0, {"z": 3.0}, form="q", unit="w", better="less")]
    result, _ = run([FakeTestbed("x")], [Form("s", "a", "u", lambda *_: several)], repeats=2)
    assert [(f.form, f.unit, f.better, f.values) for f in result.figures] == [
        ("p", "u", "more", [1.0, 1.0]),
        ("q", "w", "less", [2.0, 2.0]),
    ]


def test_a_failing_contestant_is_noted_and_skipped_while_the_others_continue():
    measured = []

    def measure(testbed, options):
        measured.append(testbed.name)
        if testbed.name == "x":
            raise DriverFailed("x: broken\nits log")
        return Measured(5.0)

    result, saved = run([FakeTestbed("x"), FakeTestbed("y")], [Form("s", "a", "u", measure)])
    assert measured.count("x") == 2
    assert [(f.contestant, f.values) for f in result.figures] == [("y", [5.0] * 3)]
    assert result.notes == ["s a, round 1: x: broken", "s a, round 2: x: broken"]
    assert len(saved) == 5  # after each figure, so that an interrupted run keeps them
