"""A result as Markdown: what it was measured on, a table for each scenario, and which targets are met.

    python -m benchmarks.report RESULT.json ... [--charts FOLDER]

Several results are shown as one: a run on each database, or one scenario measured anew.
"""  # fmt: skip

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import charts, targets
from .plan import USUAL_JOBS
from .results import Figure, Result, load, merged, ratio

OURS = "delaytasks"


def shown(number: float) -> str:
    """Three digits that count, thousands apart; "–" for what is not known."""
    if math.isnan(number):
        return "–"
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.{1 if abs(number) >= 10 else 2}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def scenarios(result: Result) -> dict[str, list[Figure]]:
    """The figures by scenario; a contestant's forms in the order in which they were measured."""
    found: dict[str, list[Figure]] = {}
    for figure in result.figures:
        found.setdefault(figure.scenario, []).append(figure)
    return found


def by_form(figures: Sequence[Figure]) -> list[Figure]:
    order = list(dict.fromkeys(figure.form for figure in figures))
    return sorted(figures, key=lambda figure: order.index(figure.form))


def scenario_tables(figures: Sequence[Figure]) -> str:
    """A table for each unit: what has another is another question, with other numbers beside it."""
    units = dict.fromkeys(figure.unit for figure in figures)
    return "\n".join(unit_table([figure for figure in figures if figure.unit == unit]) for unit in units)


def unit_table(figures: Sequence[Figure]) -> str:
    """Medians, from the least to the most of the repeats, and how many times ours each is."""
    ours = {figure.form: figure.median for figure in figures if figure.contestant == OURS}
    beside = list(dict.fromkeys(name for figure in figures for name in figure.more))
    rows = []
    for figure in by_form(figures):
        times = ratio(figure.median, ours.get(figure.form, math.nan)) if figure.contestant != OURS else math.nan
        low, high = min(figure.values), max(figure.values)
        cells = [figure.form, figure.contestant, shown(figure.median), f"{shown(low)} – {shown(high)}", shown(times)]
        rows.append([*cells, *(shown(figure.number(name)) for name in beside)])
    head = ["form", "contestant", f"median, {figures[0].unit}", "least – most", "times ours"]
    return table([*head, *(name.replace("_", " ") for name in beside)], rows)


def measured(judged: targets.Judged) -> str:
    times = " ×" if judged.target.against and not math.isnan(judged.measured) else ""
    return shown(judged.measured) + times


def targets_table(judged: Sequence[targets.Judged]) -> str:
    words = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[each.target.says, each.target.bound, measured(each), words[each.met]] for each in judged]
    return table(["target", "bound", "measured", ""], rows)


def markdown(result: Result, images: str = "") -> str:
    """The whole report; `images` is where the charts lie, seen from it."""
    about = result.machine | {name: f"{value:,}" for name, value in result.settings.items()}
    about["took"] = f"{result.seconds / 60:.1f} minutes"
    parts = [f"## Measured on\n\n{_list(about)}", f"## Who\n\n{_contestants(result)}"]
    parts += [_scenario(name, figures, result, images) for name, figures in scenarios(result).items()]
    smaller = f"They are for {USUAL_JOBS:,} jobs; this was a smaller run.\n\n" if is_small(result) else ""
    parts.append(f"## Targets\n\n{smaller}{targets_table(targets.judged(result))}")
    if result.notes:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in result.notes))
    return "\n".join(parts)


def is_small(result: Result) -> bool:
    return result.settings.get("jobs", USUAL_JOBS) < USUAL_JOBS


def _scenario(name: str, figures: Sequence[Figure], result: Result, images: str) -> str:
    pictures = "".join(f"![{chart.title}]({images}{chart.file})\n\n" for chart in charts.of_scenario(name, figures))
    notes = {figure.form: result.forms.get(f"{name} {figure.form}", "") for figure in figures}
    explained = _list({form: note for form, note in notes.items() if note})
    return f"## {name}\n\n{explained}\n{pictures}{scenario_tables(figures)}"


def _list(pairs: dict[str, str]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in pairs.items())


def _contestants(result: Result) -> str:
    rows = [
        [label, said.get("name", ""), result.versions.get(label, ""), said.get("configuration", "")]
        for label, said in result.said.items()
    ]
    return table(["contestant", "what it is", "versions", "configuration"], rows)


def write_charts(result: Result, folder: Path) -> list[Path]:
    """The charts as SVG files; their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figures in scenarios(result).items():
        for chart in charts.of_scenario(name, figures):
            path = folder / chart.file
            path.write_text(charts.svg(chart))
            written.append(path)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__.splitlines()[0])
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--charts", type=Path, help="write the charts into this folder")
    parser.add_argument("--images", default="", help="where the charts lie, seen from the report: images/")
    arguments = parser.parse_args()
    result = merged(load(path) for path in arguments.results)
    print(markdown(result, arguments.images))
    if arguments.charts:
        write_charts(result, arguments.charts)


if __name__ == "__main__":
    main()
