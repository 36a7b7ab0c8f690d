"""Read events and jobs from the operational tables and the archive together, without duplicates."""

from collections.abc import Collection
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from .. import schemas
from ..sources import arrow
from ..sources.snapshot import Snapshot
from . import archives, delta
from .archives import Archive
from .data_files import DeltaFile
from .lake import Lake

# The jobs of a run that was pruned less than this before the snapshot may still be in the snapshot, because the two
# times are from different clocks.
OVERLAP_MS = 3_600_000


def events(spark: SparkSession, snapshot: Snapshot, lake: Lake, columns: list[str], since_ms: int) -> DataFrame:
    """Return `columns` of the events with done_ms >= since_ms.

    If a job is in the operational tables and in the archive, its events are read from the operational tables.
    """
    # If since_ms is 0, read all events job by job: looking up the topic of each event would take twice as long.
    name = "events" if since_ms else "job_events"
    live = arrow.read(spark, snapshot, name, columns).where(F.col("done_ms") >= since_ms)
    archive = archives.load(lake, snapshot.identity)
    files = archive.events.select("done_ms", since_ms)
    archived = _not_in_snapshot(spark, snapshot, archive, files, schemas.ARCHIVED_EVENTS, "job_id")
    since = [each.where(F.col("done_ms") >= since_ms).select(*columns) for each in archived]
    return reduce(DataFrame.unionByName, since, live)


def job_events(spark: SparkSession, snapshot: Snapshot, lake: Lake, columns: list[str], topic: str) -> DataFrame:
    """Return `columns` of the events of all jobs of a topic, including archived jobs. `key` is the key of the job."""
    live = arrow.read(spark, snapshot, "job_events_with_key", list(dict.fromkeys([*columns, "topic"])))
    live = live.where(F.col("topic") == topic).select(*columns)
    archive = archives.load(lake, snapshot.identity)
    files = archive.events.in_partition(topic)
    if not (files and archive.jobs.in_partition(topic)):
        return live
    jobs = _archived_jobs(spark, snapshot, archive, topic)
    keys = reduce(DataFrame.unionByName, jobs).select(F.col("id").alias("job_id"), "key")
    archived = delta.read(spark, lake, files, schemas.ARCHIVED_EVENTS).join(keys, "job_id")
    return live.unionByName(archived.select(*columns))


def jobs(spark: SparkSession, snapshot: Snapshot, lake: Lake, columns: list[str], topic: str) -> DataFrame:
    """Return `columns` of all jobs of a topic, including archived jobs. `columns` must include `id` and `topic`."""
    live = arrow.read(spark, snapshot, "jobs", columns).where(F.col("topic") == topic)
    archived = _archived_jobs(spark, snapshot, archives.load(lake, snapshot.identity), topic)
    return reduce(DataFrame.unionByName, [each.select(*columns) for each in archived], live)


def _archived_jobs(spark: SparkSession, snapshot: Snapshot, archive: Archive, topic: str) -> list[DataFrame]:
    """Return the archived jobs of a topic that are not in the snapshot, except those that were created after it."""
    files = archive.jobs.in_partition(topic)
    archived = _not_in_snapshot(spark, snapshot, archive, files, schemas.ARCHIVED_JOBS, "id")
    return [each.where(F.unix_millis("created_at") <= snapshot.now_ms) for each in archived]


def _not_in_snapshot(
    spark: SparkSession,
    snapshot: Snapshot,
    archive: Archive,
    files: Collection[DeltaFile],
    schema: StructType,
    job: str,
) -> list[DataFrame]:
    """Return the rows of the files whose jobs are not in the snapshot, as one or two frames without common rows.

    job   name of the column with the job's id
    """
    pruned = archive.pruned_before(snapshot.now_ms - OVERLAP_MS)
    older, recent = ([each for each in files if (each.newest_run > pruned) is overlaps] for overlaps in (False, True))
    frames = [delta.read(spark, archive.lake, older, schema)] if older else []
    if recent:
        first, last = min(each.low[job] for each in recent), max(each.high[job] for each in recent)
        ids = arrow.read(spark, snapshot, "jobs", ["id"]).where(F.col("id").between(first, last))
        rows = delta.read(spark, archive.lake, recent, schema)
        frames.append(rows.join(ids.withColumnRenamed("id", job), job, "left_anti"))
    return frames
