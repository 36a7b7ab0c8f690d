"""Archive: move ended jobs from the operational tables to the lake.

A run writes the jobs to files, compares the files with the rows, commits them to the archive's Delta tables, then
prunes the jobs from the operational tables. If a run is killed at any point, nothing is lost or duplicated: the next
run completes or removes what it left, and prunes committed jobs before it archives others.
"""

import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ...clock import from_ms
from ...states import State
from .. import schemas
from ..exit_codes import ExitCode
from ..sources import arrow, identity
from ..sources import snapshot as snapshots
from ..sources.database import Database
from ..sources.snapshot import Snapshot
from ..tables import archives, checksums, data_files, delta, optimization, row_counts
from ..tables.archives import EVENTS, JOBS, Archive
from ..tables.checksums import Digests
from ..tables.lake import Lake
from . import prune as pruner

DAY_MS = 86_400_000
ENDED_STATES = (State.FINISHED, State.CANCELLED)
FILE_ROWS = 2_000_000  # maximum number of rows in a file
WRITE_OPTIONS = {
    "compression": "zstd",
    "parquet.block.size": str(8 << 20),  # bytes; small, as a lookup skips the row groups that cannot contain the key
}


def run(
    spark: SparkSession,
    database: Database,
    lake: Lake,
    *,
    older_than_days: float = 30,
    dead: bool = False,
    prune: bool = True,
    now_ms: int | None = None,
) -> dict[str, Any]:
    """Archive ended jobs. Return {"jobs", "events", "partitions", "pruned", "left", "withdrawn", "seconds"}.

    older_than_days  archive jobs that ended longer ago than this; see cutoff_ms()
    dead             archive dead jobs too; staff cannot retry them afterwards
    prune            False: keep the jobs' rows in the tables; a later run with prune=True deletes them
    now_ms           time from which older_than_days counts, in milliseconds since 1970; None: the snapshot's. The
                     command has noted this time, so no later run of a schedule may be pruned

    Members of the answer:

    partitions       number of pairs of a topic and a UTC day on which jobs of this topic ended
    left             number of jobs that could not be pruned because they were locked; the next run prunes them
    withdrawn        number of jobs that changed after they were written to the lake; they stay in the tables
    """  # fmt: skip
    began = time.monotonic()
    with database.lock("archive") as check_lock:
        with database.connect() as connection:
            archive = _open(lake, identity.identify(database, connection))
        result, unpruned = pruner.Pruned(), archive.unpruned
        if unpruned and prune:
            archive, result = pruner.prune(database, archive)
        if result.left or (unpruned and not prune):
            advice, code = (
                ("run this again", ExitCode.COULD_NOT_RUN) if prune else ("run this without --keep", ExitCode.BAD_INPUT)
            )
            refused = f"{result.left or 'Some'} jobs of an earlier run are not pruned yet: {advice}."
            return _answer({}, result, began) | {"refused": refused, "exit_code": code}
        states = (*ENDED_STATES, State.DEAD) if dead else ENDED_STATES
        folder = data_files.new_folder(archive.jobs.run + 1)
        with snapshots.take(database) as snapshot:
            before_ms = cutoff_ms(snapshot.now_ms if now_ms is None else now_ms, older_than_days)
            written = write(spark, snapshot, archive, folder, before_ms, states)
        if written:
            check_lock()  # if the lock was lost, another run may have removed these uncommitted files
            archive = commit(archive, folder, written)
        if written and prune:  # after the end of the snapshot, so that PostgreSQL can vacuum the rows
            archive, pruned = pruner.prune(database, archive)
            result += pruned
            if not pruned.left:
                optimization.compact(archive)
    return _answer(written, result, began)


