"""Sum the hours of a report over topics and longer periods, in Arrow and without Spark.

A report's page needs some thousand rows. For so few, planning and compiling Spark's queries would take many times
longer than the sums. Files are read in batches, and only the sums are kept, so memory is bounded.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow
from pyarrow import compute

from .outcomes import PERCENTILES, SUM_COLUMNS, percentile

HOUR_SUMS = (*((name, "sum") for name in SUM_COLUMNS), ("late_worst_ms", "max"))
RUN_SUMS = (("attempts", "sum"), ("run_total_ms", "sum"))
NUMBER = (("number", "sum"),)
Sums = Mapping[str, pyarrow.Table]
Histogram = list[tuple[int, int]]  # (ms, number), sorted


@dataclass(frozen=True)
class Grouping:
    """A GROUP BY `by` with sums and maxima of columns. To combine the results of batches, apply it to them again."""

    by: tuple[str, ...]
    sums: tuple[tuple[str, str], ...]  # (column, "sum" or "max")

    def apply(self, rows: pyarrow.Table) -> pyarrow.Table:
        grouped = rows.group_by(list(self.by)).aggregate(list(self.sums))
        names = [*self.by, *(f"{name}_{how}" for name, how in self.sums)]
        return grouped.select(names).rename_columns([*self.by, *(name for name, _ in self.sums)])


def combine(groupings: Mapping[str, Grouping], parts: Iterable[Sums]) -> dict[str, pyarrow.Table]:
    """Return the sums over all parts. A part maps the name of each grouping to the grouping's result for some rows."""
    total: dict[str, pyarrow.Table] = {}
    for part in parts:
        for name, table in part.items():
            # The schemas of batches differ in which columns are nullable.
            both = pyarrow.concat_tables([total[name], table], promote_options="default") if name in total else table
            total[name] = groupings[name].apply(both)
    return total


def histogram(hours: pyarrow.Table, name: str, by: Sequence[str]) -> pyarrow.Table:
    """Return a row for each entry of a column of histograms, with the columns `by`, ms and number."""
    lists = hours[name].combine_chunks()
    entries, parents = compute.list_flatten(lists), compute.list_parent_indices(lists)
    columns = {each: hours[each].take(parents) for each in by}
    return pyarrow.table(columns | {each: compute.struct_field(entries, each) for each in ("ms", "number")})


def histograms(rows: pyarrow.Table, by: Sequence[str]) -> dict[tuple[Any, ...], Histogram]:
    """Return the sorted histogram of each value of `by`. Needs `by`, ms, number."""
    found: defaultdict[tuple[Any, ...], Histogram] = defaultdict(list)
    for *key, ms, number in zip(*(rows[name].to_pylist() for name in (*by, "ms", "number")), strict=True):
        found[tuple(key)].append((ms, number))
    return {key: sorted(entries) for key, entries in found.items()}


def statistics(
    sums: pyarrow.Table, late: pyarrow.Table, by: Sequence[str]
) -> Iterator[tuple[tuple[Any, ...], dict[str, int]]]:
    """Yield each value of `by` with its HOUR_SUMS and percentiles of lateness, without nulls.

    The percentiles are computed from histograms, so they are rounded down to two digits. `begun` is the number of
    first attempts.

    sums   `by` and the columns of HOUR_SUMS
    late   the histograms of lateness: `by`, ms, number
    """
    lateness = histograms(late, by)
    for row in sums.to_pylist():
        key = tuple(row.pop(name) for name in by)
        entries = lateness.get(key, [])
        row["begun"] = sum(number for _, number in entries)
        row |= {name: percentile(entries, row["begun"] * share) for name, share in PERCENTILES.items()}
        yield key, {name: value for name, value in row.items() if value is not None}
