"""Delta tables in the lake. Spark writes the Parquet files; delta-rs commits them; Spark reads the files of a version.

Uses pyarrow and deltalake, no Spark. Every table has one partition column. The log stores the number of the last
committed run as an application transaction, so a commit that is repeated adds nothing. A column `run`, if a table has
one, is the number of the run that committed the row. Readers follow the log and never list folders to find data.
"""

import contextlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import pyarrow
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from ..sources.database import Busy
from .lake import Lake, LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

APPLICATION = "delaytasks"  # id of the application transaction, whose version is the number of a run
LOG = "_delta_log"
TOPIC, RUN = "topic", "run"
TEXT_BOUNDS = ("key",)  # text columns whose least and greatest values are in the log; others are not searched for
READER_VERSION = 1  # Spark reads the files without the log, so a table may not hide rows or rename columns
WRITER_VERSION = 7  # the newest that delta-rs knows
ROW_GROUP_ROWS = 100_000  # of files that delta-rs writes; a lookup skips row groups
THREADS = 16  # for reading files' footers; an object store takes about 50 ms for each
SHOWN = 5  # maximum number of files named in a message
MILLISECOND = timedelta(milliseconds=1)
_RUN_FOLDER = re.compile(r"(\d{6,})-[0-9a-f]{8}")


