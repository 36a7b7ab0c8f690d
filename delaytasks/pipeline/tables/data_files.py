"""Parquet files of Delta tables: their statistics, checks and merging, and the folders that runs write them to.

Needs pyarrow, but neither Spark nor the Delta log. So it also works on files that are not committed yet.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import pyarrow
from pyarrow import parquet

from ...clock import rfc3339
from .lake import LOG, Lake, LakeError

TEXT_BOUNDS = ("key",)  # text columns whose least and greatest values are put into the log; no lookup needs others
COMPRESSION = "zstd"
ROW_GROUP_ROWS = 100_000  # maximum in a rewritten file; smaller row groups let a lookup skip more rows
ROW_GROUP_BYTES = 64 << 20  # about the maximum of a row group in memory
BATCH_ROWS = 2_000  # rows read at once; a body may have 64 KiB
SHOWN = 5  # maximum number of files named in a message
MILLISECOND = timedelta(milliseconds=1)
_RUN_FOLDER = re.compile(r"(\d{6,})-[0-9a-f]{8}")


class DeltaFile(NamedTuple):
    """A file of a table's version.

    path        relative to the lake's root
    partition   value of the partition column
    size        in bytes
    low, high   column -> its least and greatest value, for the columns of which the log has them
    """

    path: str
    partition: str
    rows: int
    size: int
    low: Mapping[str, Any]
    high: Mapping[str, Any]

    def may_contain(self, column: str, first: Any = None, last: Any = None) -> bool:
        """Return whether the file may have a row with first <= column <= last. None: no limit."""
        low, high = self.low.get(column), self.high.get(column)
        return (first is None or high is None or high >= first) and (last is None or low is None or low <= last)

    @property
    def newest_run(self) -> int:
        """Number of the newest run with rows in this file; 0 for files that are older than the column `run`."""
        return self.high.get("run") or 0


def statistics(lake: Lake, path: str) -> dict[str, Any]:
    """Return a file's number of rows and the bounds of its columns, as Delta's log stores them. Reads the footer."""
    with lake.reading(path) as name, lake.files.open_input_file(name) as file:
        footer = parquet.read_metadata(file)
    low, high = {}, {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index).path
        groups = [footer.row_group(n).column(index).statistics for n in range(footer.num_row_groups)]
        bounds = [group for group in groups if group and group.has_min_max]
        nulls = sum(map(_all_null, groups))  # row groups without a value, merged from files that lacked the column
        if bounds and len(bounds) + nulls == len(groups) and _is_bounded(column, bounds[0].min):
            low[column] = _bound(min(group.min for group in bounds))
            high[column] = _bound(max(group.max for group in bounds), up=True)
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high}


def _all_null(group: Any) -> bool:
    """Return whether all values of a column in a row group are null. group: its statistics."""
    return bool(group and group.has_null_count and group.num_values == 0 and not group.has_min_max)


def _is_bounded(column: str, value: Any) -> bool:
    return isinstance(value, int | date) or column in TEXT_BOUNDS


def greatest(lake: Lake, name: str, column: str) -> Any:
    """Return the greatest value of a column in the files of a folder, committed or not; None if there is no value."""
    found = [statistics(lake, path)["maxValues"].get(column) for path, _ in lake.parquet(name)]
    return max((each for each in found if each is not None), default=None)


def _bound(value: Any, *, up: bool = False) -> Any:
    """Return a bound as Delta's JSON stores it. Times are rounded to milliseconds: down, or up if `up` is True."""
    if not isinstance(value, datetime):
        return value.isoformat() if isinstance(value, date) else value
    rounded = value.replace(microsecond=value.microsecond // 1000 * 1000)
    rounded += MILLISECOND if up and rounded != value else timedelta()
    return rfc3339(rounded)


def check(lake: Lake, files: Iterable[DeltaFile]) -> None:
    """Check that the files exist with their committed sizes. Raises LakeError, which names the first wrong file."""
    named = sorted(files)
    found = lake.files.get_file_info([lake.path(each.path) for each in named])
    wrong = [each for each, info in zip(named, found, strict=True) if info.size != each.size]
    if wrong:
        more = f" and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
        partitions = ", ".join(sorted({each.partition for each in wrong})[:SHOWN])
        raise LakeError(
            f"The lake is damaged: {lake.path(wrong[0].path)}{more} ({partitions}) is missing or has another size than "
            "was written. Restore it from a backup, then run this again."
        )


def files_in(lake: Lake, name: str, partition: str) -> list[DeltaFile]:
    """Return the Parquet files in a folder of the lake, committed or not. Their rows and bounds are not filled in.

    partition   name of the partition column
    """
    return [DeltaFile(path, _value_of(path, partition), 0, size, {}, {}) for path, size in lake.parquet(name)]


def _value_of(path: str, partition: str) -> str:
    """Return the value of the partition column in a path. Values have no characters that would be escaped in a path."""
    return path.rpartition(f"/{partition}=")[2].partition("/")[0]


# Merging


def merge(lake: Lake, files: Iterable[DeltaFile], path: str, schema: pyarrow.Schema) -> None:
    """Write the rows of these files into one new file, in this order. Columns that a file lacks become null.

    path   of the new file, relative to the lake's root

    The memory needed is that of one row group and of one file's compressed columns, whatever the number of files.
    """
    lake.make_folder(path.rpartition("/")[0])
    with (
        lake.files.open_output_stream(lake.path(path)) as out,
        parquet.ParquetWriter(out, schema, compression=COMPRESSION) as writer,
    ):
        for group in _row_groups(_batches(lake, files, schema)):
            writer.write_table(group, ROW_GROUP_ROWS)


def _batches(lake: Lake, files: Iterable[DeltaFile], schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
    for each in files:
        with lake.reading(each.path, each.partition) as name, lake.files.open_input_file(name) as file:
            for batch in parquet.ParquetFile(file).iter_batches(BATCH_ROWS):
                yield conform(batch, schema)


def conform(batch: pyarrow.RecordBatch, schema: pyarrow.Schema) -> pyarrow.RecordBatch:
    """Return the batch with the columns and types of the schema; columns that it lacks are null."""
    names = set(batch.schema.names)
    columns = [
        batch.column(field.name).cast(field.type) if field.name in names else pyarrow.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return pyarrow.RecordBatch.from_arrays(columns, schema=schema)


def _row_groups(batches: Iterable[pyarrow.RecordBatch]) -> Iterator[pyarrow.Table]:
    pending: list[pyarrow.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        pending.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pyarrow.Table.from_batches(pending)
            pending, rows, size = [], 0, 0
    if pending:
        yield pyarrow.Table.from_batches(pending)


# Folders of runs


def new_folder(run: int) -> str:
    """Return a new, unique name for the folder in which a run writes its files of a table. Creates nothing."""
    return f"{run:06d}-{uuid4().hex[:8]}"


def run_folders(lake: Lake, table: str) -> dict[str, int]:
    """Return folder -> number of the run, for each folder of a run in a table, committed or not."""
    names = [name.rpartition("/")[2] for name in lake.runs(table)]
    return {name: int(found[1]) for name in names if (found := _RUN_FOLDER.fullmatch(name))}


def folder_of_run(lake: Lake, table: str, run: int) -> str | None:
    """Return the folder of a run, committed or not; None if there is none, or more than one."""
    folders = [folder for folder, number in run_folders(lake, table).items() if number == run]
    return folders[0] if len(folders) == 1 else None


def remove_uncommitted(lake: Lake, table: str, run: int, advice: str = "") -> None:
    """Remove the folders of runs with a number above `run`, the last committed one: killed runs left them.

    advice   what to do if there is no backup, for the message

    Raises LakeError, and removes nothing, if a folder cannot be of a killed run: its number would be run + 1, and the
    table would have a log. Then the log was lost, or is an older copy.
    """
    uncommitted = {folder: number for folder, number in run_folders(lake, table).items() if number > run}
    last = max(uncommitted.values(), default=0)
    if last > run + 1 or (uncommitted and not lake.has(f"{table}/{LOG}")):
        raise LakeError(
            f"{lake.path(table)} has files of run {last}, but its log ends with run {run}: the log was lost, or is an "
            f"outdated copy. Nothing was removed. Restore the newest backup of this folder. {advice}".rstrip()
        )
    for folder in uncommitted:
        lake.remove(f"{table}/{folder}")
