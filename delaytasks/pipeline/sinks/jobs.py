"""Staging table for the rows of a chunk, and the SQL of PostgreSQL and SQLite that moves them into the job table."""

import abc
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyarrow import RecordBatch, csv

from ...states import State

DELAYED, RESERVED = int(State.DELAYED), int(State.RESERVED)
STAGED = {  # column of a chunk -> its SQL type
    "topic": "text", "key": "text", "due_ms": "bigint", "spread_ms": "bigint", "ttr_ms": "bigint", "body": "text",
    "file": "text", "row": "bigint",
}  # fmt: skip
JOB = "topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error"
EVENT = "job_id, outcome, attempt, due_ms, done_ms, reserved_ms, next_due_ms, worker, actor, error, reason"
LIVE = "j.topic = s.topic AND j.key = s.key AND j.ended_at IS NULL"


class TransactionConflict(Exception):
    """A deadlock or serialization failure: the transaction has to be repeated."""


@dataclass(frozen=True)
class Run:
    """name    name of the run
    stamp     id of the run's files; distinguishes runs of the same name in different lakes
    mode      one of inserts.MODES
    by        actor of the jobs' events; "": write no `scheduled` events
    """

    name: str
    stamp: str
    mode: str
    by: str = ""

    @property
    def folder(self) -> str:
        return f"load/{self.name}"


@dataclass(frozen=True)
class Chunk:
    number: int
    path: str  # relative to the lake's root
    rows: int


@dataclass
class ChunkResult:
    """Result of loading a chunk. Each member of `refused` is (file, row, topic, key, reason, message).

    low_id, high_id   least and greatest id of the inserted jobs; None: no job was inserted
    """

    inserted: int = 0
    low_id: int | None = None
    high_id: int | None = None
    kept: int = 0
    replaced_ids: list[int] = field(default_factory=list)
    refused: list[tuple[Any, ...]] = field(default_factory=list)


def _refusal(reason: str, job_id: int) -> str:
    running = f"Job {job_id} cannot be replaced: its handler is running."
    return running if reason == "running" else f"Job {job_id} has this topic and key and is live."


class Stage(abc.ABC):
    """Temporary table with the rows of a chunk that are not processed yet.

    A row's live job is the job with its topic and key that has not ended.
    """

    placeholder: ClassVar[str]
    now: ClassVar[str]
    due: ClassVar[str]  # SQL: due time of a staged row s, or the current time if that is later; plus the spread
    body: ClassVar[str] = "s.body"

    def __init__(self, connection: Any, by: str) -> None:
        self.connection, self.by = connection, by

    def record_chunk(self, run: Run, chunk: Chunk) -> bool:
        """Insert the chunk's row into the ledger. Return False if the ledger already has it.

        Waits while another transaction inserts the same row.
        """
        sql = f"""
            INSERT INTO delaytasks_loadchunk (run, chunk, stamp, rows, inserted, kept, replaced, refused, replaced_ids,
                told, loaded_at)
            VALUES ({", ".join([self.placeholder] * 4)}, 0, 0, 0, 0, '[]', {self.placeholder}, {self.now})
            ON CONFLICT (run, chunk) DO NOTHING"""
        inserted = self.connection.execute(sql, (run.name, chunk.number, run.stamp, chunk.rows, False))
        return bool(inserted.rowcount)

    def record_result(self, run: Run, chunk: Chunk, result: ChunkResult) -> None:
        columns = ("inserted", "kept", "replaced", "refused", "low_id", "high_id", "replaced_ids")
        sets = ", ".join(f"{name} = {self.placeholder}" for name in columns)
        self.connection.execute(
            f"UPDATE delaytasks_loadchunk SET {sets} WHERE run = {self.placeholder} AND chunk = {self.placeholder}",
            (result.inserted, result.kept, len(result.replaced_ids), len(result.refused), result.low_id,
             result.high_id, json.dumps(result.replaced_ids), run.name, chunk.number),
        )  # fmt: skip

    @abc.abstractmethod
    def fill(self, batches: Iterable[RecordBatch]) -> None:
        """Create the staging table and fill it. The batches have the columns of STAGED."""

    @abc.abstractmethod
    def insert(self) -> tuple[int, int, int]:
        """Insert the jobs of rows that have no live job, and remove the rows from the staging table.

        Return (count, least id, greatest id) of the inserted jobs; (0, 0, 0) if there are none.
        """

    @abc.abstractmethod
    def skip_live(self) -> int:
        """Remove the rows that have a live job from the staging table. Return their number."""

    @abc.abstractmethod
    def replace(self) -> list[int]:
        """Give the live jobs that are delayed or ready the values of their rows, and remove these rows from the table.

        Return the jobs' ids.
        """

    def refuse(self, *, only_reserved: bool) -> Iterator[tuple[Any, ...]]:
        """Remove the rows that have a live job from the table. Yield (file, row, topic, key, reason, message) of each.

        only_reserved   only the rows whose live job is reserved, as its handler is running
        """
        condition = f"{LIVE} AND j.state = {RESERVED}" if only_reserved else LIVE
        query = f"SELECT s.file, s.row, s.topic, s.key, j.id FROM load_stage s JOIN delaytasks_job j ON {condition}"
        rows = self.connection.execute(f"{query} ORDER BY s.file, s.row").fetchall()
        delete = f"DELETE FROM load_stage WHERE topic = {self.placeholder} AND key = {self.placeholder}"
        self.connection.cursor().executemany(delete, [row[2:4] for row in rows])
        reason = "running" if only_reserved else "live"
        for *values, job_id in rows:
            yield (*values, reason, _refusal(reason, job_id))

    def remaining(self) -> list[tuple[Any, ...]]:
        rows = self.connection.execute("SELECT file, row, topic, key FROM load_stage").fetchall()
        return [(*row, "live", "The job with this topic and key kept changing during the load.") for row in rows]

    def columns(self) -> str:
        """Return the SQL expressions for the columns JOB of a staged row s."""
        return f"s.topic, s.key, {DELAYED}, {self.due}, s.ttr_ms, {self.body}, {self.now}, 0, 0, '', ''"


