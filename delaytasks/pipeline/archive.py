"""Ended jobs leave the operational tables for the lake: written, compared with their source, published, then pruned.

Killed at any point and run again, it loses nothing and doubles nothing: what was written and not published is
removed, what was published and not pruned is pruned before anything else is archived.
"""

import time
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from ..states import State
from . import comparing, identity, manifest, pruning, snapshot, sources
from .comparing import Digest
from .database import Database
from .lake import Lake
from .manifest import Archive, Partition, Run
from .snapshot import Snapshot

DAY_MS = 86_400_000
ALWAYS = (State.FINISHED, State.CANCELLED)
FILE_ROWS = 2_000_000  # of one file, at most
WRITING = {
    "compression": "zstd",
    "parquet.block.size": str(8 << 20),  # a job's story is looked up by a row group's least and greatest key
}


def run(
    spark: SparkSession,
    database: Database,
    lake: Lake,
    *,
    older_than_days: float = 30,
    dead: bool = False,
    prune: bool = True,
) -> dict[str, Any]:
    """{"jobs", "events", "partitions", "pruned", "left", "withdrawn", "seconds"}.

    older_than_days  jobs that ended longer ago; from one day on whole days (UTC), so that each is archived at once
    dead             dead ones too, which staff then cannot retry any more
    prune            False: they stay in the operational tables until a run that prunes
    left             jobs that were locked, and are pruned by the next run
    withdrawn        jobs that changed after they were written: they stay
    """  # fmt: skip
    began = time.monotonic()
    with database.alone("archive") as still:
        with database.connect() as connection:
            archive = manifest.opened(lake, identity.of(database, connection))
        clear(lake, archive)
        told = pruning.Pruned()
        waiting = [each for each in archive.runs if each.pruned_ms is None]
        for each in waiting if prune else ():
            archive, some = pruning.prune(database, lake, archive, each)
            told += some
        if told.left or (waiting and not prune):
            again = "run it again" if prune else "run it without --keep"
            refused = f"{told.left or 'Some'} jobs of the run before are still to be pruned: {again}."
            return _answer(None, 0, told, began) | {"refused": refused}
        states = (*ALWAYS, State.DEAD) if dead else ALWAYS
        with snapshot.taken(database) as taken:
            written, partitions = write(spark, taken, lake, before(taken.now_ms, older_than_days), states)
        if written:
            still()  # or another run may have removed the files, which it took for left behind
            archive = manifest.publish(lake, archive, written)
        if written and prune:  # the snapshot is gone: what is pruned can be vacuumed
            _, some = pruning.prune(database, lake, archive, written)
            told += some
    return _answer(written, partitions, told, began)


def _answer(written: Run | None, partitions: int, told: pruning.Pruned, began: float) -> dict[str, Any]:
    about = {"jobs": written.jobs, "events": written.events} if written else {"jobs": 0, "events": 0}
    return {**about, "partitions": partitions, "pruned": told.pruned, "left": told.left,
            "withdrawn": len(told.withdrawn), "seconds": round(time.monotonic() - began, 1)}  # fmt: skip


def before(now_ms: int, days: float) -> int:
    """Jobs that ended before this moment are older than so many days.

    Half a day now and the other half tomorrow would be twice as many files for good.
    """
    moment = now_ms - round(days * DAY_MS)
    return moment - moment % DAY_MS if days >= 1 else moment


def clear(lake: Lake, archive: Archive) -> None:
    """Remove what was never published: what killed runs left."""
    published = {each.folder for each in archive.runs}
    for folder in lake.runs("archive"):
        if folder not in published:
            lake.remove(folder)


def write(
    spark: SparkSession, taken: Snapshot, lake: Lake, before_ms: int, states: tuple[State, ...]
) -> tuple[Run | None, int]:
    """A run that is whole and on the disk, and the number of its partitions; (None, 0): there was nothing to archive.

    Raises comparing.Differs.
    """
    folder = lake.new_run("archive")
    jobs, events = (chosen(sources.read(spark, taken, name), before_ms, states) for name in ("ended", "stories"))
    expected = comparing.digests(jobs, events.select(*comparing.EVENTS))
    if not expected:
        return None, 0
    _write(jobs, lake, f"{folder}/jobs", "key", "id")
    _write(events.select(*comparing.EVENTS), lake, f"{folder}/events", "job_id", "id")
    comparing.compare(expected, comparing.digests(*comparing.written(spark, lake, folder)))
    partitions = listed(lake, folder, expected)
    lake.settle(folder)
    manifest.write_partitions(lake, folder, partitions)
    made = Run(
        folder, int(datetime.now(UTC).timestamp() * 1000), sum(each.jobs for each in partitions),
        sum(each.events for each in partitions), min(each.first_id for each in partitions),
        max(each.last_id for each in partitions),
    )  # fmt: skip
    return made, len(partitions)


def chosen(frame: DataFrame, before_ms: int, states: tuple[State, ...]) -> DataFrame:
    """The rows of jobs that ended before a moment in one of these states, with ended_on. Needs ended_at, state."""
    before = datetime.fromtimestamp(before_ms / 1000, UTC)
    found = frame.where((F.col("ended_at") < before) & F.col("state").isin(*map(int, states)))
    return found.withColumn("ended_on", F.to_date("ended_at"))


def _write(frame: DataFrame, lake: Lake, name: str, *order: str) -> None:
    """Each partition in as few files as it needs; sorted, so that one job is found without reading all of them."""
    by = ("topic", "ended_on")
    whole = frame.repartition(*by).sortWithinPartitions(*by, *order)
    whole.write.options(**WRITING, maxRecordsPerFile=FILE_ROWS).partitionBy(*by).parquet(lake.uri(name))


def listed(lake: Lake, folder: str, expected: dict[tuple[str, str], Digest]) -> list[Partition]:
    """The partitions with their files, as they lie there."""
    sizes = dict(lake.parquet(folder))
    files: dict[tuple[str, tuple[str, str]], list[str]] = {}
    for path in sizes:
        kind, topic, day = path.removeprefix(f"{folder}/").split("/")[:3]
        files.setdefault((kind, (topic.removeprefix("topic="), day.removeprefix("ended_on="))), []).append(path)
    found = []
    for name, each in sorted(expected.items()):
        jobs, events = (tuple(files.get((kind, name), ())) for kind in ("jobs", "events"))
        found.append(Partition(
            *name, each.jobs, each.events, each.digest, each.first_id, each.last_id, jobs, events,
            tuple(sizes[path] for path in (*jobs, *events)),
        ))  # fmt: skip
    return found
