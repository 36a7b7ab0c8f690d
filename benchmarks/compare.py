"""What has changed between two result files: `python -m benchmarks.compare OLD NEW`, or `make bench-compare`."""

import math
import sys
from pathlib import Path

from .report import shown, table
from .results import Figure, Result, load, ratio

ALONE = 0.15  # how far two figures of one repeat each may lie apart on a machine that is doing nothing else
PASSING = {"disk", "load before"}  # of the machine: never the same twice
HEAD = ("scenario", "form", "contestant", "unit", "old", "new", "new / old", "")


def verdict(old: Figure, new: Figure) -> str:
    """ "better", "worse", or "" when it is within what the repeats of one run differ by."""
    if not old.values or not new.values or math.isnan(old.median) or math.isnan(new.median):
        return ""
    low, high = spread(old)
    new_low, new_high = spread(new)
    if new_low <= high and low <= new_high:
        return ""
    return "better" if (new.median > old.median) == (old.better == "more") else "worse"


def spread(figure: Figure) -> tuple[float, float]:
    """From the least to the most of the repeats; of one alone, what is usual around it."""
    if len(figure.values) == 1:
        return figure.median * (1 - ALONE), figure.median * (1 + ALONE)
    return min(figure.values), max(figure.values)


def rows(old: Result, new: Result) -> list[list[str]]:
    """A row for each figure that both have, in the order of the new one."""
    found = []
    for figure in new.figures:
        before = old.find(figure.scenario, figure.form, figure.contestant)
        if before is not None and before.unit == figure.unit:
            name = [figure.scenario, figure.form, figure.contestant, figure.unit]
            times = ratio(figure.median, before.median)
            numbers = [shown(before.median), shown(figure.median), shown(times)]
            found.append([*name, *numbers, verdict(before, figure)])
    return found


def differences(old: Result, new: Result) -> list[str]:
    """What else is not the same: the machine, versions, settings."""
    found: list[str] = []
    for what in ("machine", "versions", "settings"):
        before, now = getattr(old, what), getattr(new, what)
        both = [name for name in before if name in now and before[name] != now[name] and name not in PASSING]
        found += [f"{what}, {name}: {before[name]} → {now[name]}" for name in both]
    return found


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