class DeltaFile(NamedTuple):
    """A file of a table's version.

    path        relative to the lake's root
    partition   value of the partition column
    size        in bytes
    low, high   least and greatest value of each column, as far as the log has them
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
        return self.high.get(RUN) or 0


class Table:
    """A Delta table at one version, or a table that does not exist yet.

    name        folder of the table, relative to the lake's root
    partition   name of the partition column

    Raises LakeError if the log is damaged or the table uses features that Spark would not see.
    """

    def __init__(self, lake: Lake, name: str, partition: str = TOPIC) -> None:
        self.lake, self.name, self.partition = lake, name, partition
        self.log = _open(lake, name, partition)

    @property
    def run(self) -> int:
        """Number of the last committed run; 0 if there is none."""
        return self.last_run(APPLICATION)

    def last_run(self, application: str) -> int:
        """Return the number of the last run that was committed by transactions with this id; 0 if there is none."""
        return (self.log and self.log.transaction_version(application)) or 0

    @property
    def committed_ms(self) -> int | None:
        """Time of the last commit of a run, in milliseconds since 1970; None if there is none."""
        commits = self.log.history() if self.log and self.run else []
        return next((each["timestamp"] for each in commits if "run" in each), None)

    @cached_property
    def files(self) -> tuple[DeltaFile, ...]:
        """Files of this version, sorted by path."""
        if self.log is None:
            return ()
        rows = pyarrow.table(self.log.get_add_actions(flatten=True)).to_pylist()
        return tuple(sorted((self._file(row) for row in rows), key=lambda each: each.path))

    def _file(self, row: dict[str, Any]) -> DeltaFile:
        low, high = (
            {name.removeprefix(f"{end}."): value for name, value in row.items() if name.startswith(f"{end}.")}
            for end in ("min", "max")
        )
        path = f"{self.name}/{row['path']}"
        return DeltaFile(path, row[f"partition.{self.partition}"], row["num_records"], row["size_bytes"], low, high)

    def select(self, column: str, first: Any = None, last: Any = None) -> list[DeltaFile]:
        """Return the files that may have rows with first <= column <= last. None: no limit."""
        return [each for each in self.files if each.may_contain(column, first, last)]

    def in_partition(self, value: str) -> list[DeltaFile]:
        """Return the files of a partition, such as a topic."""
        return [each for each in self.files if each.partition == value]

    def run_files(self, run: int) -> list[DeltaFile]:
        """Return the files that may have rows of this run or a later one."""
        return [each for each in self.files if each.newest_run >= run]

    # Changes

    def create(self, schema: "StructType", configuration: Mapping[str, str] | None = None) -> "Table":
        """Return this table. Creates it if it does not exist yet, and adds the columns that it lacks.

        schema          all its columns; those that are newer than a table may be null
        configuration   Delta's properties of a new table

        Raises LakeError if the table lacks a column that may not be null: then another program has made it.
        """
        if self.log is None:
            with _translated(self.lake, self.name):
                DeltaTable.create(
                    self.lake.location(self.name), Schema.from_json(schema.json()), "ignore",
                    partition_by=[self.partition], configuration=configuration,
                )  # fmt: skip
            return Table(self.lake, self.name, self.partition)
        existing = {field.name for field in self.log.schema().fields}
        added = [each for each in Schema.from_json(schema.json()).fields if each.name not in existing]
        if absent := [each.name for each in added if not each.nullable]:
            raise LakeError(_foreign_message(self.lake, self.name, f"it has no column {', '.join(absent)}"))
        return self._changed(lambda log: log.alter.add_columns(added)) if added else self

    def commit(
        self, folder: str, run: int, *, replaced: Iterable[DeltaFile] = (), application: str = APPLICATION,
        rows: int | None = None,
    ) -> "Table":  # fmt: skip
        """Add the Parquet files of a folder as a run, and return the table's new version. Repeated, it adds nothing.

        folder        relative to the table; its files must have been flushed to the disk
        replaced      files that leave the table in the same commit
        application   id of the transaction
        rows          number of rows that were written to the folder; None: not known

        Raises Busy if another process has committed this run or a later one meanwhile, and LakeError if the files do
        not have all rows.
        """
        assert self.log is not None
        if self.last_run(application) >= run:
            return self
        properties = CommitProperties({"run": str(run)}, app_transactions=[Transaction(application, run)])
        additions = list(self._additions(folder))
        found = sum(json.loads(each.stats)["numRecords"] for each in additions)
        if rows is not None and found != rows:
            raise LakeError(
                f"{self.lake.path(self.name)}/{folder} has {found} of {rows} rows that were written: another program "
                "removed files, for example by a vacuum without retention. Nothing was published or pruned. Run this "
                "again."
            )
        actions: list[AddAction | RemoveAction] = [*additions, *map(self._removal, replaced)]
        return self._changed(
            lambda log: log.create_write_transaction(
                actions, "append", log.schema(), [self.partition], commit_properties=properties
            )
        )

    def _additions(self, folder: str) -> Iterator[AddAction]:
        """Yield the log's entries for the Parquet files in a folder of the table, with their statistics."""
        files = files_in(self.lake, f"{self.name}/{folder}", self.partition)
        with ThreadPoolExecutor(THREADS) as threads:
            statistics = threads.map(lambda each: _statistics(self.lake, each.path), files)
            for each, found in zip(files, statistics, strict=True):
                path, value = each.path.removeprefix(f"{self.name}/"), {self.partition: each.partition}
                yield AddAction(path, each.size, value, _now_ms(), True, json.dumps(found))

    def _removal(self, file: DeltaFile) -> RemoveAction:
        value: dict[str, str | None] = {self.partition: file.partition}
        return RemoveAction(file.path.removeprefix(f"{self.name}/"), True, _now_ms(), file.size, value)

    def delete(self, column: str, values: Collection[int], run: int | None = None) -> "Table":
        """Delete the rows with these values. Rewrites the files that have such rows.

        run   only rows of this run; 0: rows without a number
        """
        if not values:
            return self
        numbered = "" if run is None else f" AND {RUN} = {run}" if run else f" AND {RUN} IS NULL"
        where = f"{column} IN ({', '.join(map(str, sorted(values)))}){numbered}"
        return self._changed(lambda log: log.delete(where, writer_properties=_writer_properties()))

    def remove(self, files: Iterable[DeltaFile]) -> "Table":
        """Remove these files from the table in one commit. Older versions keep them until the next vacuum()."""
        actions: list[AddAction | RemoveAction] = [self._removal(each) for each in files]
        return self._changed(
            lambda log: log.create_write_transaction(actions, "append", log.schema(), [self.partition])
        )

    def compact(self, partitions: Collection[str], target_bytes: int) -> "Table":
        """Rewrite the files of these partitions that are smaller than target_bytes into few, in one commit."""
        if not partitions:
            return self
        return self._changed(
            lambda log: log.optimize.compact(
                [(self.partition, "in", sorted(partitions))], target_size=target_bytes,
                writer_properties=_writer_properties(),
            )
        )  # fmt: skip

    def z_order(self, partition: str, columns: Iterable[str], target_bytes: int) -> "Table":
        """Rewrite all files of a partition, ordered by these columns together."""
        return self._changed(
            lambda log: log.optimize.z_order(
                list(columns),
                [(self.partition, "=", partition)],
                target_size=target_bytes,
                writer_properties=_writer_properties(),
            )
        )

    def vacuum(self) -> list[str]:
        """Remove files that the table has not used for its retention time (by default a week). Return their paths."""
        if self.log is None:
            return []
        with _translated(self.lake, self.name):
            return self.log.vacuum(dry_run=False, full=True)

    def _changed(self, change: Callable[[DeltaTable], object]) -> "Table":
        """Apply a change to the log, flush log and new files to the disk, and return the new version."""
        assert self.log is not None
        with _translated(self.lake, self.name):
            change(self.log)
        changed = Table(self.lake, self.name, self.partition)
        self.lake.sync_files({each.path for each in changed.files} - {each.path for each in self.files})
        self.lake.sync_files(self._log_files(self.log.version()))
        return changed

    def _log_files(self, version: int) -> list[str]:
        """Return the paths of the log's files that are newer than a version."""
        names = {path: path.rpartition("/")[2] for path, _ in self.lake.list_files(f"{self.name}/{LOG}", "")}
        return [path for path, name in names.items() if not name[:20].isdecimal() or int(name[:20]) > version]


