"""Operations of faults on the arena's PostgreSQL, as its superuser."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.support.servers import PostgresServer

from .environment import Arena

JOBS, EFFECTS = "delaytasks_job", "torture_effect"


class SmallFiles(PostgresServer):
    """A PostgreSQL with WAL files of 1 MB, so that the limit of file sizes can be small."""

    initdb = ("--wal-segsize=1",)


def server(arena: Arena) -> PostgresServer:
    assert arena.postgres is not None, "this arena uses SQLite"
    return arena.postgres


def connect(arena: Arena, **options: object) -> psycopg.Connection:
    """Open a connection to the jobs' database; autocommit by default."""
    database = urlsplit(arena.database_url).path.lstrip("/")
    return server(arena).connect(database, **{"autocommit": True} | options)


def end_connections(ours: psycopg.Connection) -> int:
    """End all other connections to the jobs' database; return their number."""
    others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    return len(ours.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}").fetchall())


@contextlib.contextmanager
def setting_for_all(arena: Arena, setting: str, value: str) -> Iterator[None]:
    """Give all connections to the database this setting inside the block. Ends open connections before and after."""
    with connect(arena) as ours:
        (database,) = ours.execute("SELECT current_database()").fetchone() or ("",)
        ours.execute(f"ALTER DATABASE {database} SET {setting} = '{value}'")
        try:
            end_connections(ours)
            yield
        finally:
            ours.execute(f"ALTER DATABASE {database} RESET {setting}")
            end_connections(ours)


def processes(arena: Arena) -> list[int]:
    """Return the pids of the server: the postmaster first, then its children."""
    process = server(arena).process
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [process.pid, *map(int, children.split())]


def signal_all(arena: Arena, how: int) -> None:
    for pid in processes(arena):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def limit_files(arena: Arena, most: str) -> None:
    """Limit the size of the server's files to `most` bytes or "unlimited"; new connections inherit the limit."""
    for pid in processes(arena):
        command = ["prlimit", f"--pid={pid}", f"--fsize={most}:"]  # as the server's user, who has permission
        subprocess.run(command, check=False, capture_output=True, **server(arena).identity)


def fill_up(arena: Arena, bytes_wanted: int) -> None:
    """Enlarge the job table to `bytes_wanted` with copies of ended jobs under a topic of their own."""
    with connect(arena) as ours:
        found = ours.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped", [JOBS]
        ).fetchall()
        columns = [name for (name,) in found if name not in ("id", "topic")]
        copied = ", ".join(f'"{name}"' for name in columns)
        while (ours.execute("SELECT pg_relation_size(%s)", [JOBS]).fetchone() or (0,))[0] < bytes_wanted:
            ours.execute(
                f"INSERT INTO {JOBS} (topic, {copied}) SELECT 'filler', {copied} FROM {JOBS}, generate_series(1, 50)"
                " WHERE ended_at IS NOT NULL LIMIT 2000"
            )
