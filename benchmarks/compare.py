"""Compare two result files: `python -m benchmarks.compare OLD NEW` or `make bench-compare`."""

import math
import sys
from pathlib import Path

from .report import format_number, table
from .results import Figure, Result, load, ratio

SINGLE_SPREAD = 0.15  # assumed spread of a figure with one repeat, on an idle machine
VOLATILE = {"disk", "load before"}  # differ between any two runs
HEAD = ("scenario", "form", "contestant", "unit", "old", "new", "new / old", "")


def verdict(old: Figure, new: Figure) -> str:
    """Return "better" or "worse", or "" if the spreads of the repeats overlap."""
    if not old.values or not new.values or math.isnan(old.median) or math.isnan(new.median):
        return ""
    low, high = spread(old)
    new_low, new_high = spread(new)
    if new_low <= high and low <= new_high:
        return ""
    return "better" if (new.median > old.median) == (old.better == "more") else "worse"


def spread(figure: Figure) -> tuple[float, float]:
    """Return the range of the repeats; for one repeat, SINGLE_SPREAD around it."""
    if len(figure.values) == 1:
        return figure.median * (1 - SINGLE_SPREAD), figure.median * (1 + SINGLE_SPREAD)
    return min(figure.values), max(figure.values)


def rows(old: Result, new: Result) -> list[list[str]]:
    """Return a row for each figure in both results, in the order of the new one."""
    result = []
    for figure in new.figures:
        before = old.find(figure.scenario, figure.form, figure.contestant)
        if before is not None and before.unit == figure.unit:
            name = [figure.scenario, figure.form, figure.contestant, figure.unit]
            times = ratio(figure.median, before.median)
            numbers = [format_number(before.median), format_number(figure.median), format_number(times)]
            result.append([*name, *numbers, verdict(before, figure)])
    return result


def differences(old: Result, new: Result) -> list[str]:
    """Return the differences in machine, versions and settings."""
    lines: list[str] = []
    for attribute in ("machine", "versions", "settings"):
        before, now = getattr(old, attribute), getattr(new, attribute)
        changed = [name for name in before if name in now and before[name] != now[name] and name not in VOLATILE]
        lines += [f"{attribute}, {name}: {before[name]} → {now[name]}" for name in changed]
    return lines


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    old, new = (load(Path(argument)) for argument in arguments)
    for line in differences(old, new):
        print(f"- {line}")
    print()
    print(table(HEAD, rows(old, new)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
