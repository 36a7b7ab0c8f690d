"""One moment of the operational tables, for a run whose many readers must all see the same.

A read in several ranges is torn while others write, unless each range is read from the same snapshot.
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
    """database   to read from. For SQLite it is a copy, removed at the end of the run
    now_ms     when it was taken, by the database's clock
    xmin       every transaction numbered below has ended, and what it did is in the snapshot
    xmax       no transaction numbered from here on had begun to write
    name       PostgreSQL's exported snapshot; empty for a copy
    identity   of the database itself, also where what is read is a copy
    """

    database: Database
    now_ms: int
    xmin: int
    xmax: int
    name: str = ""
    identity: Identity = field(default_factory=dict)

    def ask(self, sql: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of a small question. `{}` in it stands for a parameter."""
        with self.database.connect() as connection:
            for each in entering(self.name):
                connection.execute(each)
            return connection.execute(sql.format(*[self.database.mark] * len(params)), tuple(params)).fetchall()


def entering(name: str) -> list[str]:
    """The statements with which a transaction of PostgreSQL begins in order to see the snapshot of that name."""
    if not name:
        return []
    literal = name.replace("'", "''")
    return [
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY",
        f"SET TRANSACTION SNAPSHOT '{literal}'",
    ]


@contextlib.contextmanager
def taken(database: Database) -> Iterator[Snapshot]:
    """A snapshot that holds inside the block. It hinders no writer; PostgreSQL cannot vacuum past it meanwhile.

    Raises DatabaseAway.
    """
    with _copied(database) if database.vendor == "sqlite" else _exported(database) as snapshot:
        yield snapshot


@contextlib.contextmanager
def _exported(database: Database) -> Iterator[Snapshot]:
    with database.connect() as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")  # it holds as long as the run takes
        now_ms, xmin, xmax, name = connection.execute(
            "SELECT CAST(extract(epoch FROM statement_timestamp()) * 1000 AS bigint), "
            "CAST(CAST(pg_snapshot_xmin(pg_current_snapshot()) AS text) AS bigint), "
            "CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS text) AS bigint), pg_export_snapshot()"
        ).fetchone()
        yield Snapshot(database, now_ms, xmin, xmax, name, identity.of(database, connection))


@contextlib.contextmanager
def _copied(database: Database) -> Iterator[Snapshot]:
    """SQLite has one writer: who held the lock before us has ended, so the time can stand for transactions' numbers."""
    with tempfile.TemporaryDirectory(prefix="delaytasks-snapshot-") as folder:
        copy = Path(folder) / "snapshot.sqlite3"
        with database.connect() as source, contextlib.closing(sqlite3.connect(copy)) as target:
            (now_ms,) = source.execute("SELECT CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)").fetchone()
            source.isolation_level = None
            source.execute("BEGIN IMMEDIATE")
            source.execute("ROLLBACK")
            source.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")  # a copy in WAL mode could not be read without writing
            whose = identity.of(database, source)
        yield Snapshot(replace(database, name=str(copy)), now_ms, now_ms, now_ms, identity=whose)
