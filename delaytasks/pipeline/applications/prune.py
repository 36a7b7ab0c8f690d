"""Delete archived jobs from the operational tables in small transactions, except jobs that changed after archiving."""

import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pyarrow import parquet

from ..sources.database import Database
from ..tables import archives, data_files, delta
from ..tables.archives import Archive

BATCH_JOBS = 300  # jobs deleted in one transaction
MAX_PAUSE_SECONDS = 0.5  # up to this limit, the pause after a transaction is as long as the transaction took


class ArchivedJob(NamedTuple):
    """The values by which an archived job is compared with its row. last_event_id is 0 if the job has no event."""

    id: int
    ended_at: datetime
    last_event_id: int


@dataclass(frozen=True)
class Pruned:
    """pruned   number of deleted jobs
    left      number of jobs that were not deleted because other transactions had locked them
    withdrawn ids of jobs that were not deleted because they changed after archiving
    """

    pruned: int = 0
    left: int = 0
    withdrawn: tuple[int, ...] = ()

    def __add__(self, other: "Pruned") -> "Pruned":
        return Pruned(self.pruned + other.pruned, self.left + other.left, self.withdrawn + other.withdrawn)


def prune(database: Database, archive: Archive) -> tuple[Archive, Pruned]:
    """Delete the jobs of the archive's newest run from the database. Return the new archive and the counts.

    Jobs that changed are withdrawn: deleted from the archive. The run is recorded as pruned once no locked jobs are
    left. Until then pruning can be repeated.

    Raises DatabaseUnavailable and Busy. Raises LakeError before anything is deleted if a file of the run is missing or
    has another size.
    """
    run, result = archive.jobs.run, Pruned()
    data_files.check(archive.lake, [*archive.jobs.run_files(run), *archive.events.run_files(run)])
    for table in (archive.jobs, archive.events):  # a run that was killed right after a commit has not flushed its log
        archive.lake.sync(f"{table.name}/{delta.LOG}")
    archive = archives.mark_deleting(archive, run)
    with database.connect() as connection:  # one connection for all batches: connecting takes as long as a batch
        for batch in archived_batches(archive):
            began = time.monotonic()
            result += prune_batch(connection, database, batch)
            time.sleep(min(time.monotonic() - began, MAX_PAUSE_SECONDS))
    if not result.left:
        withdraw(archive, result.withdrawn)
        archive = archives.mark_pruned(archive, run, int(datetime.now(UTC).timestamp() * 1000))
    return archive, result


def withdraw(archive: Archive, ids: Collection[int]) -> None:
    """Delete jobs of the newest run from the archive. If this is killed, the next pruning of the run repeats it."""
    archive.events.delete("job_id", ids, archive.jobs.run)
    archive.jobs.delete("id", ids, archive.jobs.run)


def archived_batches(archive: Archive) -> Iterator[list[ArchivedJob]]:
    """Yield the jobs of the archive's newest run in batches of at most BATCH_JOBS."""
    lake, run = archive.lake, archive.jobs.run
    for each in archive.jobs.run_files(run):
        with lake.reading(each.path, each.partition) as name, lake.files.open_input_file(name) as file:
            reader = parquet.ParquetFile(file)
            for batch in reader.iter_batches(BATCH_JOBS, columns=[*ArchivedJob._fields, delta.RUN]):
                rows = batch.to_pylist()
                numbers = [row.pop(delta.RUN, None) or 0 for row in rows]  # converted files do not have the column
                yield [ArchivedJob(**row) for row, number in zip(rows, numbers, strict=True) if number == run]


def prune_batch(connection: Any, database: Database, batch: list[ArchivedJob]) -> Pruned:
    """Delete in one transaction those jobs whose ended_at and last event are the same as in the archive."""
    archived = {each.id: each for each in batch}
    if database.vendor == "sqlite":
        connection.execute("BEGIN IMMEDIATE")
    ended_at_by_id = _ended_at(connection, database, sorted(archived), lock=True)
    newest = _newest_events(connection, database, sorted(ended_at_by_id))
    unchanged = [
        job_id for job_id, ended_at in ended_at_by_id.items()
        if ended_at == archived[job_id].ended_at and newest.get(job_id, 0) == archived[job_id].last_event_id
    ]  # fmt: skip
    if unchanged:
        connection.execute(
            f"DELETE FROM delaytasks_jobevent WHERE job_id IN ({_placeholders(database, unchanged)})", unchanged
        )
        connection.execute(f"DELETE FROM delaytasks_job WHERE id IN ({_placeholders(database, unchanged)})", unchanged)
    locked = _ended_at(connection, database, sorted(archived.keys() - ended_at_by_id.keys()), lock=False)
    connection.commit()
    return Pruned(len(unchanged), len(locked), tuple(ended_at_by_id.keys() - set(unchanged)))


def _ended_at(connection: Any, database: Database, ids: list[int], *, lock: bool) -> dict[int, datetime | None]:
    """Return id -> ended_at of the jobs that exist.

    lock   lock the rows in order of id, and leave out rows that other transactions have locked (PostgreSQL)
    """
    if not ids:
        return {}
    skip = " FOR UPDATE SKIP LOCKED" if lock and database.vendor == "postgresql" else ""
    sql = f"SELECT id, ended_at FROM delaytasks_job WHERE id IN ({_placeholders(database, ids)}) ORDER BY id{skip}"
    return {job_id: _to_datetime(ended_at) for job_id, ended_at in connection.execute(sql, ids).fetchall()}


def _newest_events(connection: Any, database: Database, ids: list[int]) -> dict[int, int]:
    if not ids:
        return {}
    where = f"job_id IN ({_placeholders(database, ids)})"
    sql = f"SELECT job_id, max(id) FROM delaytasks_jobevent WHERE {where} GROUP BY job_id"
    return dict(connection.execute(sql, ids).fetchall())


def _to_datetime(value: Any) -> datetime | None:
    """Return an aware datetime; SQLite stores times as UTC text."""
    return datetime.fromisoformat(value).replace(tzinfo=UTC) if isinstance(value, str) else value


def _placeholders(database: Database, ids: list[int]) -> str:
    return ", ".join([database.placeholder] * len(ids))
