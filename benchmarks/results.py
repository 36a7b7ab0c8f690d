"""The figures of a run and their file, with the machine and the versions."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Figure:
    """One number of the benchmark with a value per repeat. `more` has additional numbers, also per repeat."""

    scenario: str
    form: str
    contestant: str
    unit: str
    better: str = "more"
    values: list[float] = field(default_factory=list)
    more: dict[str, list[float]] = field(default_factory=dict)

    @property
    def median(self) -> float:
        return median(self.values)

    def number(self, name: str) -> float:
        """Return the median of the value or of an additional number; NaN if there is none."""
        return self.median if name == "value" else median(self.more.get(name, []))

    def numbers(self, name: str) -> list[float]:
        return self.values if name == "value" else self.more.get(name, [])

    def add(self, value: float, more: dict[str, float]) -> None:
        self.values.append(value)
        for name, number in more.items():
            self.more.setdefault(name, []).append(number)


@dataclass
class Result:
    """A run. `said` has the drivers' descriptions of the contestants, `notes` has lines for the report."""

    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    said: dict[str, dict[str, str]] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)  # "scenario form" -> description
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def find(self, scenario: str, form: str, contestant: str) -> Figure | None:
        name = (scenario, form, contestant)
        return next((item for item in self.figures if (item.scenario, item.form, item.contestant) == name), None)

    def figure(self, scenario: str, form: str, contestant: str, unit: str, better: str) -> Figure:
        """Return the figure with this name; create it if it is new."""
        figure = self.find(scenario, form, contestant)
        if figure is None:
            figure = Figure(scenario, form, contestant, unit, better)
            self.figures.append(figure)
        return figure

    def save(self, path: Path) -> None:
        """Write the file atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(self), indent=1) + "\n")
        partial.replace(path)


def load(path: Path) -> Result:
    data = json.loads(path.read_text())
    figures = [Figure(**figure) for figure in data.pop("figures")]
    return Result(figures=figures, **data)


def merged(results: Iterable[Result]) -> Result:
    """Merge several runs for a report. The last one wins if several have the same figure."""
    total = Result()
    for result in results:
        new = {(figure.scenario, figure.form, figure.contestant) for figure in result.figures}
        total.figures = [
            figure for figure in total.figures if (figure.scenario, figure.form, figure.contestant) not in new
        ]
        total.figures += result.figures
        total.machine |= result.machine
        total.versions |= result.versions
        total.said |= result.said
        total.forms |= result.forms
        total.settings |= result.settings
        total.notes += [note for note in result.notes if note not in total.notes]
        total.seconds += result.seconds
    return total


def median(values: list[float]) -> float:
    """Return the median without NaN values; NaN if there are no others."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan


def ratio(a: float, b: float) -> float:
    """Return a / b; NaN if it is undefined."""
    return a / b if b and not math.isnan(a) else math.nan
