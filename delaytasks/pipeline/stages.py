"""What of a chunk is still to be placed: a temporary table, and the statements that empty it, of each database."""

import abc
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pyarrow import RecordBatch, csv

from ..states import State

DELAYED, RESERVED = int(State.DELAYED), int(State.RESERVED)
STAGED = {  # of a chunk's columns
    "topic": "text", "key": "text", "due_ms": "bigint", "spread_ms": "bigint", "ttr_ms": "bigint", "body": "text",
    "file": "text", "row": "bigint",
}  # fmt: skip
JOB = "topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error"
EVENT = "job_id, outcome, attempt, due_ms, done_ms, reserved_ms, next_due_ms, worker, actor, error, reason"
LIVE = "j.topic = s.topic AND j.key = s.key AND j.ended_at IS NULL"


class Overtaken(Exception):
    """Another transaction and this one waited for each other: try again."""


@dataclass(frozen=True)
class Run:
    """name    of the run
    stamp     of its files: a run of that name in another lake has another one
    mode      one of MODES
    by        who asked, for an event of each job; "": no event, as for what a program schedules
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
    path: str  # below the lake
    rows: int


@dataclass
class Placed:
    """What became of a chunk's rows. refused: (file, row, topic, key, reason, message)."""

    inserted: int = 0
    low_id: int | None = None
    high_id: int | None = None
    kept: int = 0
    replaced_ids: list[int] = field(default_factory=list)
    refused: list[tuple[Any, ...]] = field(default_factory=list)


def _said(reason: str, job_id: int) -> str:
    running = f"Job {job_id} cannot be replaced: its handler is running."
    return running if reason == "running" else f"Job {job_id} has this topic and key and is live."


class Stage(abc.ABC):
    """A table of a connection's own, with the rows of a chunk that are still to be placed."""

    mark: ClassVar[str]
    now: ClassVar[str]
    due: ClassVar[str]  # of a row s: a past time is now, and then comes its part of the spread
    body: ClassVar[str] = "s.body"

    def __init__(self, connection: Any, by: str) -> None:
        self.connection, self.by = connection, by

    def claims(self, run: Run, chunk: Chunk) -> bool:
        """Write the ledger's row, unless there is one; whoever does the same waits for this transaction."""
        sql = f"""
            INSERT INTO delaytasks_loadchunk (run, chunk, stamp, rows, inserted, kept, replaced, refused, replaced_ids,
                told, loaded_at)
            VALUES ({", ".join([self.mark] * 4)}, 0, 0, 0, 0, '[]', {self.mark}, {self.now})
            ON CONFLICT (run, chunk) DO NOTHING"""
        told = self.connection.execute(sql, (run.name, chunk.number, run.stamp, chunk.rows, False))
        return bool(told.rowcount)

    def note(self, run: Run, chunk: Chunk, placed: Placed) -> None:
        columns = ("inserted", "kept", "replaced", "refused", "low_id", "high_id", "replaced_ids")
        sets = ", ".join(f"{name} = {self.mark}" for name in columns)
        self.connection.execute(
            f"UPDATE delaytasks_loadchunk SET {sets} WHERE run = {self.mark} AND chunk = {self.mark}",
            (placed.inserted, placed.kept, len(placed.replaced_ids), len(placed.refused), placed.low_id,
             placed.high_id, json.dumps(placed.replaced_ids), run.name, chunk.number),
        )  # fmt: skip

    @abc.abstractmethod
    def fill(self, batches: Iterable[RecordBatch]) -> None:
        """With the columns STAGED."""

    @abc.abstractmethod
    def insert(self) -> tuple[int, int, int]:
        """(how many were inserted, the least id, the greatest): what is not live. They leave the stage."""

    @abc.abstractmethod
    def drop_live(self) -> int:
        """How many were live, and have left the stage."""

    @abc.abstractmethod
    def replace(self) -> list[int]:
        """delayed/ready -> delayed: ids of the live jobs that took the new terms. Their rows leave the stage."""

    def refuse(self, *, only_reserved: bool) -> Iterator[tuple[Any, ...]]:
        """Rows that are live, or whose handler is running. They leave the stage."""
        which = f"{LIVE} AND j.state = {RESERVED}" if only_reserved else LIVE
        found = f"SELECT s.file, s.row, s.topic, s.key, j.id FROM load_stage s JOIN delaytasks_job j ON {which}"
        rows = self.connection.execute(f"{found} ORDER BY s.file, s.row").fetchall()
        leaves = f"DELETE FROM load_stage WHERE topic = {self.mark} AND key = {self.mark}"
        self.connection.cursor().executemany(leaves, [row[2:4] for row in rows])
        reason = "running" if only_reserved else "live"
        for *about, job_id in rows:
            yield (*about, reason, _said(reason, job_id))

    def rest(self) -> list[tuple[Any, ...]]:
        rows = self.connection.execute("SELECT file, row, topic, key FROM load_stage").fetchall()
        return [(*row, "live", "It changed again and again while it was being loaded.") for row in rows]

    def columns(self) -> str:
        """A job's, of a row s."""
        return f"s.topic, s.key, {DELAYED}, {self.due}, s.ttr_ms, {self.body}, {self.now}, 0, 0, '', ''"


