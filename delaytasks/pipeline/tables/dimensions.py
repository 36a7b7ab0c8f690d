"""Figures of each audit, of all rows and of each dimension's values: a Delta table partitioned by month.

Uses no Spark: an audit adds one file with at most a few thousand rows.
"""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from pyarrow import parquet
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ...clock import from_ms
from ..rules.rules import CLASSES, STATUSES
from ..transforms.dimensions import ALL, OUTCOMES, WEEK
from . import data_files
from .delta import Table
from .lake import Lake

NAME, MONTH = "audit/dimensions", "month"
TOTAL = DecimalType(38, 6)
DIMENSIONS = StructType([
    StructField("rule", StringType(), False),
    StructField("topic", StringType(), False),
    StructField("dimension", StringType(), False),  # the column's name; ALL: all rows; WEEK: the week of the first job
    StructField("value", StringType(), True),  # null: all rows; or, for a column, rows where it is null, and orphans
    StructField("as_of", TimestampType(), False),  # time of the audit's snapshot
    StructField("rows", LongType(), False),  # number of business rows
    *(StructField(name, LongType(), False) for name in CLASSES),  # number of keys in each class
    StructField("faults", LongType(), False),  # number of keys in classes that must be empty
    StructField("kept_share", DoubleType(), True),  # kept / (all keys - open); null: all are open
    StructField("late_p50_ms", LongType(), True),  # of jobs that began or are overdue; null: there are none
    StructField("late_worst_ms", LongType(), True),
    *(StructField(f"{name}_amount", TOTAL, True) for name in CLASSES),  # null: the rule has no amount
    StructField("cost", TOTAL, True),  # sum of the amounts in classes that must be empty
    StructField("without_amount", LongType(), True),  # number of keys with a row that has no amount
    *(StructField(name, LongType(), True) for name in STATUSES),  # number of keys; null: an older audit
    # Number of rows whose job has begun, by the rule's outcome. Null: the rule has no outcome.
    StructField("outcome_yes", LongType(), True),
    StructField("outcome_no", LongType(), True),
    StructField("outcome_unknown", LongType(), True),
    StructField("outcome_share", DoubleType(), True),  # yes / (yes + no + unknown); null also if no job has begun
    StructField("run", LongType(), False),  # number of the audit that added the row
    StructField(MONTH, StringType(), False),  # of as_of, in UTC: "2030-02"
])  # fmt: skip

ADDED = (*STATUSES, *OUTCOMES, "outcome_share")  # columns that the tables of earlier versions lack

TREND_FIGURES = ("kept_share", "faults", "late_p50_ms", "late_worst_ms", "outcome_share")
TREND = StructType([DIMENSIONS[name] for name in ("rule", "topic", "dimension", "as_of", *TREND_FIGURES)])
TREND_AUDITS, TREND_DAYS = 30, 365  # maximum number and maximum age of the audits in a trend


def open_table(lake: Lake) -> Table:
    """Return the table, for an audit that writes to it. Removes what killed audits left. Raises LakeError."""
    table = Table(lake, NAME, MONTH).check(DIMENSIONS, ADDED)
    data_files.remove_uncommitted(lake, NAME, table.run, "Or move it away: a new history begins.")
    return table


def trends(table: Table) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return (rule, topic) -> the figures of all rows in its last audits, oldest first. Raises LakeError.

    The figures of an audit are `as_of`, its time, and TREND_FIGURES, which transforms/dimensions.py describes.
    """
    lake, first = table.lake, datetime.now(UTC) - timedelta(days=TREND_DAYS)
    files = [each for each in table.files if each.partition >= f"{first:%Y-%m}"]
    if not files:
        return {}
    data_files.check(lake, files)
    with lake.reading(NAME):
        found = parquet.read_table(
            [lake.path(each.path) for each in files], filesystem=lake.files, partitioning=None,
            schema=to_arrow_schema(TREND, timezone="UTC"), filters=[("dimension", "=", ALL), ("as_of", ">=", first)],
        )  # fmt: skip
    by_rule: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in found.sort_by("as_of").to_pylist():
        rule = row.pop("rule"), row.pop("topic")
        del row["dimension"]
        by_rule.setdefault(rule, []).append(row)
    return {rule: rows[-TREND_AUDITS:] for rule, rows in by_rule.items()}


def append(table: Table, results: list[dict[str, Any]], as_of_ms: int) -> Table:
    """Add the figures of an audit's rules in one commit, and return the table's new version."""
    as_of = from_ms(as_of_ms)
    rows = [
        _row(each) | {"rule": result["name"], "topic": result["topic"], "dimension": name, "as_of": as_of}
        for result in results
        for name, values in {ALL: [result["total"]], WEEK: result["weeks"], **result["dimensions"]}.items()
        for each in values
    ]
    return table.create(DIMENSIONS, added=ADDED).append(DIMENSIONS, f"{as_of:%Y-%m}", rows)


def _row(figures: dict[str, Any]) -> dict[str, Any]:
    """Return the table's columns for the figures of one value, which dimensions.by_value() returned."""
    amounts = {f"{name}_amount": _decimal(text) for name, text in (figures["amounts"] or {}).items()}
    same = {name: figures[name] for name in DIMENSIONS.names if name in figures}
    return same | figures["classes"] | amounts | {"cost": _decimal(figures["cost"])}


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