def _answer(written: Digests, result: pruner.Pruned, began: float) -> dict[str, Any]:
    topics = written.values()
    return {"jobs": sum(each.jobs for each in topics), "events": sum(each.events for each in topics),
            "partitions": sum(each.days for each in topics), "pruned": result.pruned, "left": result.left,
            "withdrawn": len(result.withdrawn), "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def cutoff_ms(now_ms: int, days: float) -> int:
    """Return the time before which a job must have ended to be archived, in milliseconds since 1970.

    From days=1 on, the result is the start of a UTC day, so that one run archives a day completely.
    """
    cutoff = now_ms - round(days * DAY_MS)
    return cutoff - cutoff % DAY_MS if days >= 1 else cutoff


def _open(lake: Lake, database: identity.Identity) -> Archive:
    """Complete or remove what a killed run left, create missing tables, and return the archive."""
    archive = archives.recover(archives.open_archive(lake, database))
    archive.jobs.create(schemas.ARCHIVED_JOBS)
    archive.events.create(schemas.ARCHIVED_EVENTS)
    return archives.load(lake, database)


def write(
    spark: SparkSession, snapshot: Snapshot, archive: Archive, folder: str, before_ms: int, states: tuple[State, ...]
) -> Digests:
    """Write the files of the next run into this folder of both tables, verify and flush them. Commits nothing.

    Return the digest of each topic; {} if no job is to be archived. Raises checksums.Differs if the files differ from
    the rows that were read.
    """
    number = F.lit(archive.jobs.run + 1).cast("long").alias(delta.RUN)
    jobs, events = (
        rows_of_ended(arrow.read(spark, snapshot, name), before_ms, states).select(*columns, number)
        for name, columns in (("ended", schemas.ENDED_JOBS.names), ("job_events", [*schemas.EVENTS.names, delta.TOPIC]))
    )
    expected = checksums.digests(jobs, events)
    if not expected:
        return {}
    lake = archive.lake
    _write(jobs, lake, f"{JOBS}/{folder}", "key", "id")
    _write(events, lake, f"{EVENTS}/{folder}", "job_id", "id")
    checksums.compare(expected, checksums.digests(*read_written(spark, lake, folder)))
    for table in (JOBS, EVENTS):
        lake.sync(f"{table}/{folder}")
    return expected


def read_written(spark: SparkSession, lake: Lake, folder: str) -> tuple[DataFrame, DataFrame]:
    """Return the jobs and events in this folder of both tables, committed or not."""
    jobs, events = (data_files.files_in(lake, f"{table}/{folder}", delta.TOPIC) for table in (JOBS, EVENTS))
    return (
        delta.read(spark, lake, jobs, schemas.ARCHIVED_JOBS),
        delta.read(spark, lake, events, schemas.ARCHIVED_EVENTS),
    )


def commit(archive: Archive, folder: str, written: Digests) -> Archive:
    """Publish a run: commit its events, then its jobs.

    Raises Busy if another process has committed this run, and LakeError if files of the run were removed.
    """
    run = archive.jobs.run + 1
    archive.events.commit(folder, run, rows=sum(each.events for each in written.values()))
    archive.jobs.commit(folder, run, rows=sum(each.jobs for each in written.values()))
    return archives.load(archive.lake)


def rows_of_ended(frame: DataFrame, before_ms: int, states: tuple[State, ...]) -> DataFrame:
    """Return the rows of jobs that ended before before_ms and are in one of `states`. Needs ended_at and state."""
    before = from_ms(before_ms)
    return frame.where((F.col("ended_at") < before) & F.col("state").isin(*map(int, states)))


def _write(frame: DataFrame, lake: Lake, name: str, *order: str) -> None:
    """Write each topic to few files, sorted by `order`, so that a job can be found without reading whole files.

    Spark's adaptive execution writes a small topic in one task and a large topic in several.
    """
    options = {**WRITE_OPTIONS, "maxRecordsPerFile": str(FILE_ROWS)}
    balanced = frame.hint("rebalance", F.col(delta.TOPIC))
    row_counts.write(balanced, lake, name, delta.TOPIC, order=order, options=options)
