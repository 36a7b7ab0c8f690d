"""Figures, and the file that keeps them: what was measured, on what, with which versions."""

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
    """One number of the benchmark, once per repeat. `more` has the numbers beside it, each once per repeat."""

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
        """The median of the value itself, or of one of the numbers beside it; NaN if there is none."""
        return self.median if name == "value" else median(self.more.get(name, []))

    def numbers(self, name: str) -> list[float]:
        return self.values if name == "value" else self.more.get(name, [])

    def add(self, value: float, more: dict[str, float]) -> None:
        self.values.append(value)
        for name, number in more.items():
            self.more.setdefault(name, []).append(number)


@dataclass
class Result:
    """A run. `said` is each contestant's own description; `notes` are lines for people."""

    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    said: dict[str, dict[str, str]] = field(default_factory=dict)
    forms: dict[str, str] = field(default_factory=dict)  # "scenario form": what it is, for people
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0

    def find(self, scenario: str, form: str, contestant: str) -> Figure | None:
        wanted = (scenario, form, contestant)
        return next((each for each in self.figures if (each.scenario, each.form, each.contestant) == wanted), None)

    def figure(self, scenario: str, form: str, contestant: str, unit: str, better: str) -> Figure:
        """The figure of that name, made if it is new."""
        found = self.find(scenario, form, contestant)
        if found is None:
            found = Figure(scenario, form, contestant, unit, better)
            self.figures.append(found)
        return found

    def save(self, path: Path) -> None:
        """Write all of it; whoever reads sees the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(".half")
        half.write_text(json.dumps(asdict(self), indent=1) + "\n")
        half.replace(path)


def load(path: Path) -> Result:
    data = json.loads(path.read_text())
    figures = [Figure(**figure) for figure in data.pop("figures")]
    return Result(figures=figures, **data)


def merged(results: Iterable[Result]) -> Result:
    """Several runs as one, for a report: of a figure that two of them have, the last one counts."""
    whole = Result()
    for result in results:
        new = {(each.scenario, each.form, each.contestant) for each in result.figures}
        whole.figures = [each for each in whole.figures if (each.scenario, each.form, each.contestant) not in new]
        whole.figures += result.figures
        whole.machine |= result.machine
        whole.versions |= result.versions
        whole.said |= result.said
        whole.forms |= result.forms
        whole.settings |= result.settings
        whole.notes += [note for note in result.notes if note not in whole.notes]
        whole.seconds += result.seconds
    return whole


def median(values: list[float]) -> float:
    """NaN of none."""
    numbers = [value for value in values if not math.isnan(value)]
    return statistics.median(numbers) if numbers else math.nan


def ratio(a: float, b: float) -> float:
    """a / b; NaN where that says nothing."""
    return a / b if b and not math.isnan(a) else math.nan