@contextlib.contextmanager
def _translated(lake: Lake, name: str) -> Iterator[None]:
    """Raise LakeError or Busy instead of the exceptions of delta-rs."""
    try:
        yield
    except CommitFailedError as error:
        raise Busy(
            f"Another process changes the table {lake.path(name)}: {error} Each database needs its own lake or alias."
        ) from error
    except DeltaError as error:
        if "Unsupported" in str(error):
            raise LakeError(
                f"{lake.path(name)} was changed by another program to a protocol that is not known here: {error}. "
                "Restore the table from a backup."
            ) from error
        raise LakeError(f"The table {lake.path(name)} is damaged or cannot be read: {error}") from error


def _open(lake: Lake, name: str, partition: str) -> DeltaTable | None:
    with _translated(lake, name):
        try:
            found = DeltaTable(lake.location(name))
        except TableNotFoundError:
            return None
        protocol, partitions = found.protocol(), found.metadata().partition_columns
    if protocol.min_reader_version > READER_VERSION:
        features = ", ".join(protocol.reader_features or ()) or f"reader version {protocol.min_reader_version}"
        raise LakeError(
            f"{lake.path(name)} was changed by another program to use {features}, which the pipeline does not read. "
            "Restore the table from a backup, or rewrite it without them."
        )
    if protocol.min_writer_version > WRITER_VERSION:
        raise LakeError(
            f"{lake.path(name)} was changed by another program to writer version {protocol.min_writer_version}, which "
            "the pipeline does not know. Restore the table from a backup."
        )
    if partitions != [partition]:
        raise LakeError(_foreign_message(lake, name, f"its partition columns are {partitions}, not {partition}"))
    return found


def _foreign_message(lake: Lake, name: str, difference: str) -> str:
    return (
        f"{lake.path(name)} was written by another program: {difference}. Nothing was changed. Move the table away, or "
        "restore it from a backup."
    )


def _writer_properties() -> WriterProperties:
    return WriterProperties(compression="ZSTD", max_row_group_size=ROW_GROUP_ROWS)


# Files


