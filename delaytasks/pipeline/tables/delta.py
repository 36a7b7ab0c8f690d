"""Delta tables in the lake. Spark writes the Parquet files; delta-rs commits them; Spark reads the files of a version.

Only read() needs a Spark session. Every table has one partition column. The log stores the number of the last committed
run as the version of an application transaction, so a repeated commit adds nothing. The column `run`, which not every
table has, is the number of the run that committed the row. Readers follow the log and never list folders to find data.
"""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, WriterProperties
from deltalake.transaction import AddAction, RemoveAction
from pyarrow import parquet

from ..sources.database import Busy
from . import data_files
from .data_files import LOG, DeltaFile
from .delta_log import foreign_message, open_log, translated
from .lake import Lake, LakeError, for_reading

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

APPLICATION = "delaytasks"  # id of the application transaction, whose version is the number of a run
TOPIC, RUN = "topic", "run"
RECENT_COMMITS = 20
DELETED = 5_000  # values of one commit that deletes rows
THREADS = 16  # for reading files' footers; an object store takes about 50 ms for each


class Table:
    """A Delta table at one version, or a table that does not exist yet.

    name        folder of the table, relative to the lake's root
    partition   name of the partition column

    Raises LakeError if the log is damaged, or the table uses Delta features that need the log to read a file correctly.
    """

    def __init__(self, lake: Lake, name: str, partition: str = TOPIC) -> None:
        self.lake, self.name, self.partition = lake, name, partition
        self.log = open_log(lake, name, partition)

    @property
    def run(self) -> int:
        """Number of the last committed run; 0 if there is none."""
        return self.last_run(APPLICATION)

    def last_run(self, application: str) -> int:
        """Return the number of the last run that was committed under this application id; 0 if there is none."""
        return (self.log and self.log.transaction_version(application)) or 0

    @property
    def committed_ms(self) -> int | None:
        """Time of the last commit of a run, in milliseconds since 1970; None if there is none."""
        if not self.log or not self.run:
            return None
        for limit in (RECENT_COMMITS, None):  # a stream's log has thousands; on S3 each is a request
            for each in self.log.history(limit):
                if "run" in each:
                    return int(each["timestamp"])
        return None

    @cached_property
    def files(self) -> tuple[DeltaFile, ...]:
        """Files of this version, sorted by path."""
        if self.log is None:
            return ()
        actions = pyarrow.table(self.log.get_add_actions(flatten=True))
        columns = [actions[name].to_pylist() for name in
                   ("path", f"partition.{self.partition}", "num_records", "size_bytes")]  # fmt: skip
        files = map(DeltaFile, *columns, _bounds(actions, "min."), _bounds(actions, "max."))
        named = (each._replace(path=f"{self.name}/{each.path}") for each in files)
        return tuple(sorted(named, key=lambda each: each.path))

    def select(self, column: str, first: Any = None, last: Any = None) -> list[DeltaFile]:
        """Return the files that may have rows with first <= column <= last. None: no limit."""
        return [each for each in self.files if each.may_contain(column, first, last)]

    def in_partition(self, value: str) -> list[DeltaFile]:
        """Return the files of a partition, such as a topic."""
        return [each for each in self.files if each.partition == value]

    def run_files(self, run: int) -> list[DeltaFile]:
        """Return the files that may have rows of this run or of later runs."""
        return [each for each in self.files if each.newest_run >= run]

    # Changes

    def check(self, schema: "StructType", added: Collection[str] = ()) -> "Table":
        """Return the table, if it has the columns of the schema or does not exist yet. It may have more columns.

        added   names of nullable columns that tables of earlier versions of delaytasks lack

        Raises LakeError if a column is missing or has another type: Spark would read a missing column as null.
        """
        found = {each.name: each.type for each in self.log.schema().fields} if self.log else {}
        wanted = Schema.from_json(schema.json()).fields if self.log else []
        wrong = [f"it has no column {each.name}" for each in wanted if each.name not in {*found, *added}]
        wrong += [f"its column {each.name} is {found[each.name].to_json()} and not {each.type.to_json()}"
                  for each in wanted if found.get(each.name, each.type) != each.type]  # fmt: skip
        if wrong:
            raise LakeError(foreign_message(self.lake, self.name, ", ".join(wrong)))
        return self

    def create(
        self, schema: "StructType", configuration: Mapping[str, str] | None = None, added: Collection[str] = ()
    ) -> "Table":
        """Create the table if it does not exist yet, else add the columns that it lacks. Return its new version.

        schema          all columns
        configuration   Delta properties, for a new table
        added           see check()

        Raises LakeError as check() does.
        """
        self.check(schema, added)
        if self.log is None:
            with translated(self.lake, self.name):
                DeltaTable.create(
                    self.lake.location(self.name), Schema.from_json(schema.json()), "ignore",
                    partition_by=[self.partition], configuration=configuration,
                )  # fmt: skip
            return Table(self.lake, self.name, self.partition)
        existing = {each.name for each in self.log.schema().fields}
        absent = [each for each in Schema.from_json(schema.json()).fields if each.name not in existing]
        return self._changed(lambda log: log.alter.add_columns(absent)) if absent else self

    def commit(
        self, folder: str, run: int, *, replaced: Iterable[DeltaFile] = (), application: str = APPLICATION,
        rows: int | None = None,
    ) -> "Table":  # fmt: skip
        """Commit the Parquet files of a folder as a run, and return the table's new version.

        folder        relative to the table; its files must have been flushed to the disk
        replaced      files that the same commit removes from the table
        application   application id of the transaction
        rows          number of rows that were written to the folder; None: not known

        Does nothing if this run or a later one is committed.

        Raises Busy if another process has committed this run or a later one meanwhile, and LakeError if the files do
        not have all rows.
        """
        if self.last_run(application) >= run:
            return self
        additions = self._additions(folder)
        if rows is not None:
            found = sum(json.loads(each.stats)["numRecords"] for each in additions)
            self._check_rows(f"{self.name}/{folder}", found, rows)
        properties = CommitProperties({"run": str(run)}, app_transactions=[Transaction(application, run)])
        return self._write([*additions, *map(self._removal, replaced)], properties)

    def append(self, schema: "StructType", partition: str, rows: Sequence[Mapping[str, Any]]) -> "Table":
        """Commit a few rows of one partition, without Spark, and return the table's new version.

        schema      all columns of the table, as for create(), including RUN
        partition   value of the partition column
        rows        values of the other columns, except RUN
        """
        from pyspark.sql.pandas.types import to_arrow_schema

        table = self.create(schema)
        run = table.run + 1
        folder = data_files.new_folder(run)
        stored = type(schema)([field for field in schema if field.name != self.partition])
        name = f"{self.name}/{folder}/{self.partition}={partition}"
        self.lake.make_folder(name)
        found = pyarrow.Table.from_pylist([{**row, RUN: run} for row in rows], to_arrow_schema(stored, timezone="UTC"))
        parquet.write_table(
            found, self.lake.path(f"{name}/part-0.parquet"), filesystem=self.lake.files, compression="zstd"
        )
        self.lake.sync(f"{self.name}/{folder}")
        return table.commit(folder, run)

    def _additions(self, folder: str) -> list[AddAction]:
        """Return the log's entries for the Parquet files in a folder of the table, with their statistics."""
        files = data_files.files_in(self.lake, f"{self.name}/{folder}", self.partition)
        with ThreadPoolExecutor(THREADS) as threads:
            found = threads.map(lambda each: data_files.statistics(self.lake, each.path), files)
            return [self._addition(each, statistics) for each, statistics in zip(files, found, strict=True)]

    def _addition(self, file: DeltaFile, statistics: Mapping[str, Any]) -> AddAction:
        path, value = file.path.removeprefix(f"{self.name}/"), {self.partition: file.partition}
        return AddAction(path, file.size, value, _now_ms(), True, json.dumps(statistics, ensure_ascii=False))

    def _removal(self, file: DeltaFile) -> RemoveAction:
        value: dict[str, str | None] = {self.partition: file.partition}
        return RemoveAction(file.path.removeprefix(f"{self.name}/"), True, _now_ms(), file.size, value)

    def delete(self, column: str, values: Collection[int], run: int | None = None) -> "Table":
        """Delete the rows whose `column` has one of these values, by rewriting their files. Return the new version.

        Each DELETED values are a commit: delta-rs crashes with 22,000. If this is killed, it can be repeated.

        run   delete only rows of this run; 0: only rows without a run number; None: rows of all runs
        """
        numbered = "" if run is None else f" AND {RUN} = {run}" if run else f" AND {RUN} IS NULL"
        table, remaining = self, sorted(values)
        while remaining:
            chunk, remaining = remaining[:DELETED], remaining[DELETED:]
            table = table._delete(f"{column} IN ({', '.join(map(str, chunk))}){numbered}")
        return table

    def _delete(self, where: str) -> "Table":
        return self._changed(lambda log: log.delete(where, writer_properties=_writer_properties()))

    def remove(self, files: Iterable[DeltaFile]) -> "Table":
        """Remove these files from the table in one commit. They stay on the disk until vacuum() removes them."""
        return self._write([self._removal(each) for each in files])

    def merge(self, groups: Iterable[Sequence[DeltaFile]]) -> "Table":
        """Merge each group of files into one file, all in one commit. The rows do not change.

        groups   the files of a group are in the same partition

        Raises Busy if another process has removed one of the files meanwhile, and LakeError if rows were lost. If this
        is killed, uncommitted files stay until a vacuum().
        """
        # The actions have dataChange = true. Otherwise delta-rs would accept a concurrent change of the replaced files.
        actions: list[AddAction | RemoveAction] = []
        replaced: set[str] = set()
        for files in groups:
            actions += [self._merge(files), *map(self._removal, files)]
            replaced |= {each.path for each in files}
        if not actions:
            return self
        newest = Table(self.lake, self.name, self.partition)
        if gone := replaced - {each.path for each in newest.files}:  # for example, a z-order rewrote them
            raise Busy(f"Another process has replaced {self.lake.path(min(gone))} meanwhile: run this again.")
        return newest._write(actions)

    def _merge(self, files: Sequence[DeltaFile]) -> AddAction:
        """Write the rows of these files into a new file, flush it to the disk, and return its entry for the log."""
        assert self.log is not None
        value, columns = files[0].partition, pyarrow.schema(self.log.schema().to_arrow())
        path = f"{self.name}/{self.partition}={value}/part-{uuid4()}.parquet"
        data_files.merge(self.lake, files, path, columns.remove(columns.get_field_index(self.partition)))
        self.lake.sync_files([path])
        statistics = data_files.statistics(self.lake, path)
        self._check_rows(path, statistics["numRecords"], sum(each.rows for each in files))
        size = self.lake.files.get_file_info(self.lake.path(path)).size
        return self._addition(DeltaFile(path, value, 0, size, {}, {}), statistics)

    def _check_rows(self, name: str, found: int, expected: int) -> None:
        if found != expected:
            raise LakeError(
                f"{self.lake.path(name)} has {found} of {expected} rows that were written: another program removed "
                "files, for example by a vacuum without retention. The table was not changed. Run this again."
            )

    def z_order(self, partition: str, columns: Iterable[str], target_bytes: int) -> "Table":
        """Rewrite all files of a partition in z-order of these columns, as files of about target_bytes."""
        return self._changed(
            lambda log: log.optimize.z_order(
                list(columns),
                [(self.partition, "=", partition)],
                target_size=target_bytes,
                writer_properties=_writer_properties(),
            )
        )

    def _write(self, actions: list[AddAction | RemoveAction], properties: CommitProperties | None = None) -> "Table":
        return self._changed(
            lambda log: log.create_write_transaction(
                actions, "append", log.schema(), [self.partition], commit_properties=properties
            )
        )

    def vacuum(self) -> list[str]:
        """Remove files that the table has not used for its retention time (by default a week). Return their paths.

        Then remove the folders of runs that have no file any more: each vacuum and each run lists them.
        """
        if self.log is None:
            return []
        with translated(self.lake, self.name):
            removed = self.log.vacuum(dry_run=False, full=True)
        for folder, run in data_files.run_folders(self.lake, self.name).items():
            if run <= self.run:  # a later one is of a run that has not committed yet
                self.lake.remove_empty_folders(f"{self.name}/{folder}")
        return removed

    def _changed(self, change: Callable[[DeltaTable], object]) -> "Table":
        """Apply a change to the log, flush the log and new files to the disk, and return the table's new version."""
        assert self.log is not None
        version, before = self.log.version(), {each.path for each in self.files}  # a change may load the new version
        with translated(self.lake, self.name):
            change(self.log)
        changed = Table(self.lake, self.name, self.partition)
        self.lake.sync_files({each.path for each in changed.files} - before)
        self.lake.sync_files(self._log_files(version))
        return changed

    def _log_files(self, version: int) -> list[str]:
        """Return the paths of the files in the log's folder, except the entries of this version and earlier ones."""
        names = {path: path.rpartition("/")[2] for path, _ in self.lake.list_files(f"{self.name}/{LOG}", "")}
        return [path for path, name in names.items() if not name[:20].isdecimal() or int(name[:20]) > version]


