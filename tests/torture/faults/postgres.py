"""A database that crashes, hangs, refuses transactions or is full, but keeps committed data."""

import contextlib
import signal
import sqlite3

import psycopg

from delaytasks.models import Job
from tests.support.servers import wait_until

from .. import postgresql
from ..constants import TTR_SECONDS
from ..environment import Arena
from ..postgresql import EFFECTS, JOBS
from . import fault

POSTGRES = ("postgres",)
LASTS_SECONDS = 5
LOCKED_SECONDS = 3
FILE_BYTES = 1_048_576
DEADLOCK_SECONDS = 4  # other sessions detect a deadlock after 1 s
WAITS_SECONDS = 5  # SQLite's timeout in the project's settings


@fault("PostgreSQL ends every connection, several times", uses="postgres", databases=POSTGRES, quick=True)
def end_connections(arena: Arena) -> None:
    with postgresql.connect(arena) as ours:
        for _ in range(6):
            postgresql.end_connections(ours)
            arena.hold(0.7)


@fault("PostgreSQL crashes and recovers", uses="postgres", databases=POSTGRES, quick=True)
def crash(arena: Arena) -> None:
    """An immediate shutdown; the WAL is replayed at the start."""
    server = postgresql.server(arena)
    server.stop(signal.SIGQUIT)
    try:
        arena.hold(2)
    finally:
        server.start()


@fault("PostgreSQL hangs for longer than the TTR", uses="postgres", databases=POSTGRES)
def hang(arena: Arena) -> None:
    """Stop its processes: connections stay open and can be made, but get no answer."""
    postgresql.signal_all(arena, signal.SIGSTOP)
    try:
        arena.hold(TTR_SECONDS + 2)
    finally:
        postgresql.signal_all(arena, signal.SIGCONT)


@fault(
    "PgBouncer shares few sessions among all", uses="postgres", arena="pooled", needs=("pgbouncer",), databases=POSTGRES
)
def share_sessions(arena: Arena) -> None:
    arena.hold(LASTS_SECONDS)


@fault("PgBouncer is killed and comes back", uses="postgres", arena="pooled", needs=("pgbouncer",), databases=POSTGRES)
def kill_pooler(arena: Arena) -> None:
    arena.pooler.stop(signal.SIGKILL)
    try:
        arena.hold(2)
    finally:
        arena.pooler.start()


# Refused transactions


@fault("PostgreSQL isolates by repeatable read", uses="postgres", databases=POSTGRES)
def repeatable_read(arena: Arena) -> None:
    """Concurrent changes fail with a serialization failure (40001)."""
    with postgresql.setting_for_all(arena, "default_transaction_isolation", "repeatable read"):
        arena.hold(LASTS_SECONDS)


@fault("PostgreSQL isolates by serializable", uses="postgres", databases=POSTGRES)
def serializable(arena: Arena) -> None:
    with postgresql.setting_for_all(arena, "default_transaction_isolation", "serializable"):
        arena.hold(LASTS_SECONDS)


@fault("somebody deadlocks with the engine", uses="postgres", databases=POSTGRES)
def deadlock(arena: Arena) -> None:
    """Take locks in the other order, with a long deadlock timeout, so that the engine is the victim.

    An attempt writes the handler's effect, then updates the job's row. Repeated until a deadlock is counted, because an
    attempt must be between the two.
    """
    with postgresql.connect(arena) as ours:
        before = _deadlocks(ours)
        ours.execute(f"SET deadlock_timeout = '{DEADLOCK_SECONDS + 1}s'")
        ours.execute(f"SET lock_timeout = '{DEADLOCK_SECONDS}s'")

        def happened() -> bool:
            with contextlib.suppress(psycopg.errors.LockNotAvailable), ours.transaction():
                ours.execute(f"SELECT id FROM {JOBS} WHERE ended_at IS NULL ORDER BY id FOR UPDATE")
                arena.hold(0.3)
                ours.execute(f"LOCK TABLE {EFFECTS} IN SHARE MODE")
            arena.hold(1)  # until the victim has counted it
            return _deadlocks(ours) > before

        wait_until(happened, seconds=30, what="a deadlock to be counted")


def _deadlocks(ours: psycopg.Connection) -> int:
    found = ours.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    return found[0] if found else 0


@fault("somebody holds the rows of all live jobs", uses="postgres", databases=POSTGRES)
def hold_rows(arena: Arena) -> None:
    with postgresql.connect(arena) as ours, ours.transaction():
        ours.execute(f"SELECT id FROM {JOBS} WHERE ended_at IS NULL ORDER BY id FOR UPDATE")
        arena.hold(LOCKED_SECONDS)


@fault("somebody keeps the table of jobs from being written", uses="postgres", databases=POSTGRES)
def hold_table(arena: Arena) -> None:
    with postgresql.connect(arena) as ours, ours.transaction():
        ours.execute(f"LOCK TABLE {JOBS} IN SHARE MODE")
        arena.hold(LOCKED_SECONDS)


@fault("statements are cancelled after 20 ms", uses="postgres", databases=POSTGRES)
def statement_timeout(arena: Arena) -> None:
    """Also lock the rows of live jobs for a while, so that waiting statements are cancelled too."""
    with postgresql.setting_for_all(arena, "statement_timeout", "20ms"):
        with postgresql.connect(arena) as ours, ours.transaction():
            ours.execute("SET LOCAL statement_timeout = 0")
            ours.execute(f"SELECT id FROM {JOBS} WHERE ended_at IS NULL ORDER BY id FOR UPDATE")
            arena.hold(LOCKED_SECONDS)
        arena.hold(LOCKED_SECONDS)


@fault("PostgreSQL's disk is full", uses="postgres", arena="small files", needs=("prlimit",), databases=POSTGRES)
def disk_full(arena: Arena) -> None:
    """Simulated by a limit of 1 MB per file, which the job table has reached. The WAL still grows."""
    wait_until(Job.objects.exclude(ended_at=None).exists, seconds=10, what="a job to have ended")
    postgresql.fill_up(arena, FILE_BYTES)
    postgresql.limit_files(arena, str(FILE_BYTES))
    try:
        arena.hold(LASTS_SECONDS)
    finally:
        postgresql.limit_files(arena, "unlimited")
    assert "File too large" in postgresql.server(arena).log.read_text(errors="replace"), "the limit was not reached"


# SQLite


@fault(
    "somebody holds SQLite's write lock for longer than others wait", uses="database", databases=("sqlite",), quick=True
)
def hold_file(arena: Arena) -> None:
    ours = sqlite3.connect(arena.database_url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        ours.execute("BEGIN IMMEDIATE")
        arena.hold(WAITS_SECONDS + 2)
        ours.execute("ROLLBACK")
    finally:
        ours.close()