def _statistics(lake: Lake, path: str) -> dict[str, Any]:
    """Return a file's number of rows and the bounds of its columns, from the footer, in Delta's form."""
    with lake.reading(path) as name, lake.files.open_input_file(name) as file:
        footer = parquet.read_metadata(file)
    low, high = {}, {}
    for index in range(footer.num_columns):
        column = footer.schema.column(index).path
        groups = [footer.row_group(n).column(index).statistics for n in range(footer.num_row_groups)]
        if not groups or not all(group and group.has_min_max for group in groups):
            continue
        if isinstance(groups[0].min, int | date) or column in TEXT_BOUNDS:
            low[column] = _bound(min(group.min for group in groups))
            high[column] = _bound(max(group.max for group in groups), up=True)
    return {"numRecords": footer.num_rows, "minValues": low, "maxValues": high}


def greatest(lake: Lake, name: str, column: str) -> Any:
    """Return the greatest value of a column in the files of a folder, committed or not; None if there are no rows."""
    found = [_statistics(lake, path)["maxValues"].get(column) for path, _ in lake.parquet(name)]
    return max((each for each in found if each is not None), default=None)


def _bound(value: Any, *, up: bool = False) -> Any:
    """Return a bound as JSON. Times are in milliseconds there. up: round up."""
    if not isinstance(value, datetime):
        return value.isoformat() if isinstance(value, date) else value
    rounded = value.replace(microsecond=value.microsecond // 1000 * 1000)
    rounded += MILLISECOND if up and rounded != value else timedelta()
    return rounded.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def check(lake: Lake, files: Iterable[DeltaFile]) -> None:
    """Check that the files exist in the size that was committed. Raises LakeError, which names the first ones."""
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


def files_in(lake: Lake, name: str, partition: str = TOPIC) -> list[DeltaFile]:
    """Return the files in a folder of the lake that are not committed yet, without their statistics."""
    return [DeltaFile(path, _value_of(path, partition), 0, size, {}, {}) for path, size in lake.parquet(name)]


def _value_of(path: str, partition: str) -> str:
    """Return the value of the partition column in a path. Values have no characters that need an escape there."""
    return path.rpartition(f"/{partition}=")[2].partition("/")[0]


def read(
    spark: "SparkSession", lake: Lake, files: Collection[DeltaFile], schema: "StructType", partition: str = TOPIC
) -> "DataFrame":
    """Return the rows of these files, with the columns of the schema. Raises LakeError if a file is damaged.

    schema   all columns of the table
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if not files:
        return spark.createDataFrame([], schema)
    check(lake, files)
    columns = StructType([field for field in schema if field.name != partition])
    frame = spark.read.schema(columns).parquet(*[lake.uri(each.path) for each in files])
    values = {each.partition for each in files}
    after = F.substring_index("_metadata.file_path", f"/{partition}=", -1)
    value = F.lit(next(iter(values))) if len(values) == 1 else F.substring_index(after, "/", 1)
    return frame.select(*columns.names, value.alias(partition))


# Folders of runs


def new_folder(run: int) -> str:
    """Return a name for the folder of a run in a table."""
    return f"{run:06d}-{uuid4().hex[:8]}"


def run_folders(lake: Lake, table: str) -> dict[str, int]:
    """Return folder -> number of the run, for each folder of a run in a table, committed or not."""
    names = [name.rpartition("/")[2] for name in lake.runs(table)]
    return {name: int(found[1]) for name in names if (found := _RUN_FOLDER.fullmatch(name))}


def folder_of_run(lake: Lake, table: str, run: int) -> str | None:
    """Return the folder of a run, committed or not; None if there is none, or more than one."""
    folders = [folder for folder, number in run_folders(lake, table).items() if number == run]
    return folders[0] if len(folders) == 1 else None


def remove_uncommitted(lake: Lake, table: str, run: int) -> None:
    """Remove the folders of runs above this number, which killed runs left."""
    for folder, number in run_folders(lake, table).items():
        if number > run:
            lake.remove(f"{table}/{folder}")


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
