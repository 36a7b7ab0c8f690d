"""What faults do to the arena's PostgreSQL: as its superuser, from outside the system."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from tests.servers import PostgresServer

from .arena import Arena

JOBS, EFFECTS = "delaytasks_job", "torture_effect"


class SmallFiles(PostgresServer):
    """A PostgreSQL whose log is in files of 1 MB, so that a limit to the size of files can be a tight one."""

    initdb = ("--wal-segsize=1",)


def server(arena: Arena) -> PostgresServer:
    assert arena.postgres is not None, "this arena is over SQLite"
    return arena.postgres


def connect(arena: Arena, **options: object) -> psycopg.Connection:
    """A connection of our own to the jobs' database. `autocommit` unless told."""
    database = urlsplit(arena.database_url).path.lstrip("/")
    return server(arena).connect(database, **{"autocommit": True} | options)


def end_connections(ours: psycopg.Connection) -> int:
    """End everybody else's connection to the jobs' database; how many there were."""
    others = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
    return len(ours.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}").fetchall())


@contextlib.contextmanager
def everybody_has(arena: Arena, setting: str, value: str) -> Iterator[None]:
    """Inside the block each new connection to the database has this setting. Connections are ended at both ends."""
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
    """The pids of the server: the postmaster first, then its children."""
    process = server(arena).process
    assert process is not None
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return [process.pid, *map(int, children.split())]


def signal_all(arena: Arena, how: int) -> None:
    for pid in processes(arena):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, how)


def limit_files(arena: Arena, most: str) -> None:
    """No file of the server's grows beyond so many bytes, or "unlimited"; connections made later inherit it."""
    for pid in processes(arena):
        command = ["prlimit", f"--pid={pid}", f"--fsize={most}:"]  # as the server's own user, who may
        subprocess.run(command, check=False, capture_output=True, **server(arena).identity)


def fill_up(arena: Arena, bytes_wanted: int) -> None:
    """Let the table of jobs be at least so large, with copies of jobs that have ended, of a topic of nobody's."""
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
