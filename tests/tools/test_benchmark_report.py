"""The benchmark's tables, charts and targets."""

import math
import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import charts, report, targets
from benchmarks.results import Figure, Result

pytestmark = pytest.mark.tools


def result(*figures):
    result = Result(
        {"processor": "x"}, {"delaytasks": "0.1"}, {"delaytasks": {"name": "ours", "configuration": "usual"}}
    )
    for scenario, form, contestant, values, more in figures:
        for position, value in enumerate(values):
            extra = {name: numbers[position] for name, numbers in more.items()}
            result.figure(scenario, form, contestant, "jobs/s", "more").add(value, extra)
    return result


BURST = result(
    ("burst", "noop", "delaytasks", [100, 120, 110], {"p99_ms": [7, 8, 9]}),
    ("burst", "batch", "delaytasks", [1300, 1300, 1300], {}),
    ("burst", "noop", "bullmq", [1000, 900, 1100], {}),
    ("burst", "noop", "celery", [220, 220, 220], {}),
)


@pytest.mark.parametrize(
    ("number", "text"),
    [(math.nan, "–"), (0.0, "0"), (3.0, "3"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (12345.6, "12,346")],
)
def test_a_number_has_three_significant_digits(number, text):
    assert report.format_number(number) == text


def test_a_row_has_the_median_the_range_and_the_ratio_to_ours():
    lines = report.scenario_tables(BURST.figures).splitlines()
    assert lines[0] == "| form | contestant | median, jobs/s | least – most | times ours | p99 ms |"
    assert lines[2] == "| noop | delaytasks | 110 | 100 – 120 | – | 8 |"
    assert lines[3] == "| noop | bullmq | 1,000 | 900 – 1,100 | 9.09 | – |"
    assert lines[5].startswith("| batch | delaytasks |")  # the forms stay together


def test_each_unit_has_its_own_table():
    figures = [Figure("scale", "a", "x", "us", values=[5.0], more={"rows": [7.0]}), Figure("scale", "b", "x", "1/s")]
    figures[1].add(3.0, {})
    first, second = report.scenario_tables(figures).split("\n\n")
    assert first.splitlines()[0].endswith("| median, us | least – most | times ours | rows |")
    assert second.splitlines()[0].endswith("| median, 1/s | least – most | times ours |")


def test_the_report_has_all_its_parts():
    text = report.markdown(BURST, "images/")
    for part in ("- processor: x", "| delaytasks | ours | 0.1 | usual |", "![burst, jobs/s](images/bench-burst.svg)"):
        assert part in text
    assert "| burst, batch handler, against BullMQ's no-op | ≥ 1.2 × | 1.30 × | met |" in text
    assert "| burst, batch handler, against Celery's no-op | ≥ 6 × | 5.91 × | **not met** |" in text
    assert "smaller run" not in text
    assert "| idle: statements | ≤ 150 per minute | – | not measured |" in text


def test_a_report_of_a_smaller_run_says_so():
    small = Result(figures=BURST.figures, settings={"jobs": 500})
    assert "this was a smaller run" in report.markdown(small)


def test_a_bound_is_short():
    bounds = {target.description: target.bound for target in targets.TARGETS}
    assert bounds["scale: claim at 10 million pending against 10,000"] == "≤ 1.33 ×"
    assert bounds["mover: members through promote_due.lua"] == "≥ 100,000 members/s"
    assert bounds["never early, at 200/s"] == "≤ 0 jobs"


def target(**terms):
    return targets.Target("x", "burst", "noop", **terms)


@pytest.mark.parametrize(
    ("terms", "measured", "met"),
    [
        ({"at_least": 110}, 110, True),
        ({"at_least": 111}, 110, False),
        ({"at_most": 110}, 110, True),
        ({"at_most": 109}, 110, False),
        ({"at_most": 8, "number": "p99_ms"}, 8, True),
        ({"at_least": 0.5, "against": targets.Against("celery", "burst", "noop")}, 0.5, True),
        ({"at_least": 0.6, "against": targets.Against("celery", "burst", "noop")}, 0.5, False),
    ],
)
def test_a_target_is_met_if_its_bound_is_reached(terms, measured, met):
    assert targets.judge(target(**terms), BURST)[1:] == (measured, met)


@pytest.mark.parametrize(
    "terms", [{"number": "unknown"}, {"against": targets.Against("huey", "burst", "noop")}, {"ours": "nobody"}]
)
def test_a_target_without_its_figures_is_not_evaluated(terms):
    assert targets.judge(target(at_least=1, **terms), BURST).met is None


def test_one_early_job_in_one_repeat_misses_the_target():
    early = result(("punctual", "200", "delaytasks", [1, 1, 1], {"early": [0, 0, 1]}))
    (judged,) = (each for each in targets.judged(early) if each.target.description == "never early, at 200/s")
    assert (judged.measured, judged.met) == (1, False)


def test_every_target_has_one_bound():
    for each in targets.TARGETS:
        assert (each.at_least is None) != (each.at_most is None), each.description


def test_a_chart_has_text_for_all_its_bars(tmp_path):
    (path,) = report.write_charts(BURST, tmp_path)
    root = ElementTree.parse(path).getroot()
    texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[2:4] == ["delaytasks, batch", "1,300"]  # the best is on top
    assert {"bullmq, noop", "celery, noop", "delaytasks, noop"} <= set(texts)
    assert "prefers-color-scheme: dark" in path.read_text()


def test_a_chart_where_less_is_better_has_the_smallest_bar_on_top():
    figures = [Figure("p", "a", name, "ms", "less", [value]) for name, value in (("x", 5.0), ("y", 2.0))]
    figures.append(Figure("p", "a", "x", "jobs/s", "more", [1.0]))
    first, second = charts.of_scenario("p", figures)
    assert [bar.label for bar in first.bars] == ["y, a", "x, a"]
    assert (first.file, second.file) == ("bench-p.svg", "bench-p-2.svg")


def test_a_chart_escapes_names_with_markup():
    bar = charts.Bar("a < b & c", 0.0, 0.0, 0.0)
    ElementTree.fromstring(charts.svg(charts.Chart("f.svg", "<t>", "&", [bar])))
