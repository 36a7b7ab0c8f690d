"""What the benchmark makes of its figures: kept, merged, compared."""

import math

import pytest

from benchmarks import compare
from benchmarks.results import Figure, Result, load, merged, ratio


def burst(values, contestant="delaytasks", form="batch", **more):
    return Figure("burst", form, contestant, "jobs/s", values=values, more=more)


def test_a_result_is_read_as_it_was_saved(tmp_path):
    result = Result({"processor": "x"}, {"delaytasks": "1"}, {"delaytasks": {"name": "x"}}, seconds=3.5)
    result.figure("burst", "batch", "delaytasks", "jobs/s", "more").add(100.0, {"p99_ms": 3.0})
    result.save(tmp_path / "deep" / "last.json")
    assert load(tmp_path / "deep" / "last.json") == result
    assert not list(tmp_path.glob("**/*.half"))


def test_each_repeat_adds_a_value_to_the_same_figure():
    result = Result()
    for value in (3.0, 1.0, 2.0):
        result.figure("burst", "batch", "delaytasks", "jobs/s", "more").add(value, {"early": value})
    (figure,) = result.figures
    assert (figure.values, figure.median, figure.number("early")) == ([3.0, 1.0, 2.0], 2.0, 2.0)


def test_a_number_that_was_not_taken_is_no_number():
    assert math.isnan(burst([1.0]).number("p99_ms"))
    assert math.isnan(burst([]).median)
    assert burst([math.nan, 4.0]).median == 4.0


def test_a_ratio_to_nothing_says_nothing():
    assert math.isnan(ratio(1.0, 0.0))
    assert ratio(3.0, 2.0) == 1.5


def test_of_two_runs_the_later_figure_counts():
    first = Result(figures=[burst([1.0]), burst([2.0], "celery")], versions={"celery": "5"}, seconds=1)
    second = Result(figures=[burst([9.0])], versions={"delaytasks": "2"}, notes=["n"], seconds=2)
    whole = merged([first, second])
    assert {figure.contestant: figure.median for figure in whole.figures} == {"celery": 2.0, "delaytasks": 9.0}
    assert (whole.versions, whole.notes, whole.seconds) == ({"celery": "5", "delaytasks": "2"}, ["n"], 3)


@pytest.mark.parametrize(
    ("old", "new", "better", "said"),
    [
        ([10, 11, 12], [11.5, 13, 14], "more", ""),  # they overlap
        ([10, 11, 12], [13, 14, 15], "more", "better"),
        ([10, 11, 12], [13, 14, 15], "less", "worse"),
        ([10, 11, 12], [7, 8, 9], "more", "worse"),
        ([10, 11, 12], [7, 8, 9], "less", "better"),
        ([100], [110], "more", ""),  # one repeat each: within what is usual
        ([100], [150], "more", "better"),
        ([], [150], "more", ""),
    ],
)
def test_a_change_is_one_only_beyond_the_spread(old, new, better, said):
    before, now = (Figure("burst", "batch", "x", "u", better, values) for values in (old, new))
    assert compare.verdict(before, now) == said


def test_what_became_of_a_figure_that_was_zero_is_said_by_its_spread():
    before, now = (Figure("pending", "week", "x", "bytes", "less", values) for values in ([0, 0], [5, 6]))
    assert compare.verdict(before, now) == "worse"


def test_only_figures_of_both_runs_in_one_unit_are_compared():
    old = Result(figures=[burst([100.0, 110.0]), Figure("idle", "cpu", "x", "%"), burst([1.0], "gone")])
    new = Result(figures=[burst([210.0, 220.0]), Figure("idle", "cpu", "x", "s"), burst([1.0], "new")])
    assert compare.rows(old, new) == [
        ["burst", "batch", "delaytasks", "jobs/s", "105", "215", "2.05", "better"],
    ]


def test_another_machine_is_named():
    old, new = Result({"processor": "a", "kernel": "k"}), Result({"processor": "b", "kernel": "k"})
    assert compare.differences(old, new) == ["machine, processor: a → b"]


def test_the_command_compares_two_files(tmp_path, capsys):
    for name, value in (("old", 100.0), ("new", 200.0)):
        Result(figures=[burst([value])]).save(tmp_path / f"{name}.json")
    assert compare.main([str(tmp_path / "old.json"), str(tmp_path / "new.json")]) == 0
    assert "| burst | batch | delaytasks | jobs/s | 100 | 200 | 2 | better |" in capsys.readouterr().out
    assert compare.main([]) == 2