class PostgreSQL(Stage):
    mark = "%s"
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
                csv.write_csv(batch, _Sink(copy), csv.WriteOptions(include_header=False))
        self.connection.execute("ANALYZE load_stage")

    def insert(self) -> tuple[int, int, int]:
        """Sorted as everybody who inserts several does, so that two such statements cannot lock each other out."""
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

    def drop_live(self) -> int:
        return int(self._run(f"DELETE FROM load_stage s USING delaytasks_job j WHERE {LIVE}").rowcount)

    def replace(self) -> list[int]:
        """Locks in the order of ids, as every statement over several rows does."""
        sql = f"""
            WITH seen AS MATERIALIZED (
                SELECT j.id AS job_id, j.due_at AS was_due, j.attempt AS was_attempt, s.*
                FROM load_stage s JOIN delaytasks_job j ON {LIVE} AND j.state = {DELAYED}
                ORDER BY j.id FOR UPDATE OF j),
            replaced AS (
                UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = s.ttr_ms, body = {self.body},
                    due_at = {self.due}
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
            raise Overtaken(str(error)) from error


class _Sink:
    """A file for who writes one, of a COPY."""

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
    mark = "?"
    now = "replace(strftime('%Y-%m-%d %H:%M:%f000', 'now'), '.000000', '')"
    MS = "(CAST(strftime('%s', {0}) AS INTEGER) * 1000 + CAST(substr(strftime('%f', {0}), 4) AS INTEGER))"
    DUE_MS = "(max(s.due_ms, " + MS.format("'now'") + ") + s.spread_ms)"
    due = f"replace(strftime('%Y-%m-%d %H:%M:%f000', {DUE_MS} / 1000.0, 'unixepoch'), '.000000', '')"
    last = 0  # id before the insert: one writer, so what is greater is ours

    def claims(self, run: Run, chunk: Chunk) -> bool:
        self.connection.execute("BEGIN IMMEDIATE")
        return super().claims(run, chunk)

    def fill(self, batches: Iterable[RecordBatch]) -> None:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in STAGED.items())
        self.connection.execute(f"CREATE TEMPORARY TABLE load_stage ({columns}, PRIMARY KEY (topic, key))")
        marks = ", ".join("?" * len(STAGED))
        for batch in batches:
            values = zip(*batch.to_pydict().values(), strict=True)
            self.connection.executemany(f"INSERT INTO load_stage VALUES ({marks})", values)

    def insert(self) -> tuple[int, int, int]:
        run = self.connection.execute
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
        found = run("SELECT count(*), coalesce(min(id), 0), coalesce(max(id), 0) FROM delaytasks_job WHERE id > ?",
                    (last,))  # fmt: skip
        return tuple(found.fetchone())

    def drop_live(self) -> int:
        sql = f"DELETE FROM load_stage AS s WHERE EXISTS (SELECT 1 FROM delaytasks_job j WHERE {LIVE})"
        return int(self.connection.execute(sql).rowcount)

    def replace(self) -> list[int]:
        run = self.connection.execute
        run("DROP TABLE IF EXISTS load_seen")
        run(f"""CREATE TEMPORARY TABLE load_seen AS
                SELECT j.id AS job_id, j.due_at AS was_due, j.attempt AS was_attempt, s.*
                FROM load_stage s JOIN delaytasks_job j ON {LIVE} AND j.state = {DELAYED}""")
        run(f"""UPDATE delaytasks_job SET failures = 0, error = '', ttr_ms = s.ttr_ms, body = s.body,
                    due_at = {self.due} FROM load_seen s WHERE id = s.job_id""")
        run(f"""INSERT INTO delaytasks_jobevent ({EVENT})
                SELECT id, 'rescheduled', was_attempt, {self.MS.format("was_due")}, {self.MS.format(self.now)}, NULL,
                    {self.MS.format("due_at")}, '', ?, '', ''
                FROM load_seen JOIN delaytasks_job ON id = job_id ORDER BY id""", (self.by,))  # fmt: skip
        run("DELETE FROM load_stage WHERE (topic, key) IN (SELECT topic, key FROM load_seen)")
        return [job_id for (job_id,) in run("SELECT job_id FROM load_seen ORDER BY 1").fetchall()]
