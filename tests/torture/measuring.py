"""What an installation takes up: memory and files of each process, connections, Redis, tables and indexes."""

import contextlib
import http.client
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.db import connection
from django.test.utils import override_settings

from .arena import Arena

MIB = 1024 * 1024


# Processes


def pids(arena: Arena) -> dict[str, list[int]]:
    """Who plays which part: web, worker main, worker child, beat, consumer, caller, producer, redis, postgres."""
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
    """Bytes of the process's own, with its share of what it shares; 0 if it has ended."""
    return _kib(pid, "smaps_rollup", "Pss:") * 1024


def resident(pid: int) -> int:
    """Bytes in memory, with all that it shares; 0 if it has ended."""
    return _kib(pid, "status", "VmRSS:") * 1024


def _kib(pid: int, page: str, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/{page}").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name)), 0)


def files(pid: int) -> int:
    """Open file handles; 0 if it has ended."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


# Servers


def redis_takes(arena: Arena) -> dict[str, int]:
    """Keys and bytes; empty while it does not answer."""
    try:
        with contextlib.closing(arena.redis.client()) as redis:
            return {"redis keys": redis.dbsize(), "redis bytes": redis.info("memory")["used_memory"]}
    except Exception:
        return {}


def ask(sql: str, *params: object) -> list[tuple]:
    """Rows, from the default database; none while it is away."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()
    except Exception:
        connection.close()
        return []


def sessions() -> int:
    return sum(n for (n,) in ask("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"))


def sizes() -> dict[str, int]:
    """Bytes of each table of jobs and of each index on them, by name."""
    return dict(
        ask(
            "SELECT relname, pg_relation_size(oid) FROM pg_class"
            " WHERE relkind IN ('r', 'i') AND relname LIKE 'delaytasks_job%%'"
        )
    )


# Answers


class Latencies:
    """How long calls took, in ms, by name; and which failed."""

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
    """A member of staff, logged in."""

    port: int
    cookie: str

    def get(self, path: str) -> bytes:
        """The page. Raises AssertionError if it is another than was asked for."""
        asking = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(asking):
            asking.request("GET", path, headers={"Cookie": f"{settings.SESSION_COOKIE_NAME}={self.cookie}"})
            answer = asking.getresponse()
            page = answer.read()
            assert answer.status == 200, f"{path}: {answer.status}"
            return page


def log_in(arena: Arena) -> Admin:
    """Somebody who may do everything in this installation's admin."""
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


# While something else goes on


@contextlib.contextmanager
def meanwhile(look: Callable[[], object], every_seconds: float) -> Iterator[None]:
    """Call look() again and again in a thread of its own, which has a database connection of its own."""
    over = threading.Event()

    def go() -> None:
        while not over.wait(every_seconds):
            look()
        connection.close()

    thread = threading.Thread(target=go, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
