"""Compare the results of other engines with the pipeline's, whose files are read with pyarrow."""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyarrow import parquet

from .beside import SHARES

MAX_LISTED = 3  # differences in a message


class Disagree(Exception):
    """Two engines have different results, so their figures are not comparable."""


def reports(lake: Path, other: Path) -> None:
    """Compare reports. Ours truncates percentiles to three digits. Raises Disagree."""
    ours = {_hour(row): row for row in _ours(lake)}
    theirs = {(row["topic"], row["hour_ms"]): row for row in parquet.read_table(other).to_pylist()}
    different = [
        (name, column, ours.get(name, {}).get(column), row[column])
        for name, row in theirs.items()
        for column in row.keys() - {"topic", "hour_ms"}
        if ours.get(name, {}).get(column) != (truncate(row[column]) if column in SHARES else row[column])
    ]
    if different or ours.keys() != theirs.keys():
        only = sorted(ours.keys() ^ theirs.keys())
        raise Disagree(f"{other.name}: {different[:MAX_LISTED]}, and only one has {only[:MAX_LISTED]}")


def audits(answer: dict[str, Any], other: Path) -> None:
    """Compare audits. Raises Disagree."""
    (rule,) = answer["rules"]
    ours = {name: result["count"] for name, result in rule["classes"].items() if result["count"]}
    theirs = {row["class"]: row["keys"] for row in parquet.read_table(other).to_pylist()}
    if ours != theirs:
        raise Disagree(f"{other.name}: {theirs}, and ours {ours}")


def _ours(lake: Path) -> list[dict[str, Any]]:
    table = DeltaTable(lake / "report" / "hours").to_pyarrow_table()
    return list(table.drop_columns(["late", "month"]).to_pylist())


def _hour(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], round(row["hour_at"].timestamp() * 1000)


def truncate(ms: float | None) -> int | None:
    """Truncate to three digits. Spark's percentiles are floats without decimals."""
    if ms is None:
        return None
    unit = 10 ** max(len(str(int(ms))) - 3, 0)
    return int(ms) - int(ms) % unit