class PostgreSQL(Stage):
    placeholder = "%s"
    now = "date_trunc('milliseconds', statement_timestamp())"
    due = (
        f"GREATEST(TIMESTAMPTZ 'epoch' + s.due_ms * interval '1 millisecond', {now})"
        " + s.spread_ms * interval '1 millisecond'"
    )
    body = "CAST(s.body AS jsonb)"
    MS = "CAST(extract(epoch FROM {}) * 1000 AS bigint)"

    def fill(self, batches: Iterable[RecordBatch]) -> None:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in STAGED.items())
        self.connection.execute(f"CREATE TEMPORARY TABLE load_stage ({columns}) ON COMMIT DROP")
        with self.connection.cursor().copy("COPY load_stage FROM STDIN (FORMAT csv)") as copy:
            for batch in batches:
                csv.write_csv(batch, _CopyFile(copy), csv.WriteOptions(include_header=False))
        self.connection.execute("ANALYZE load_stage")

    def insert(self) -> tuple[int, int, int]:
        """Insert in order of topic and key, as every multi-row insert does, so that two of them cannot deadlock."""
        noted = f""", noted AS (
            INSERT INTO delaytasks_jobevent ({EVENT})
            SELECT id, 'scheduled', 0, {self.MS.format("due_at")}, {self.MS.format(self.now)}, NULL,
                {self.MS.format("due_at")}, '', %s, '', '' FROM inserted)"""
        sql = f"""
            WITH inserted AS (
                INSERT INTO delaytasks_job ({JOB}) SELECT {self.columns()} FROM load_stage s
                ORDER BY s.topic COLLATE "C", s.key COLLATE "C"
                ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING RETURNING id, topic, key, due_at),
            gone AS (
                DELETE FROM load_stage s USING inserted i WHERE s.topic = i.topic AND s.key = i.key)
            {noted if self.by else ""}
            SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM inserted"""
        return tuple(self._run(sql, [self.by] if self.by else []).fetchone())

    def skip_live(self) -> int:
        return int(self._run(f"DELETE FROM load_stage s USING delaytasks_job j WHERE {LIVE}").rowcount)

    def replace(self) -> list[int]:
        """Lock the jobs in order of id, as every multi-row update does, so that two of them cannot deadlock."""
        sql = f"""
            WITH seen AS MATERIALIZED (
                SELECT j.id AS job_id, j.due_at AS was_due, j.attempt AS was_attempt, s.*
                FROM load_stage s JOIN delaytasks_job j ON {LIVE} AND j.state = {DELAYED}
                ORDER BY j.id FOR UPDATE OF j),
            replaced AS (
                UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = s.ttr_ms, body = {self.body},
                    due_at = {self.due}, expires_ms = NULL, priority = 0, polls = 0, trace_context = NULL,
                    replaced_at = {self.now}
                FROM seen s WHERE id = s.job_id AND state = {DELAYED}
                RETURNING id, delaytasks_job.topic, delaytasks_job.key, due_at, was_due, was_attempt),
            gone AS (
                DELETE FROM load_stage s USING replaced r WHERE s.topic = r.topic AND s.key = r.key),
            noted AS (
                INSERT INTO delaytasks_jobevent ({EVENT})
                SELECT id, 'rescheduled', was_attempt, {self.MS.format("was_due")}, {self.MS.format(self.now)}, NULL,
                    {self.MS.format("due_at")}, '', %s, '', '' FROM replaced)
            SELECT id FROM replaced"""
        return [job_id for (job_id,) in self._run(sql, [self.by]).fetchall()]

    def _run(self, sql: str, params: list[Any] | None = None) -> Any:
        import psycopg

        try:
            return self.connection.execute(sql, params)
        except (psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure) as error:
            raise TransactionConflict(str(error)) from error


