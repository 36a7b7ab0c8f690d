"""A consistent snapshot of the operational tables, shared by all readers of a run.

The id ranges are read at different times. They are consistent with each other because all are read from one snapshot.
"""

import contextlib
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from . import identity
from .database import Database
from .identity import Identity


@dataclass(frozen=True)
class Snapshot:
    """database   database to read from; for SQLite a copy, which is removed at the end of the run
    now_ms     time of the snapshot by the database's clock, in milliseconds since 1970
    xmin       all transactions with lower ids had ended: if they committed, their changes are in the snapshot
    xmax       no transaction with this or a greater id had begun to write
    name       name of PostgreSQL's exported snapshot; "" for SQLite, or to read without a snapshot
    identity   identity of the original database, not of the copy
    """

    database: Database
    now_ms: int
    xmin: int
    xmax: int
    name: str = ""
    identity: Identity = field(default_factory=dict)

    def query(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a small query in the snapshot. Each `{}` in the SQL stands for a parameter."""
        with self.database.connect() as connection:
            for each in enter_statements(self.name):
                connection.execute(each)
            return connection.execute(sql.format(*[self.database.placeholder] * len(params)), tuple(params)).fetchall()


def enter_statements(name: str) -> list[str]:
    """Return the first statements of a PostgreSQL transaction that sees the snapshot of this name; [] for ""."""
    if not name:
        return []
    literal = name.replace("'", "''")
    return [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        f"SET TRANSACTION SNAPSHOT '{literal}'",
    ]


@contextlib.contextmanager
def take(database: Database) -> Iterator[Snapshot]:
    """Yield a snapshot that is valid inside the block. Raises DatabaseUnavailable.

    Writers are not blocked. But inside the block PostgreSQL cannot vacuum rows that are deleted after the snapshot.
    """
    with _copied(database) if database.vendor == "sqlite" else _exported(database) as snapshot:
        yield snapshot


@contextlib.contextmanager
def _exported(database: Database) -> Iterator[Snapshot]:
    with database.connect() as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # this session is idle during the run
        now_ms, xmin, xmax, name = connection.execute(
            "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint), "
            "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint), "
            "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint), pg_export_snapshot()"
        ).fetchone()
        yield Snapshot(database, now_ms, xmin, xmax, name, identity.identify(database, connection))


@contextlib.contextmanager
def _copied(database: Database) -> Iterator[Snapshot]:
    """Yield a snapshot of a copy of the file, with now_ms in place of transaction ids.

    SQLite has one writer. This reads the time, then takes and releases the write lock, then copies the file. So all
    transactions that began to write before now_ms have ended, and their changes are in the copy.
    """
    with tempfile.TemporaryDirectory(prefix="delaytasks-snapshot-") as folder:
        copy = Path(folder) / "snapshot.sqlite3"
        with database.connect() as source, contextlib.closing(sqlite3.connect(copy)) as target:
            (now_ms,) = source.execute("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)").fetchone()
            source.isolation_level = None
            source.execute("BEGIN IMMEDIATE")
            source.execute("ROLLBACK")
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # reading a copy in WAL mode would need to write
            source_identity = identity.identify(database, source)
        yield Snapshot(replace(database, name=str(copy)), now_ms, now_ms, now_ms, identity=source_identity)
