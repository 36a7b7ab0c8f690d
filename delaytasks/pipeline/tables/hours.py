"""Hourly statistics of reports: a Delta table with a partition for each month.

A report writes the months with recomputed hours completely, and replaces their files in one commit.
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
BATCH_ROWS = 16_384  # rows that are read at once without Spark


def open_table(lake: Lake) -> Table:
    """Return the table, before a report writes to it. Creates it if there is none, and removes what killed runs left.

    Raises LakeError.
    """
    table = Table(lake, NAME, MONTH).create(schemas.REPORTED_HOURS)
    data_files.remove_uncommitted(lake, NAME, table.run)
    return table


def since(table: Table, first_ms: int) -> list[DeltaFile]:
    """Return the files of the months from the month of first_ms on."""
    return [each for each in table.files if each.partition >= month_of(first_ms)]


def changed(table: Table, stale: StaleHours) -> list[DeltaFile]:
    """Return the files of the months that have recomputed hours."""
    before = {month_of(hour_ms) for hour_ms in stale.earlier_hours}
    return [each for each in table.files if each.partition >= month_of(stale.since_ms) or each.partition in before]


def batches(lake: Lake, files: Collection[DeltaFile], names: Sequence[str] = ()) -> Iterator[pyarrow.Table]:
    """Yield the rows of these files, file by file and without Spark. Raises LakeError if a file is damaged.

    names   columns of schemas.HOURS; default: all
    """
    fields = [field for field in to_arrow_schema(schemas.HOURS, timezone="UTC") if not names or field.name in names]
    with _advised():
        data_files.check(lake, files)
        for file in files:
            with lake.reading(file.path) as path, lake.files.open_input_file(path) as opened:
                parts = parquet.ParquetFile(opened).iter_batches(BATCH_ROWS, columns=[field.name for field in fields])
                for part in parts:
                    yield _with_columns(part, fields)


def _with_columns(part: pyarrow.RecordBatch, fields: Sequence[pyarrow.Field]) -> pyarrow.Table:
    """Return the batch with these columns. A column that an older report did not write is null."""
    columns = [
        part[field.name].cast(field.type) if field.name in part.schema.names else pyarrow.nulls(len(part), field.type)
        for field in fields
    ]  # fmt: skip
    return pyarrow.table(columns, [field.name for field in fields])


@contextlib.contextmanager
def _advised() -> Iterator[None]:
    try:
        yield
    except LakeError as error:
        raise LakeError(f"{error} Or remove report.json: the next report recomputes all hours.") from error


def read(spark: SparkSession, lake: Lake, files: Collection[DeltaFile]) -> DataFrame:
    """Return the rows of these files, with the columns schemas.HOURS. Raises LakeError if a file is damaged."""
    with _advised():
        return delta.read(spark, lake, files, schemas.REPORTED_HOURS, MONTH).select(*schemas.HOURS.names)


def replace(
    table: Table, hours: DataFrame, replaced: Collection[DeltaFile], check_lock: Callable[[], None], *, everything: bool
) -> Table:
    """Replace these files by these rows, and return the table's new version.

    hours        the columns schemas.HOURS
    check_lock   called before the commit: if the lock was lost, a newer report may have committed newer rows
    everything   replace also the files of months without a row. False: such a month keeps its files, because its events
                 may have been deleted since
    """
    folder, run = data_files.new_folder(table.run + 1), table.run + 1
    monthly = hours.withColumn(MONTH, F.date_format("hour_at", "yyyy-MM")).repartition(MONTH)
    row_counts.write(monthly, table.lake, f"{NAME}/{folder}", MONTH, order=("topic", "hour_at"))
    table.lake.sync(f"{NAME}/{folder}")
    check_lock()
    written = {each.partition for each in data_files.files_in(table.lake, f"{NAME}/{folder}", MONTH)}
    return table.commit(folder, run, replaced=[each for each in replaced if everything or each.partition in written])
