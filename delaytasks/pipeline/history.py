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
    runs = [run for run in manifest.runs(lake, taken.identity) if _may_have(lake, run, since_ms)]
    archived = [_archived(spark, taken, lake, run).where(F.col("done_ms") >= since_ms) for run in runs]
    return reduce(DataFrame.unionByName, [each.select(*columns) for each in archived], standing)


def stories(spark: SparkSession, taken: Snapshot, lake: Lake, columns: list[str], topic: str) -> DataFrame:
    """`columns` of the events of all jobs of a topic, `key` (the job's) among them."""
    found = sources.read(spark, taken, "keyed", list(dict.fromkeys([*columns, "topic"])))
    found = found.where(F.col("topic") == topic).select(*columns)
    for run in _with_topic(taken, lake, topic):
        _, events = comparing.written(spark, lake, run.folder)
        keys = _archived_jobs(spark, taken, lake, run).where(F.col("topic") == topic)
        keys = keys.select(F.col("id").alias("job_id"), "key")
        found = found.unionByName(events.where(F.col("topic") == topic).join(keys, "job_id").select(*columns))
    return found


def jobs(spark: SparkSession, taken: Snapshot, lake: Lake, columns: list[str], topic: str) -> DataFrame:
    """`columns` of every job of a topic that there is or was; `id` and `topic` among them."""
    found = sources.read(spark, taken, "jobs", columns)
    for run in _with_topic(taken, lake, topic):
        found = found.unionByName(_archived_jobs(spark, taken, lake, run).select(*columns))
    return found.where(F.col("topic") == topic)


def _with_topic(taken: Snapshot, lake: Lake, topic: str) -> list[Run]:
    """The runs of the archive that have jobs of a topic: each costs a plan and a look at all of its files."""
    found = manifest.runs(lake, taken.identity)
    return [run for run in found if any(each.topic == topic for each in manifest.partitions(lake, run))]


def _archived_jobs(spark: SparkSession, taken: Snapshot, lake: Lake, run: Run) -> DataFrame:
    """The jobs of a run that the snapshot has not."""
    archived, _ = comparing.written(spark, lake, run.folder)
    archived = archived.where(~F.col("id").isin(*run.withdrawn))
    return archived.join(_standing(spark, taken, run), "id", "left_anti") if _in_doubt(taken, run) else archived


def _standing(spark: SparkSession, taken: Snapshot, run: Run) -> DataFrame:
    """The ids that the snapshot has, of those that the run may have."""
    return sources.read(spark, taken, "jobs", ["id"]).where(F.col("id").between(run.first_id, run.last_id))


def _in_doubt(taken: Snapshot, run: Run) -> bool:
    return run.pruned_ms is None or run.pruned_ms > taken.now_ms - DOUBT_MS


def _may_have(lake: Lake, run: Run, since_ms: int) -> bool:
    """A job ends with its last event at the earliest, or thereabouts."""
    days = [each.ended_on for each in manifest.partitions(lake, run) if each.events]
    return bool(days) and max(days) >= _day(since_ms)


def _day(ms: int) -> str:
    return str((datetime.fromtimestamp(ms / 1000, UTC) - timedelta(days=1)).date())


def _archived(spark: SparkSession, taken: Snapshot, lake: Lake, run: Run) -> DataFrame:
    """The events of a run whose jobs the snapshot has not."""
    _, found = comparing.written(spark, lake, run.folder)
    found = found.where(~F.col("job_id").isin(*run.withdrawn))
    if _in_doubt(taken, run):
        found = found.join(_standing(spark, taken, run).withColumnRenamed("id", "job_id"), "job_id", "left_anti")
    return found