def _bounds(actions: pyarrow.Table, prefix: str) -> list[dict[str, Any]]:
    """Return {column: bound} for each file; None: not known. prefix: "min." or "max."."""
    names = [name for name in actions.schema.names if name.startswith(prefix)]
    rows = actions.select(names).rename_columns([name.removeprefix(prefix) for name in names]).to_pylist()
    return [{name: None if _may_be_misread(bound) else bound for name, bound in row.items()} for row in rows]


def _may_be_misread(bound: Any) -> bool:
    """Return whether a bound has a character above U+FFFF: earlier versions wrote it so that delta-rs reads another."""
    return isinstance(bound, str) and max(bound, default="") > "\uffff"


def _writer_properties() -> WriterProperties:
    return WriterProperties(compression="ZSTD", max_row_group_size=data_files.ROW_GROUP_ROWS)


def read(
    spark: "SparkSession", lake: Lake, files: Collection[DeltaFile], schema: "StructType", partition: str = TOPIC
) -> "DataFrame":
    """Return the rows of these files, with the columns of the schema. Raises LakeError if a file is missing or damaged.

    schema      all columns of the table
    partition   name of the partition column
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StructType

    if not files:
        return spark.createDataFrame([], schema)
    data_files.check(lake, files)
    columns = StructType([field for field in schema if field.name != partition])
    frame = spark.read.schema(columns).parquet(*[for_reading(lake.uri(each.path)) for each in files])
    values = {each.partition for each in files}
    after = F.substring_index("_metadata.file_path", f"/{partition}=", -1)
    value = F.lit(next(iter(values))) if len(values) == 1 else F.substring_index(after, "/", 1)
    return frame.select(*columns.names, value.alias(partition))


def _now_ms() -> int:
    return int(datetime.now(UTC).timestamp() * 1000)
