"""The events of the operational tables and of the archive together, each once: what reports are made of."""

from datetime import UTC, datetime, timedelta
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from . import comparing, manifest, sources
from .lake import Lake
from .manifest import Run
from .snapshot import Snapshot

DOUBT_MS = 3_600_000  # a run that was pruned so short before the snapshot may still be in it: clocks differ


def events(spark: SparkSession, taken: Snapshot, lake: Lake, columns: list[str], since_ms: int) -> DataFrame:
    """`columns` of the events that happened from since_ms on. Where the archive has what the tables have, theirs."""
    # All of them are read job by job, as to look up the topic of each event would take twice as long.
    name = "events" if since_ms else "stories"
    standing = sources.read(spark, taken, name, columns).where(F.col("done_ms") >= since_ms)
    runs = [run for run in manifest.runs(lake) if _may_have(lake, run, since_ms)]
    return reduce(
        DataFrame.unionByName, [_archived(spark, taken, lake, run, columns, since_ms) for run in runs], standing
    )


def jobs(spark: SparkSession, taken: Snapshot, lake: Lake, columns: list[str]) -> DataFrame:
    """`columns` of every job that there is or was; `id` among them."""
    found = sources.read(spark, taken, "jobs", columns)
    for run in manifest.runs(lake):
        archived, _ = comparing.written(spark, lake, run.folder)
        archived = archived.where(~F.col("id").isin(*run.withdrawn))
        if _in_doubt(taken, run):
            archived = archived.join(sources.read(spark, taken, "jobs", ["id"]), "id", "left_anti")
        found = found.unionByName(archived.select(*columns))
    return found


def _in_doubt(taken: Snapshot, run: Run) -> bool:
    return run.pruned_ms is None or run.pruned_ms > taken.now_ms - DOUBT_MS


def _may_have(lake: Lake, run: Run, since_ms: int) -> bool:
    """A job ends with its last event at the earliest, or thereabouts."""
    days = [each.ended_on for each in manifest.partitions(lake, run) if each.events]
    return bool(days) and max(days) >= _day(since_ms)


def _day(ms: int) -> str:
    return str((datetime.fromtimestamp(ms / 1000, UTC) - timedelta(days=1)).date())


def _archived(
    spark: SparkSession, taken: Snapshot, lake: Lake, run: Run, columns: list[str], since_ms: int
) -> DataFrame:
    _, found = comparing.written(spark, lake, run.folder)
    found = found.where((F.col("done_ms") >= since_ms) & ~F.col("job_id").isin(*run.withdrawn))
    if _in_doubt(taken, run):
        standing = sources.read(spark, taken, "jobs", ["id"]).where(F.col("id").between(run.first_id, run.last_id))
        found = found.join(standing.withColumnRenamed("id", "job_id"), "job_id", "left_anti")
    return found.select(*columns)
