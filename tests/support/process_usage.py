"""Resource usage of a running process, from /proc."""

from collections.abc import Callable
from pathlib import Path

from django.db import connection

from tests.support.installation import World


def threads(pid: int) -> int:
    return int(_status(pid)["Threads"])


def resident_mib(pid: int) -> float:
    return int(_status(pid)["VmRSS"].split()[0]) / 1024


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def connections_counter(world: World, pid: int) -> Callable[[], int]:
    """Return a function that counts the database connections of a process.

    On PostgreSQL the function returns the increase in the database's sessions since this call.
    """
    if connection.vendor == "sqlite":
        # Count open WAL files, one per connection: SQLite may keep the database file itself open after a connection has
        # been closed, as long as the process has another one.
        return lambda: _open_files(pid, str(world.directory / "db.sqlite3-wal"))
    before = _sessions()
    return lambda: _sessions() - before


def _open_files(pid: int, name: str) -> int:
    count = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            count += str(path.readlink()) == name
        except OSError:
            pass  # the file was closed in between
    return count


def _sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]
