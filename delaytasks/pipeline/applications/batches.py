"""Publish batches of the stream, each exactly once, even if the stream is killed at any point."""

import time
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .. import schemas
from ..sources.database import Database
from ..tables import archives, data_files, delta, row_counts, stream_tables
from ..tables.data_files import DeltaFile
from ..tables.lake import Lake
from ..tables.stream_tables import DAY, DAY_MS, EVENTS, MINUTES
from ..transforms import lateness

WRITE_OPTIONS = {"compression": "zstd"}
EVENT_COLUMNS = [name for name in schemas.STREAMED_EVENTS.names if name != DAY]


class Batches:
    """Publishes batches of events one after the other, and merges their small files.

    keep_days   number of days to keep a file after its last event; 0: forever
    """

    def __init__(self, spark: SparkSession, database: Database, lake: Lake, *, keep_days: float = 0) -> None:
        self.spark, self.database, self.lake, self.keep_days = spark, database, lake, keep_days
        # A new stream does not copy the events of jobs that are only in the archive.
        archive = archives.load(lake)
        self.stream = stream_tables.open_stream(lake, archive.pruned, archive.id)
        self.events = self.batches = self.folds = 0

    @property
    def to(self) -> int:
        """Id of the last published event; 0 if there is none."""
        return self.stream.to

    def publish(self, frame: DataFrame, up_to_id: int = 0) -> None:
        """Publish the events of a frame, and events that were archived and pruned before the stream could read them.

        frame     rows of relations.RELATIONS["events"]: the events in the tables after the last published one
        up_to_id  the last id of this batch, which may belong to an archived event; 0: the greatest id in the frame

        Publishes nothing if there are no events.
        """
        folder, day = data_files.new_folder(self.to + 1), today()
        name = f"{EVENTS}/{folder}"
        rows = self._write(frame.where(F.col("id") > self.to), name, day)
        up_to_id = max(up_to_id, data_files.greatest(self.lake, name, "id") or 0)
        # Load the archive after reading the tables: events that were missing from the tables are archived by now.
        first_run, unread = self._unread_files()
        if files := [each for each in unread if each.may_contain("id", last=up_to_id)]:
            rows += self._write(self._unread_events(first_run, files, name, up_to_id), name, day, mode="append")
        last_id = data_files.greatest(self.lake, name, "id")
        if last_id is None:  # the events were archived after the archive was listed: the next batch contains them
            self.lake.remove(name)
            return
        counts = lateness.count_minutes(self._written(name)).coalesce(1)
        counted = self._write(counts, f"{MINUTES}/{folder}", day)
        for table in (EVENTS, MINUTES):
            self.lake.sync(f"{table}/{folder}")
        self.stream = stream_tables.commit(self.stream, folder, last_id, events=rows, counts=counted)
        self.events, self.batches = self.events + rows, self.batches + 1
        self._compact_and_expire(day)

    def _write(self, frame: DataFrame, name: str, day: str, mode: str = row_counts.NEW) -> int:
        dated = frame.withColumn(DAY, F.lit(day))
        return row_counts.write(dated, self.lake, name, DAY, mode=mode, options=WRITE_OPTIONS)

    def _written(self, name: str) -> DataFrame:
        """Return the events in this folder, which are not committed yet."""
        files = data_files.files_in(self.lake, name, DAY)
        return delta.read(self.spark, self.lake, files, schemas.STREAMED_EVENTS, DAY).drop(DAY)

    def _compact_and_expire(self, day: str) -> None:
        if stream_tables.compact(self.stream, day):
            self.folds += 1
            self.stream = stream_tables.load(self.lake)
        before_ms = int(time.time() * 1000 - self.keep_days * DAY_MS)
        if self.keep_days and stream_tables.expire(self.stream, before_ms):
            self.stream = stream_tables.load(self.lake)

    # Events that were archived before the stream read them

    def _unread_files(self) -> tuple[int, list[DeltaFile]]:
        """Return the first run whose events this stream needs, and the files that may have unread events.

        Run 0 includes converted files, whose rows have no run number.
        """
        archive = archives.load(self.lake)
        skipped = self.stream.archived_run if self.stream.archive_id == archive.id else None
        first_run = 0 if skipped is None else skipped + 1
        return first_run, [each for each in archive.events.run_files(first_run) if each.may_contain("id", self.to + 1)]

    def _unread_events(self, first_run: int, files: list[DeltaFile], name: str, up_to_id: int) -> DataFrame:
        events = delta.read(self.spark, self.lake, files, schemas.ARCHIVED_EVENTS)
        already_read = self._written(name).select("id")
        events = events.where(F.coalesce(delta.RUN, F.lit(0)) >= first_run)
        events = events.where((F.col("id") > self.to) & (F.col("id") <= up_to_id))
        return events.join(already_read, "id", "left_anti").select(*EVENT_COLUMNS)

    def unread_range(self) -> tuple[int, int] | None:
        """Return (first id, last id) of the archive's files with unread events, or None if there are none.

        Raises LakeError if such a file is missing or has another size.
        """
        _, files = self._unread_files()
        data_files.check(self.lake, files)
        return (min(each.low["id"] for each in files), max(each.high["id"] for each in files)) if files else None


def today() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d}"
