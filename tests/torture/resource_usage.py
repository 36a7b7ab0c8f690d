"""Resource usage of an installation: memory and files of processes, connections, Redis, tables and indexes."""

import contextlib
import http.client
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.test.utils import override_settings

from .environment import Arena

MIB = 1024 * 1024


# Processes


def pids(arena: Arena) -> dict[str, list[int]]:
    """Return the pids by part: web, worker main, worker child, beat, consumer, caller, producer, redis, postgres."""
    found: dict[str, list[int]] = defaultdict(list)
    for name, one in list(arena.crew.items()):
        kind = name.rstrip("0123456789")
        if kind == "worker":
            found["worker main"].append(one.pid)
            found["worker child"] += arena.children(one)
        else:
            found[kind].append(one.pid)
    if arena.redis.process is not None:
        found["redis"].append(arena.redis.process.pid)
    if arena.postgres is not None and arena.postgres.process is not None:
        found["postgres"] += [arena.postgres.process.pid, *_children(arena.postgres.process.pid)]
    return found


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def memory(pid: int) -> int:
    """Return the process's memory in bytes, with its share of shared memory; 0 if it has ended."""
    return _kib(pid, "smaps_rollup", "Pss:") * 1024


def resident(pid: int) -> int:
    """Return the resident bytes with all shared memory; 0 if it has ended."""
    return _kib(pid, "status", "VmRSS:") * 1024


def _kib(pid: int, page: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{page}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def files(pid: int) -> int:
    """Return the number of open files; 0 if it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


# Servers


def redis_usage(arena: Arena) -> dict[str, int]:
    """Return the number of keys and bytes; empty if Redis does not answer."""
    try:
        with contextlib.closing(arena.redis.client()) as redis:
            return {"redis keys": redis.dbsize(), "redis bytes": redis.info("memory")["used_memory"]}
    except Exception:
        return {}


def query(sql: str, *params: object) -> list[tuple]:
    """Return rows from the default database; none while it is down."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()
    except Exception:
        connection.close()
        return []


def sessions() -> int:
    return sum(n for (n,) in query("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))


def sizes() -> dict[str, int]:
    """Return the bytes of each job table and index, by name."""
    return dict(
        query(
            "SELECT relname, pg_relation_size(oid) FROM pg_class"
            " WHERE relkind IN ('r', 'i') AND relname LIKE 'delaytasks_job%%'"
        )
    )


# Response times


class Latencies:
    """Durations of calls in ms, by name, and failures."""

    def __init__(self) -> None:
        self.ms: dict[str, list[float]] = defaultdict(list)
        self.failures: list[str] = []

    def time(self, name: str, call: Callable[[], object]) -> None:
        began = time.monotonic()
        try:
            call()
        except Exception as error:
            self.failures.append(f"{name}: {error!r:.200}")
        finally:
            self.ms[name].append((time.monotonic() - began) * 1000)

    def lines(self) -> list[str]:
        return [
            f"{name:28} {len(ms):5} calls, p50 {statistics.median(ms):7.0f} ms, max {max(ms):7.0f} ms"
            for name, ms in sorted(self.ms.items())
        ]


class Admin(NamedTuple):
    """A logged-in staff user."""

    port: int
    cookie: str

    def get(self, path: str) -> bytes:
        """Return the page. Raises AssertionError if the status is not 200."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={self.cookie}"})
            answer = connection.getresponse()
            page = answer.read()
            assert answer.status == 200, f"{path}: {answer.status}"
            return page


def log_in(arena: Arena) -> Admin:
    """Log a superuser in to this installation's admin."""
    with override_settings(SECRET_KEY=arena.env["SECRET_KEY"]):
        user, _ = get_user_model().objects.get_or_create(
            username="staff", defaults={"is_staff": True, "is_superuser": True}
        )
        session = SessionStore()
        session[SESSION_KEY] = str(user.pk)
        session[BACKEND_SESSION_KEY] = settings.AUTHENTICATION_BACKENDS[0]
        session[HASH_SESSION_KEY] = user.get_session_auth_hash()
        session.create()
        return Admin(arena.port, str(session.session_key))