class _CopyFile:
    """File object that writes to psycopg's COPY, for pyarrow."""

    closed = False

    def __init__(self, copy: Any) -> None:
        self.copy = copy

    def write(self, data: Any) -> int:
        self.copy.write(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


class SQLite(Stage):
    placeholder = "?"
    now = "replace(strftime('%Y-%m-%d %H:%M:%f000', 'now'), '.000000', '')"
    MS = "(CAST(strftime('%s', {0}) AS INTEGER) * 1000 + CAST(substr(strftime('%f', {0}), 4) AS INTEGER))"
    DUE_MS = "(max(s.due_ms, " + MS.format("'now'") + ") + s.spread_ms)"
    due = f"replace(strftime('%Y-%m-%d %H:%M:%f000', {DUE_MS} / 1000.0, 'unixepoch'), '.000000', '')"

    def record_chunk(self, run: Run, chunk: Chunk) -> bool:
        self.connection.execute("BEGIN IMMEDIATE")
        return super().record_chunk(run, chunk)

    def fill(self, batches: Iterable[RecordBatch]) -> None:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in STAGED.items())
        self.connection.execute(f"CREATE TEMPORARY TABLE load_stage ({columns}, PRIMARY KEY (topic, key))")
        placeholders = ", ".join("?" * len(STAGED))
        for batch in batches:
            values = zip(*batch.to_pydict().values(), strict=True)
            self.connection.executemany(f"INSERT INTO load_stage VALUES ({placeholders})", values)

    def insert(self) -> tuple[int, int, int]:
        run = self.connection.execute
        # The greatest id before the insert. SQLite has one writer, so greater ids belong to this insert.
        (last,) = run("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'delaytasks_job'), 0)").fetchone()
        run(f"""INSERT INTO delaytasks_job ({JOB}) SELECT {self.columns()} FROM load_stage s WHERE true
                ORDER BY s.topic, s.key ON CONFLICT (topic, key) WHERE ended_at IS NULL DO NOTHING""")
        run(
            f"""DELETE FROM load_stage AS s WHERE EXISTS (
                SELECT 1 FROM delaytasks_job j WHERE {LIVE} AND j.id > ?)""",
            (last,),
        )
        if self.by:
            due = self.MS.format("due_at")
            run(f"""INSERT INTO delaytasks_jobevent ({EVENT}) SELECT id, 'scheduled', 0, {due},
                    {self.MS.format("created_at")}, NULL, {due}, '', ?, '', '' FROM delaytasks_job WHERE id > ?""",
                (self.by, last))  # fmt: skip
        counts = run("SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM delaytasks_job WHERE id > ?",
                     (last,))  # fmt: skip
        return tuple(counts.fetchone())

    def skip_live(self) -> int:
        sql = f"DELETE FROM load_stage AS s WHERE EXISTS (SELECT 1 FROM delaytasks_job j WHERE {LIVE})"
        return int(self.connection.execute(sql).rowcount)

    def replace(self) -> list[int]:
        run = self.connection.execute
        run("DROP TABLE IF EXISTS load_seen")
        run(f"""CREATE TEMPORARY TABLE load_seen AS
                SELECT j.id AS job_id, j.due_at AS was_due, j.attempt AS was_attempt, s.*
                FROM load_stage s JOIN delaytasks_job j ON {LIVE} AND j.state = {DELAYED}""")
        run(f"""UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = s.ttr_ms, body = s.body,
                    due_at = {self.due}, expires_ms = NULL, priority = 0, polls = 0, trace_context = NULL,
                    replaced_at = {self.now}
                FROM load_seen s WHERE id = s.job_id""")
        run(f"""INSERT INTO delaytasks_jobevent ({EVENT})
                SELECT id, 'rescheduled', was_attempt, {self.MS.format("was_due")}, {self.MS.format(self.now)}, NULL,
                    {self.MS.format("due_at")}, '', ?, '', ''
                FROM load_seen JOIN delaytasks_job ON id = job_id ORDER BY id""", (self.by,))  # fmt: skip
        run("DELETE FROM load_stage WHERE (topic, key) IN (SELECT topic, key FROM load_seen)")
        return [job_id for (job_id,) in run("SELECT job_id FROM load_seen ORDER BY 1").fetchall()]
