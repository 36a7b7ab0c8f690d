"""Render a result as Markdown: the machine, a table for each scenario, and the targets.

    python -m benchmarks.report RESULT.json ... [--charts FOLDER]

Several results are merged, for example a run on each database, or a new run of one scenario.
"""  # fmt: skip

import argparse
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from . import charts, targets
from .plan import DEFAULT_JOBS
from .results import Figure, Result, load, merged, ratio

OURS = "delaytasks"


def format_number(number: float) -> str:
    """Return three significant digits, with thousands separators; "–" for NaN."""
    if math.isnan(number):
        return "–"
    if abs(number) >= 100 or number == int(number):
        return f"{number:,.0f}"
    return f"{number:.{1 if abs(number) >= 10 else 2}f}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def scenarios(result: Result) -> dict[str, list[Figure]]:
    """Return the figures by scenario, in the order of measurement."""
    groups: dict[str, list[Figure]] = {}
    for figure in result.figures:
        groups.setdefault(figure.scenario, []).append(figure)
    return groups


def by_form(figures: Sequence[Figure]) -> list[Figure]:
    order = list(dict.fromkeys(figure.form for figure in figures))
    return sorted(figures, key=lambda figure: order.index(figure.form))


def scenario_tables(figures: Sequence[Figure]) -> str:
    """Return a table for each unit, as other units have other columns."""
    units = dict.fromkeys(figure.unit for figure in figures)
    return "\n".join(unit_table([figure for figure in figures if figure.unit == unit]) for unit in units)


def unit_table(figures: Sequence[Figure]) -> str:
    """Return a table of medians, ranges of the repeats, ratios to delaytasks, and additional numbers."""
    ours = {figure.form: figure.median for figure in figures if figure.contestant == OURS}
    extra = list(dict.fromkeys(name for figure in figures for name in figure.more))
    rows = []
    for figure in by_form(figures):
        times = ratio(figure.median, ours.get(figure.form, math.nan)) if figure.contestant != OURS else math.nan
        low, high = min(figure.values), max(figure.values)
        cells = [
            figure.form,
            figure.contestant,
            format_number(figure.median),
            f"{format_number(low)} – {format_number(high)}",
            format_number(times),
        ]
        rows.append([*cells, *(format_number(figure.number(name)) for name in extra)])
    head = ["form", "contestant", f"median, {figures[0].unit}", "least – most", "times ours"]
    return table([*head, *(name.replace("_", " ") for name in extra)], rows)


def measured(judged: targets.Judged) -> str:
    times = " ×" if judged.target.against and not math.isnan(judged.measured) else ""
    return format_number(judged.measured) + times


def targets_table(judged: Sequence[targets.Judged]) -> str:
    labels = {True: "met", False: "**not met**", None: "not measured"}
    rows = [[item.target.description, item.target.bound, measured(item), labels[item.met]] for item in judged]
    return table(["target", "bound", "measured", ""], rows)


def markdown(result: Result, images: str = "") -> str:
    """Return the report. `images` is the path from the report to the charts."""
    about = result.machine | {name: f"{value:,}" for name, value in result.settings.items()}
    about["took"] = f"{result.seconds / 60:.1f} minutes"
    parts = [f"## Measured on\n\n{_list(about)}", f"## Contestants\n\n{_contestants(result)}"]
    parts += [_scenario(name, figures, result, images) for name, figures in scenarios(result).items()]
    smaller = f"The targets are for {DEFAULT_JOBS:,} jobs; this was a smaller run.\n\n" if is_small(result) else ""
    parts.append(f"## Targets\n\n{smaller}{targets_table(targets.judged(result))}")
    if result.notes:
        parts.append("## Notes\n\n" + "".join(f"- {note}\n" for note in result.notes))
    return "\n".join(parts)


def is_small(result: Result) -> bool:
    return result.settings.get("jobs", DEFAULT_JOBS) < DEFAULT_JOBS


def _scenario(name: str, figures: Sequence[Figure], result: Result, images: str) -> str:
    images_md = "".join(f"![{chart.title}]({images}{chart.file})\n\n" for chart in charts.of_scenario(name, figures))
    notes = {figure.form: result.forms.get(f"{name} {figure.form}", "") for figure in figures}
    explanations = _list({form: note for form, note in notes.items() if note})
    return f"## {name}\n\n{explanations}\n{images_md}{scenario_tables(figures)}"


def _list(pairs: dict[str, str]) -> str:
    return "".join(f"- {name}: {value}\n" for name, value in pairs.items())


def _contestants(result: Result) -> str:
    rows = [
        [label, info.get("name", ""), result.versions.get(label, ""), info.get("configuration", "")]
        for label, info in result.said.items()
    ]
    return table(["contestant", "what it is", "versions", "configuration"], rows)


def write_charts(result: Result, folder: Path) -> list[Path]:
    """Write the charts as SVG files; return their paths."""
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
    parser.add_argument("--charts", type=Path, help="write the charts to this folder")
    parser.add_argument("--images", default="", help="path from the report to the charts, such as images/")
    arguments = parser.parse_args()
    result = merged(load(path) for path in arguments.results)
    print(markdown(result, arguments.images))
    if arguments.charts:
        write_charts(result, arguments.charts)


if __name__ == "__main__":
    main()
