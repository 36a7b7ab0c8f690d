"""Whether the others found what the pipeline found; it reads the pipeline's files with pyarrow alone."""

import json
from pathlib import Path
from typing import Any

from pyarrow import dataset, parquet

from .beside import SHARES

NAMED = 3  # that a message names


class Disagree(Exception):
    """Two of them answered differently: no figure of theirs says anything."""


def reports(lake: Path, other: Path) -> None:
    """Raises Disagree. Percentiles above a second are cut to three digits by ours, the others' are exact."""
    ours = {_hour(row): row for row in _ours(lake)}
    theirs = {(row["topic"], row["hour_ms"]): row for row in parquet.read_table(other).to_pylist()}
    different = [
        (name, column, ours.get(name, {}).get(column), row[column])
        for name, row in theirs.items()
        for column in row.keys() - {"topic", "hour_ms"}
        if ours.get(name, {}).get(column) != (cut(row[column]) if column in SHARES else row[column])
    ]
    if different or ours.keys() != theirs.keys():
        only = sorted(ours.keys() ^ theirs.keys())
        raise Disagree(f"{other.name}: {different[:NAMED]}, and only one has {only[:NAMED]}")


def audits(answer: dict[str, Any], other: Path) -> None:
    """Raises Disagree."""
    (rule,) = answer["rules"]
    ours = {name: each["count"] for name, each in rule["classes"].items() if each["count"]}
    theirs = {row["class"]: row["keys"] for row in parquet.read_table(other).to_pylist()}
    if ours != theirs:
        raise Disagree(f"{other.name}: {theirs}, and ours {ours}")


def _ours(lake: Path) -> list[dict[str, Any]]:
    months = json.loads((lake / "report.json").read_text())["months"]
    return [row for path in months.values() for row in dataset.dataset(lake / path, partitioning=None)
            .to_table().drop_columns(["late"]).to_pylist()]  # fmt: skip


def _hour(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], round(row["hour_at"].timestamp() * 1000)


def cut(ms: int | None) -> int | None:
    """To three digits."""
    unit = 10 ** max(len(str(ms)) - 3, 0)
    return None if ms is None else ms - ms % unit
