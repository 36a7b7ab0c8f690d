"""The number of run slots that each report expects to be needed in each hour: a Delta table partitioned by month.

Writing needs no Spark: a report adds one file with a row for each hour in which jobs fall due.
"""

from collections.abc import Sequence

from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType, TimestampType

from ...clock import from_ms
from ..page.facts import Need
from . import data_files
from .delta import Table
from .lake import Lake

NAME, MONTH = "report/capacity", "month"
CAPACITY = StructType([
    StructField("as_of", TimestampType(), False),  # time of the report's snapshot
    StructField("hour_at", TimestampType(), False),  # start of the hour
    StructField("jobs", LongType(), False),  # that fall due in the hour; in the first hour also overdue ones
    StructField("work_ms", DoubleType(), False),  # sum of their expected run times
    StructField("slots", LongType(), False),  # that run the jobs within an hour, see page/facts.py
    StructField("minutes", LongType(), False),  # how long these slots are busy
    StructField("unknown", LongType(), False),  # number of jobs whose topic has no known run time; they add no work
    StructField("run", LongType(), False),  # number of the report that added the row
    StructField(MONTH, StringType(), False),  # of as_of, in UTC: "2030-02"
])  # fmt: skip


def open_table(lake: Lake) -> Table:
    """Return the table, for a report that writes to it. Removes what killed reports left. Raises LakeError."""
    table = Table(lake, NAME, MONTH).check(CAPACITY)
    data_files.remove_uncommitted(lake, NAME, table.run, "Or move it away: a new history begins.")
    return table


def append(table: Table, needs: Sequence[Need], as_of_ms: int) -> Table:
    """Add the needs of a report in one commit, and return the table's new version. Without needs, do nothing."""
    if not needs:
        return table
    as_of = from_ms(as_of_ms)
    rows = [
        {"as_of": as_of, "hour_at": from_ms(each.hour_ms), "jobs": each.jobs,
         "work_ms": each.work_ms, "slots": each.slots, "minutes": each.minutes, "unknown": each.unknown}
        for each in needs
    ]  # fmt: skip
    return table.append(CAPACITY, f"{as_of:%Y-%m}", rows)
