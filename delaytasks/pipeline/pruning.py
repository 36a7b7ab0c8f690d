"""Deletes from the operational tables what the archive has: in small transactions, and only what is still the same."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyarrow import parquet

from . import manifest
from .database import Database
from .lake import Lake
from .manifest import Archive, Run

BATCH = 300  # jobs of one transaction
MOST_REST_SECONDS = 0.5  # between two of them, when nobody waits for our locks; as long as one took, at most this


class Kept(NamedTuple):
    """A job as the archive has it."""

    id: int
    ended_at: datetime
    last_event_id: int


@dataclass(frozen=True)
class Pruned:
    """pruned   jobs
    left      jobs that somebody held locked
    withdrawn ids of jobs that are not any more as the archive has them
    """

    pruned: int = 0
    left: int = 0
    withdrawn: tuple[int, ...] = ()

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(self.pruned + other.pruned, self.left + other.left, self.withdrawn + other.withdrawn)


def prune(database: Database, lake: Lake, archive: Archive, run: Run) -> tuple[Archive, Pruned]:
    """Prune a published run; what is published then, and what was done.

    It is said to be pruned when nothing is left; until then it can be begun again. Raises DatabaseAway, Busy, and
    LakeError where a file of it is gone or was changed since it was compared, maybe long ago: no row goes then.
    """
    manifest.check(lake, run.folder)
    told = Pruned()
    manifest.mark(lake, run)
    with database.connect() as connection:  # one for all: a new one for each batch costs as much as the batch
        for batch in kept(lake, run):
            began = time.monotonic()
            told += prune_batch(connection, database, batch)
            time.sleep(min(time.monotonic() - began, MOST_REST_SECONDS))
    if not told.left:
        now_ms = int(datetime.now(UTC).timestamp() * 1000)
        gone = replace(run, pruned_ms=now_ms, withdrawn=tuple(sorted(told.withdrawn)))
        archive = manifest.publish(lake, archive, gone)
    return archive, told


def kept(lake: Lake, run: Run) -> Iterator[list[Kept]]:
    """The jobs of a run in batches, however large it is."""
    for partition in manifest.partitions(lake, run):
        for path in partition.job_files:
            with lake.reading(path, str(partition)) as name, lake.files.open_input_file(name) as file:
                found = parquet.ParquetFile(file)
                for batch in found.iter_batches(BATCH, columns=list(Kept._fields)):
                    yield [Kept(**row) for row in batch.to_pylist()]


def prune_batch(connection: Any, database: Database, batch: list[Kept]) -> Pruned:
    """One transaction. A job goes if it ended when the archive says, and nothing has happened to it since."""
    wanted = {each.id: each for each in batch}
    if database.vendor == "sqlite":
        connection.execute("BEGIN IMMEDIATE")
    there = _ended(connection, database, sorted(wanted), lock=True)
    newest = _newest_events(connection, database, sorted(there))
    same = [
        job_id for job_id, ended_at in there.items()
        if ended_at == wanted[job_id].ended_at and newest.get(job_id, 0) == wanted[job_id].last_event_id
    ]  # fmt: skip
    if same:
        connection.execute(f"DELETE FROM delaytasks_jobevent WHERE job_id IN ({_marks(database, same)})", same)
        connection.execute(f"DELETE FROM delaytasks_job WHERE id IN ({_marks(database, same)})", same)
    locked = _ended(connection, database, sorted(wanted.keys() - there.keys()), lock=False)
    connection.commit()
    return Pruned(len(same), len(locked), tuple(there.keys() - set(same)))


def _ended(connection: Any, database: Database, ids: list[int], *, lock: bool) -> dict[int, datetime | None]:
    """id -> ended_at of the jobs that there are; with `lock` those that nobody else holds, locked in id order."""
    if not ids:
        return {}
    skip = " FOR UPDATE SKIP LOCKED" if lock and database.vendor == "postgresql" else ""
    sql = f"SELECT id, ended_at FROM delaytasks_job WHERE id IN ({_marks(database, ids)}) ORDER BY id{skip}"
    return {job_id: _instant(ended_at) for job_id, ended_at in connection.execute(sql, ids).fetchall()}


def _newest_events(connection: Any, database: Database, ids: list[int]) -> dict[int, int]:
    if not ids:
        return {}
    sql = f"SELECT job_id, max(id) FROM delaytasks_jobevent WHERE job_id IN ({_marks(database, ids)}) GROUP BY job_id"
    return dict(connection.execute(sql, ids).fetchall())


def _instant(value: Any) -> datetime | None:
    """SQLite has it as text, in UTC."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


def _marks(database: Database, ids: list[int]) -> str:
    return ", ".join([database.mark] * len(ids))
