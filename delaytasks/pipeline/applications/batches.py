"""Publish batches of the stream, each exactly once, even if the stream is killed at any point."""

import time
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from .. import schemas
from ..sources.database import Database
from ..tables import archives, compaction, delta, parts, stream_batches
from ..tables.delta import DeltaFile
from ..tables.lake import Lake
from ..tables.stream_batches import Part, Streamed
from ..transforms import lateness


class Batches:
    """Publishes batches as parts, one after the other, and compacts old parts.

    keep_days   number of days to keep a part after its last event; 0: forever
    """

    def __init__(self, spark: SparkSession, database: Database, lake: Lake, *, keep_days: float = 0) -> None:
        self.spark, self.database, self.lake, self.keep_days = spark, database, lake, keep_days
        self.state = stream_batches.load(lake)
        self.events = self.batches = self.folds = 0
        if not self.state.revision:
            # Skip the events of jobs that were pruned before the first run: they are only in the archive.
            skipped = {"run": archives.load(lake).pruned}
            self._replace(replace(self.state, archive=skipped))  # creates the document, before any part exists

    def publish(self, frame: DataFrame, up_to_id: int = 0) -> None:
        """Publish the events of a frame, and events that were archived and pruned before the stream could read them.

        frame     rows of RELATIONS["events"]: all events in the tables after the last published one, up to an id
        up_to_id  this id, if it may exceed the greatest id in the frame; 0: the greatest id in the frame

        Publishes nothing if there are no events.
        """
        folder = self.lake.new_run("stream")
        parts.write_events(self.lake, folder, frame.where(F.col("id") > self.state.to))
        part = stream_batches.measure(self.lake, folder, now_ms())
        up_to_id = max(up_to_id, part.last_id if part else 0)
        # Load the archive after reading the tables: events that were missing from the tables are archived by now.
        if files := [each for each in self._unread_files() if each.may_contain("id", last=up_to_id)]:
            parts.write_events(self.lake, folder, self._unread_events(files, folder, up_to_id), append=True)
            part = stream_batches.measure(self.lake, folder, now_ms())
        if part is None:  # the events were archived after the archive was listed: the next batch contains them
            self.lake.remove(folder)
            return
        events = parts.read_events(self.spark, self.lake, folder)
        parts.write_counts(self.lake, folder, lateness.count_events(events, "minute_ms"))
        self._publish_part(part)

    def _publish_part(self, part: Part) -> None:
        self.lake.sync(part.folder)
        newest = stream_batches.event(self.lake, part, part.last_id)
        all_parts = (*self.state.parts, part)
        self._replace(replace(self.state, to=part.last_id, newest=newest, parts=all_parts))
        self.events, self.batches = self.events + part.events, self.batches + 1
        self._compact_and_remove()

    def _replace(self, state: Streamed) -> None:
        state = replace(state, revision=self.state.revision + 1)
        stream_batches.publish(self.lake, state)
        self.state = state

    def _compact_and_remove(self) -> None:
        """Compact parts, retire expired ones, and remove folders that no reader can still use.

        Compacts at most once per batch, to keep the delay of the next batch short.
        """
        selected = compaction.select_parts(self.state.parts, now_ms())
        if selected:
            compacted = compaction.compact(self.spark, self.lake, selected)
            self._replace(compaction.replace_parts(self.state, selected, compacted, now_ms()))
            self.folds += 1
        expired = compaction.expired_parts(self.state, now_ms(), self.keep_days)
        removable = compaction.removable_folders(self.state, now_ms())
        if expired or removable:
            self._replace(compaction.retire(self.state, expired, removable, now_ms()))
            for folder in removable:
                self.lake.remove(folder)

    # Events that were archived before the stream read them

    def _unread_files(self) -> list[DeltaFile]:
        """Return the archive's files that may have events after the last published one."""
        files = archives.load(self.lake).events.run_files(self._first_run())
        return [each for each in files if each.may_contain("id", self.state.to + 1)]

    def _first_run(self) -> int:
        """Return the number of the first run that this stream needs; 0: also converted files, which have no number."""
        return self.state.archive.get("run", -1) + 1

    def _unread_events(self, files: list[DeltaFile], folder: str, up_to_id: int) -> DataFrame:
        events = delta.read(self.spark, self.lake, files, schemas.ARCHIVED_EVENTS)
        already_read = parts.read_events(self.spark, self.lake, folder).select("id")
        events = events.where(F.coalesce(delta.RUN, F.lit(0)) >= self._first_run())
        events = events.where((F.col("id") > self.state.to) & (F.col("id") <= up_to_id))
        return events.join(already_read, "id", "left_anti").select(*parts.EVENTS.names)

    def unread_range(self) -> tuple[int, int] | None:
        """Return (first id, last id) of the archive's files with unread events, or None if there are none.

        Raises LakeError if such a file is missing or has another size.
        """
        files = self._unread_files()
        delta.check(self.lake, files)
        return (min(each.low["id"] for each in files), max(each.high["id"] for each in files)) if files else None


def now_ms() -> int:
    return int(time.time() * 1000)
