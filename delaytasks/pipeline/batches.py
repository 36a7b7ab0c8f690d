"""A batch of the stream, from events that were read to a part that is published: once, whatever is killed when."""

import time
from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import comparing, folding, manifest, parts, steps, streamed
from .database import Database
from .lake import Lake
from .manifest import Run
from .streamed import Part, Streamed


class Batches:
    """Publishes batches one after the other, each whole with what it adds to its minutes, and folds old ones.

    keep_days   how long parts are kept after the last of their events; 0: for ever
    """

    def __init__(self, spark: SparkSession, database: Database, lake: Lake, *, keep_days: float = 0) -> None:
        self.spark, self.database, self.lake, self.keep_days = spark, database, lake, keep_days
        self.state = streamed.load(lake)
        self.events = self.batches = self.folds = 0
        if not self.state.revision:  # what was pruned before it first ran is the archive's alone
            pruned = {run.folder: 0 for run in manifest.runs(lake) if run.pruned_ms is not None}
            self._replace(replace(self.state, archive=pruned))  # before a part can be there that it does not name

    def take(self, frame: DataFrame, upto: int = 0) -> None:
        """Publish the events of a frame, and those that the archive took away before they could be read.

        frame   RELATIONS["events"]: all that the tables have after the last one published, up to some id
        upto    that id, if it may be greater than the greatest in the frame
        """
        folder = self.lake.new_run("stream")
        parts.write_events(self.lake, folder, frame.where(F.col("id") > self.state.to))
        found = streamed.measured(self.lake, folder, now_ms())
        # Looked at after the tables were read: what was not there any more had been archived by then.
        upto, archive = max(upto, found.last_id if found else 0), self._archive()
        for run in [run for run in manifest.runs(self.lake) if archive.get(run.folder, 0) > self.state.to]:
            parts.write_events(self.lake, folder, self._archived(run, folder, upto), more=True)
            found = streamed.measured(self.lake, folder, now_ms())
        if found is None:  # archived between the look and the reading: it comes with the next one
            self.lake.remove(folder)
            return
        events = parts.read_events(self.spark, self.lake, folder)
        parts.write_counts(self.lake, folder, steps.counted(events, "minute_ms"))
        self._publish(found, archive)

    def _publish(self, part: Part, archive: dict[str, int]) -> None:
        self.lake.settle(part.folder)
        newest = streamed.event(self.lake, part, part.last_id)
        whole = (*self.state.parts, part)
        self._replace(replace(self.state, to=part.last_id, newest=newest, parts=whole, archive=archive))
        self.events, self.batches = self.events + part.events, self.batches + 1
        self._look_after()

    def _replace(self, state: Streamed) -> None:
        state = replace(state, revision=self.state.revision + 1)
        streamed.publish(self.lake, state)
        self.state = state

    def _look_after(self) -> None:
        """One fold at most, so that nobody waits long for the next batch."""
        chosen = folding.chosen(self.state.parts, now_ms())
        if chosen:
            made = folding.folded(self.spark, self.lake, chosen)
            self._replace(folding.instead(self.state, chosen, made, now_ms()))
            self.folds += 1
        old = folding.outlived(self.state, now_ms(), self.keep_days)
        gone = folding.forgotten(self.state, now_ms())
        if old or gone:
            self._replace(folding.without(self.state, old, gone, now_ms()))
            for folder in gone:
                self.lake.remove(folder)

    # What the archive took away before it was read

    def _archive(self) -> dict[str, int]:
        """Each of the archive's runs -> the id of the last event that it has."""
        known, runs = self.state.archive, manifest.runs(self.lake)
        return {run.folder: known[run.folder] if run.folder in known else ends(self.lake, run)[1] for run in runs}

    def _archived(self, run: Run, folder: str, upto: int) -> DataFrame:
        _, found = comparing.written(self.spark, self.lake, run.folder)
        there = parts.read_events(self.spark, self.lake, folder).select("id")
        found = found.where((F.col("id") > self.state.to) & (F.col("id") <= upto)).join(there, "id", "left_anti")
        return found.select(*parts.EVENTS.names)

    def unread(self) -> tuple[int, int] | None:
        """The first and the last id between which the archive has events that were not read; None if it has none.

        Raises LakeError.
        """
        archive = self._archive()
        found = [ends(self.lake, run) for run in manifest.runs(self.lake) if archive[run.folder] > self.state.to]
        return (min(first for first, _ in found), max(last for _, last in found)) if found else None


def ends(lake: Lake, run: Run) -> tuple[int, int]:
    """The ids of the first and the last event in a run of the archive; 0 if it has none. Raises LakeError."""
    files = [path for each in manifest.partitions(lake, run) for path in each.event_files]
    found = [streamed.bounds(streamed.footer(lake, path), "id") for path in files]
    return min((first for first, _ in found), default=0), max((last for _, last in found), default=0)


def now_ms() -> int:
    return int(time.time() * 1000)
