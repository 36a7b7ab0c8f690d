"""Saving, merging and comparing the benchmark's figures."""

import math

import pytest

from benchmarks import compare
from benchmarks.results import Figure, Result, load, merged, ratio

pytestmark = pytest.mark.tools


def burst(values, contestant="delaytasks", form="batch", **more):
    return Figure("burst", form, contestant, "jobs/s", values=values, more=more)


def test_a_saved_result_is_loaded_unchanged(tmp_path):
    result = Result({"processor": "x"}, {"delaytasks": "1"}, {"delaytasks": {"name": "x"}}, seconds=3.5)
    result.figure("burst", "batch", "delaytasks", "jobs/s", "more").add(100.0, {"p99_ms": 3.0})
    result.save(tmp_path / "deep" / "last.json")
    assert load(tmp_path / "deep" / "last.json") == result
    assert not list(tmp_path.glob("**/*.partial"))


def test_each_repeat_adds_a_value_to_the_same_figure():
    result = Result()
    for value in (3.0, 1.0, 2.0):
        result.figure("burst", "batch", "delaytasks", "jobs/s", "more").add(value, {"early": value})
    (figure,) = result.figures
    assert (figure.values, figure.median, figure.number("early")) == ([3.0, 1.0, 2.0], 2.0, 2.0)


def test_a_missing_number_is_nan():
    assert math.isnan(burst([1.0]).number("p99_ms"))
    assert math.isnan(burst([]).median)
    assert burst([math.nan, 4.0]).median == 4.0


def test_a_ratio_to_zero_is_nan():
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(3.0, 2.0) == 1.5


def test_of_two_runs_with_the_same_figure_the_last_one_wins():
    first = Result(figures=[burst([1.0]), burst([2.0], "celery")], versions={"celery": "5"}, seconds=1)
    second = Result(figures=[burst([9.0])], versions={"delaytasks": "2"}, notes=["n"], seconds=2)
    total = merged([first, second])
    assert {figure.contestant: figure.median for figure in total.figures} == {"celery": 2.0, "delaytasks": 9.0}
    assert (total.versions, total.notes, total.seconds) == ({"celery": "5", "delaytasks": "2"}, ["n"], 3)


@pytest.mark.parametrize(
    ("old", "new", "better", "verdict"),
    [
        ([10, 11, 12], [11.5, 13, 14], "more", ""),  # they overlap
        ([10, 11, 12], [13, 14, 15], "more", "better"),
        ([10, 11, 12], [13, 14, 15], "less", "worse"),
        ([10, 11, 12], [7, 8, 9], "more", "worse"),
        ([10, 11, 12], [7, 8, 9], "less", "better"),
        ([100], [110], "more", ""),  # one repeat each: within the assumed spread
        ([100], [150], "more", "better"),
        ([], [150], "more", ""),
    ],
)
def test_a_change_counts_only_beyond_the_spread(old, new, better, verdict):
    before, now = (Figure("burst", "batch", "x", "u", better, values) for values in (old, new))
    assert compare.verdict(before, now) == verdict


def test_a_change_from_zero_is_detected():
    before, now = (Figure("pending", "week", "x", "bytes", "less", values) for values in ([0, 0], [5, 6]))
    assert compare.verdict(before, now) == "worse"


def test_only_figures_of_both_runs_in_one_unit_are_compared():
    old = Result(figures=[burst([100.0, 110.0]), Figure("idle", "cpu", "x", "%"), burst([1.0], "gone")])
    new = Result(figures=[burst([210.0, 220.0]), Figure("idle", "cpu", "x", "s"), burst([1.0], "new")])
    assert compare.rows(old, new) == [
        ["burst", "batch", "delaytasks", "jobs/s", "105", "215", "2.05", "better"],
    ]


def test_a_different_machine_is_listed():
    old, new = Result({"processor": "a", "kernel": "k"}), Result({"processor": "b", "kernel": "k"})
    assert compare.differences(old, new) == ["machine, processor: a → b"]


def test_the_command_compares_two_files(tmp_path, capsys):
    for name, value in (("old", 100.0), ("new", 200.0)):
        Result(figures=[burst([value])]).save(tmp_path / f"{name}.json")
    assert compare.main([str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    assert "| burst | batch | delaytasks | jobs/s | 100 | 200 | 2 | better |" in capsys.readouterr().out
    assert compare.main([]) == 2
