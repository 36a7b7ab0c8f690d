"""What a running process costs, read from /proc."""

from collections.abc import Callable
from pathlib import Path

from django.db import connection

from tests.acceptance.world import World


def threads(pid: int) -> int:
    return int(_status(pid)["Threads"])


def resident_mib(pid: int) -> float:
    return int(_status(pid)["VmRSS"].split()[0]) / 1024


def _status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def connections_counter(world: World, pid: int) -> Callable[[], int]:
    """Counts the connections that the process has to the database: beyond those of now, where others have some, too."""
    if connection.vendor == "sqlite":
        # The log, of which each connection has its own: SQLite keeps the database's file open, for the next connection,
        # after one has closed it, as long as the process has any other.
        return lambda: _open_files(pid, str(world.directory / "db.sqlite3-wal"))
    before = _sessions()
    return lambda: _sessions() - before


def _open_files(pid: int, name: str) -> int:
    found = 0
    for path in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += str(path.readlink()) == name
        except OSError:
            pass  # closed meanwhile
    return found


def _sessions() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
        return cursor.fetchone()[0]
