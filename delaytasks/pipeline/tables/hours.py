"""Hourly statistics of reports: a Delta table with a partition for each month.

A report writes the months with recomputed hours completely, and replaces their files in one commit.
"""

from collections.abc import Callable, Collection

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .. import schemas
from ..applications.stale_hours import StaleHours, month_of
from . import delta, row_counts
from .delta import DeltaFile, Table
from .lake import Lake, LakeError

NAME, MONTH = "report/hours", "month"


def open_table(lake: Lake) -> Table:
    """Return the table, before a report writes to it. Creates it if there is none, and removes what killed runs left.

    Raises LakeError.
    """
    table = Table(lake, NAME, MONTH).create(schemas.REPORTED_HOURS)
    delta.remove_uncommitted(lake, NAME, table.run)
    return table


def since(table: Table, first_ms: int) -> list[DeltaFile]:
    """Return the files of the months from the month of first_ms on."""
    return [each for each in table.files if each.partition >= month_of(first_ms)]


def changed(table: Table, stale: StaleHours) -> list[DeltaFile]:
    """Return the files of the months that have recomputed hours."""
    before = {month_of(hour_ms) for hour_ms in stale.earlier_hours}
    return [each for each in table.files if each.partition >= month_of(stale.since_ms) or each.partition in before]


def read(spark: SparkSession, lake: Lake, files: Collection[DeltaFile]) -> DataFrame:
    """Return the rows of these files, with the columns schemas.HOURS. Raises LakeError if a file is damaged."""
    try:
        return delta.read(spark, lake, files, schemas.REPORTED_HOURS, MONTH).select(*schemas.HOURS.names)
    except LakeError as error:
        raise LakeError(f"{error} Or remove report.json: the next report recomputes all hours.") from error


def replace(
    table: Table, hours: DataFrame, months: Collection[str], everything: bool, check_lock: Callable[[], None]
) -> Table:
    """Replace the rows of these months, and return the table's new version.

    hours        all rows of these months, with the columns schemas.HOURS
    everything   remove the rows of all other months
    check_lock   called before the commit: if the lock was lost, a newer report may have committed newer rows
    """
    folder, run = delta.new_folder(table.run + 1), table.run + 1
    monthly = hours.withColumn(MONTH, F.date_format("hour_at", "yyyy-MM")).repartition(MONTH)
    row_counts.write(monthly, table.lake, f"{NAME}/{folder}", MONTH, order=("topic", "hour_at"))
    table.lake.sync(f"{NAME}/{folder}")
    replaced = [each for each in table.files if everything or each.partition in months]
    check_lock()
    return table.commit(folder, run, replaced=replaced)
