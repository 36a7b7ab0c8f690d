"""Find the connections of one process or thread, for faults that cut them."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from .environment import Arena

MOVER = "delaytasks-mover"  # the thread; app/apps.py names its connections to PostgreSQL
AWAIT_SECONDS = 30
MIRROR = "mirror"  # client name of the mirror's connections to Redis, set in settings.py


def cut_movers_of_postgres(arena: Arena) -> int:
    """End the PostgreSQL connections of the mover threads. Return their number; 0 if PostgreSQL is down."""
    assert arena.postgres is not None
    sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
    with contextlib.suppress(psycopg.OperationalError), arena.postgres.connect(autocommit=True) as connection:
        return connection.execute(sql, [MOVER]).fetchall()[0][0]
    return 0


def await_writing(arena: Arena, pid: int, statements: int) -> None:
    """Return while this process runs its `statements`-th statement that writes jobs and events to PostgreSQL.

    Connects again if another fault ends the connection or PostgreSQL.
    """
    assert arena.postgres is not None
    sql = """
        SELECT query_start FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE %s
        AND query LIKE '%%INSERT INTO delaytasks_job%%'"""
    seen: set[Any] = set()
    deadline = time.monotonic() + AWAIT_SECONDS
    while len(seen) < statements:
        assert time.monotonic() < deadline, f"Process {pid} wrote {len(seen)} times in {AWAIT_SECONDS} s."
        with contextlib.suppress(psycopg.OperationalError), arena.postgres.connect(autocommit=True) as connection:
            while len(seen) < statements and time.monotonic() < deadline:  # no pause: each statement takes some ms
                seen.update(connection.execute(sql, [f"% {pid}"]).fetchall())


def cut_movers_of_redis(arena: Arena) -> int:
    """End the mirror's connections of the workers' main processes, where only the mover has any; return how many."""
    ports = {port for worker in arena.those("worker") for port in local_ports(worker.pid)}
    with contextlib.closing(arena.redis.client()) as client:
        clients: Any = client.client_list()
        mover_ids = [
            each["id"] for each in clients if each["name"] == MIRROR and int(each["addr"].rpartition(":")[2]) in ports
        ]
        for client_id in mover_ids:
            client.client_kill_filter(_id=client_id)
        return len(mover_ids)


def local_ports(pid: int) -> Iterator[int]:
    """Yield the local ports of a process's TCP connections; none if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        inodes = {_inode(link) for link in Path(f"/proc/{pid}/fd").glob("*")}
        for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[9] in inodes:
                yield int(columns[1].rpartition(":")[2], 16)


def _inode(link: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
        return os.readlink(link).removeprefix("socket:[").removesuffix("]")
    return ""
