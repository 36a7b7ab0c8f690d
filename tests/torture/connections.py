"""Whose connection is it? For faults that cut those of one process, or of one thread in it."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .arena import Arena

MOVER = "delaytasks-mover"  # the thread; app/apps.py names its connections to PostgreSQL
AWAIT_SECONDS = 30
MIRROR = "mirror"  # what settings.py calls the mirror's connections to Redis


def cut_movers_of_postgres(arena: Arena) -> int:
    """End the connections that movers' threads have; how many there were."""
    assert arena.postgres is not None
    sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE starts_with(application_name, %s)"
    with arena.postgres.connect(autocommit=True) as connection:
        found = connection.execute(sql, [MOVER]).fetchone()
    return found[0] if found else 0


def await_writing(arena: Arena, pid: int, statements: int) -> None:
    """Return while this process is at so many-th statement that writes jobs and their events to PostgreSQL."""
    assert arena.postgres is not None
    sql = """
        SELECT query_start FROM pg_stat_activity WHERE state = 'active' AND application_name LIKE %s
        AND query LIKE '%%INSERT INTO delaytasks_job%%'"""
    seen: set[Any] = set()
    over = time.monotonic() + AWAIT_SECONDS
    with arena.postgres.connect(autocommit=True) as connection:
        while len(seen) < statements:  # without a rest: each takes some milliseconds
            seen.update(connection.execute(sql, [f"% {pid}"]).fetchall())
            assert time.monotonic() < over, f"Process {pid} wrote {len(seen)} times in {AWAIT_SECONDS} s."


def cut_movers_of_redis(arena: Arena) -> int:
    """End the mirror's connections from workers' main processes, in which only the mover has any; how many."""
    ports = {port for worker in arena.those("worker") for port in local_ports(worker.pid)}
    with contextlib.closing(arena.redis.client()) as client:
        clients: Any = client.client_list()
        of_movers = [
            each["id"] for each in clients if each["name"] == MIRROR and int(each["addr"].rpartition(":")[2]) in ports
        ]
        for each in of_movers:
            client.client_kill_filter(_id=each)
        return len(of_movers)


def local_ports(pid: int) -> Iterator[int]:
    """The local ports of a process's TCP connections, from its side."""
    inodes = {_inode(link) for link in Path(f"/proc/{pid}/fd").glob("*")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        columns = line.split()
        if columns[9] in inodes:
            yield int(columns[1].rpartition(":")[2], 16)


def _inode(link: Path) -> str:
    with contextlib.suppress(FileNotFoundError):  # closed meanwhile
        return os.readlink(link).removeprefix("socket:[").removesuffix("]")
    return ""
