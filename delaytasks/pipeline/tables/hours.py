"""Hourly statistics of reports: a Delta table partitioned by month.

A report rewrites each month that has recomputed hours, and replaces the files of these months in one commit.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence

import pyarrow
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema

from .. import schemas
from ..applications.stale_hours import StaleHours, month_of
from . import data_files, delta, row_counts
from .data_files import DeltaFile
from .delta import Table
from .lake import Lake, LakeError

NAME, MONTH = "report/hours", "month"
RESTART = "Or remove report.json and report/hours/: the next report recomputes all hours."
BATCH_ROWS = 16_384  # rows read at once by batches()


def open_table(lake: Lake, last_run: int) -> Table:
    """Return the table, for a report that writes to it. Creates it if there is none.

    Removes what killed reports left.

    last_run   number of the run that the last report has committed; 0: not known

    Raises LakeError if the table is older than the last report: the hours that it lacks would not be computed again.
    """
    table = Table(lake, NAME, MONTH)
    if table.run < last_run:
        found = f"is an outdated copy, which ends with run {table.run}" if table.log else "is missing"
        raise LakeError(
            f"{lake.path(NAME)} {found}, but the last report has written run {last_run}. Restore its newest backup. "
            f"{RESTART}"
        )
    data_files.remove_uncommitted(lake, NAME, table.run, RESTART)
    return table.create(schemas.REPORTED_HOURS, added=schemas.ADDED_HOURS)


def since(table: Table, first_ms: int) -> list[DeltaFile]:
    """Return the files of the month that contains first_ms (ms since 1970) and of later months."""
    return [each for each in table.files if each.partition >= month_of(first_ms)]


def changed(table: Table, stale: StaleHours) -> list[DeltaFile]:
    """Return the files of the months that have recomputed hours."""
    before = {month_of(hour_ms) for hour_ms in stale.earlier_hours}
    return [each for each in table.files if each.partition >= month_of(stale.since_ms) or each.partition in before]


def batches(lake: Lake, files: Collection[DeltaFile], names: Sequence[str] = ()) -> Iterator[pyarrow.Table]:
    """Yield the rows of these files in batches, without Spark. Raises LakeError if a file is missing or damaged.

    names   columns of schemas.HOURS; (): all
    """
    fields = [field for field in to_arrow_schema(schemas.HOURS, timezone="UTC") if not names or field.name in names]
    with _with_advice():
        data_files.check(lake, files)
        for file in files:
            with lake.reading(file.path) as path, lake.files.open_input_file(path) as opened:
                parts = parquet.ParquetFile(opened).iter_batches(BATCH_ROWS, columns=[field.name for field in fields])
                for part in parts:  # a column that an older report did not write is null
                    yield pyarrow.Table.from_batches([data_files.conform(part, pyarrow.schema(fields))])


@contextlib.contextmanager
def _with_advice() -> Iterator[None]:
    """Add to a LakeError that removing report.json helps, too."""
    try:
        yield
    except LakeError as error:
        raise LakeError(f"{error} Or remove report.json: the next report recomputes all hours.") from error


def read(spark: SparkSession, lake: Lake, files: Collection[DeltaFile]) -> DataFrame:
    """Return the rows of these files, with the columns schemas.HOURS. Raises LakeError if one is missing or damaged."""
    with _with_advice():
        return delta.read(spark, lake, files, schemas.REPORTED_HOURS, MONTH).select(*schemas.HOURS.names)


def replace(
    table: Table, hours: DataFrame, replaced: Collection[DeltaFile], check_lock: Callable[[], None], *, everything: bool
) -> Table:
    """Replace files of the table with new rows, and return the table's new version.

    hours        the new rows, with the columns schemas.HOURS
    replaced     the files
    check_lock   called before the commit: if the lock was lost, a newer report may have committed newer rows
    everything   also remove the files of months for which there is no new row. False: keep them, because the events of
                 such a month may have been deleted since
    """
    folder, run = data_files.new_folder(table.run + 1), table.run + 1
    monthly = hours.withColumn(MONTH, F.date_format("hour_at", "yyyy-MM")).repartition(MONTH)
    rows = row_counts.write(monthly, table.lake, f"{NAME}/{folder}", MONTH, order=("topic", "hour_at"))
    table.lake.sync(f"{NAME}/{folder}")
    check_lock()
    written = {each.partition for each in data_files.files_in(table.lake, f"{NAME}/{folder}", MONTH)}
    gone = [each for each in replaced if everything or each.partition in written]
    return table.commit(folder, run, replaced=gone, rows=rows)
