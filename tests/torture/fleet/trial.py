"""Phases in which all databases work, one of them is killed, one is silent, and one is slow."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django.db import connections
from django.test.utils import override_settings

from tests.support.background import repeating
from tests.support.databases import migrate
from tests.support.servers import PostgresServer

from .. import ledger
from ..environment import DURABLE, Arena, arena
from . import ALIASES, TOPIC
from .router import database

SETTINGS = "tests.torture.fleet.settings"
ROUTER = "tests.torture.fleet.router.Router"
AHEAD_SECONDS = 2  # how long before its due time a job is scheduled
SETTLE_SECONDS = 60.0  # after a fault, until all jobs have ended
# The lateness of 99 of 100 jobs of the healthy databases, while the third one is down or silent. For a second, all
# processes may wait for it at the same time. Without that limit they waited until it came back.
HEALTHY_P99_MS = 2_000
# A slow server works for a fifth of the time: each answer takes up to 0.4 s longer, as with a full disk queue.
SLOW_STOPPED_SECONDS, SLOW_WORKING_SECONDS = 0.4, 0.1


@dataclass
class Result:
    """Figures and problems of a run."""

    facts: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{name:34} {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, *(f"BROKEN  {each}" for each in self.broken)])


@dataclass
class Fleet:
    """Three servers, by the aliases of their databases, and one fleet of workers."""

    arena: Arena
    servers: Mapping[str, PostgresServer]
    due: dict[str, tuple[str, int]] = field(default_factory=dict)  # key -> (alias, due time in ms since 1970)

    def schedule(self, alias: str, keys: Mapping[str, int]) -> None:
        """Schedule a job of each key, due at that time in ms since 1970, in the database that the router chooses."""
        from delaytasks import schedule_many

        jobs = [{"topic": TOPIC, "key": key, "due_at": to_datetime(ms)} for key, ms in keys.items()]
        with database(alias):
            schedule_many(jobs)
        self.due |= {key: (alias, ms) for key, ms in keys.items()}

    def rows(self, alias: str, sql: str) -> list[tuple[Any, ...]]:
        with connections[alias].cursor() as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def live(self, alias: str) -> int:
        return int(self.rows(alias, "SELECT count(*) FROM delaytasks_job WHERE ended_at IS NULL")[0][0])


def to_datetime(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


# The installation


@contextlib.contextmanager
def installation(directory: Path) -> Iterator[Fleet]:
    """Set up three servers with a database each. Nothing is started that works on them."""
    with contextlib.ExitStack() as stack:
        servers = {alias: PostgresServer(**DURABLE) for alias in ALIASES}
        urls, default = {}, servers["default"]
        for alias in ALIASES[1:]:
            server = stack.enter_context(servers[alias])
            urls[f"{alias.upper()}_URL"] = server.make_database("fleet")
            migrate(directory, urls[f"{alias.upper()}_URL"], SETTINGS)
        world = stack.enter_context(arena(directory, postgres=default, settings=SETTINGS, **urls))
        for alias in ALIASES[1:]:
            stack.enter_context(_connection(alias, servers[alias]))
        delaytasks = {"REDIS_URL": world.redis.url(), "DATABASES": list(ALIASES)}
        stack.enter_context(override_settings(DELAYTASKS=delaytasks, DATABASE_ROUTERS=[ROUTER]))
        yield Fleet(world, servers)


@contextlib.contextmanager
def _connection(alias: str, server: PostgresServer) -> Iterator[None]:
    """Add a database to this process's connections inside the block."""
    connections.settings[alias] = {**connections.settings["default"], **server.settings, "NAME": "fleet"}
    try:
        yield
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


# The faults


@contextlib.contextmanager
def well(server: PostgresServer) -> Iterator[None]:
    yield


@contextlib.contextmanager
def killed(server: PostgresServer) -> Iterator[None]:
    """Kill the server as a crash does; start it again after the block."""
    server.stop(signal.SIGQUIT)
    try:
        yield
    finally:
        server.start()


@contextlib.contextmanager
def silent(server: PostgresServer) -> Iterator[None]:
    """Stop all processes of the server inside the block: its connections stay open, and nobody answers."""
    stopped = _stop(server)
    try:
        yield
    finally:
        _continue(stopped)


@contextlib.contextmanager
def slow(server: PostgresServer) -> Iterator[None]:
    """Let all processes of the server work for a part of the time only, inside the block."""

    def pause() -> None:
        stopped = _stop(server)
        time.sleep(SLOW_STOPPED_SECONDS)
        _continue(stopped)

    with repeating(pause, every_seconds=SLOW_WORKING_SECONDS):
        yield


def _stop(server: PostgresServer) -> list[int]:
    """Stop all processes of the server. Return their ids."""
    assert server.process is not None
    main = server.process.pid
    os.kill(main, signal.SIGSTOP)  # first, so that it starts no more
    pids = [int(pid) for pid in Path(f"/proc/{main}/task/{main}/children").read_text().split()]
    for pid in pids:
        _signal(pid, signal.SIGSTOP)
    return [*pids, main]


def _continue(pids: list[int]) -> None:
    for pid in pids:
        _signal(pid, signal.SIGCONT)


def _signal(pid: int, how: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)


# name of the phase -> (the fault, the alias of the database that has it)
PHASES: dict[str, tuple[Callable[[PostgresServer], contextlib.AbstractContextManager[None]], str]] = {
    "all well": (well, ""),
    "west killed": (killed, "west"),
    "east silent": (silent, "east"),
    "west slow": (slow, "west"),
    "default killed": (killed, "default"),
    "default silent": (silent, "default"),
    "all well again": (well, ""),
}


# The run


def run(
    fleet: Fleet, *, seconds: float = 20, per_second: int = 20, workers: int = 2, phases: Mapping[str, Any] = PHASES
) -> Result:
    """Play the phases, each with its fault for `seconds`, and check. `fleet` has no workers yet.

    per_second   jobs due in each second in each database
    """
    from delaytasks.models import Topic

    result = Result()
    for alias in ALIASES:
        Topic.objects.using(alias).get_or_create(name=TOPIC)  # this process has no handlers
    fleet.arena.populate(workers=workers, consumers=0)
    spans = {}
    for name, (fault, victim) in phases.items():
        spans[name] = _play(fleet, result, name, fault, victim, seconds, per_second)
    _check(fleet, result, spans)
    return result


def _play(
    fleet: Fleet, result: Result, name: str, fault: Callable[..., Any], victim: str, seconds: float, per_second: int
) -> tuple[str, int, int]:
    """Return the victim, and the time in which it has its fault."""
    start = now_ms() + 1000 * (AHEAD_SECONDS + 1)
    batches = [
        (start + 1000 * turn, {alias: _keys(name, alias, start, turn, per_second) for alias in ALIASES})
        for turn in range(round(seconds))
    ]
    if victim:  # nothing can be scheduled there meanwhile
        for _, keys in batches:
            fleet.schedule(victim, keys[victim])
        connections[victim].close()
    slowest = 0.0
    with contextlib.ExitStack() as stack:
        for turn, (due_ms, keys) in enumerate(batches):
            fleet.arena.hold(max(0.0, (due_ms - now_ms()) / 1000 - AHEAD_SECONDS))
            if turn == AHEAD_SECONDS:
                stack.enter_context(fault(fleet.servers.get(victim)))
                began = now_ms()
            asked = time.monotonic()
            for alias in ALIASES:
                if alias != victim:
                    fleet.schedule(alias, keys[alias])
            slowest = max(slowest, time.monotonic() - asked)
        fleet.arena.hold(max(0.0, (start + 1000 * seconds - now_ms()) / 1000))
        ended = now_ms()
    result.facts[f"{name}: scheduling a second's jobs"] = f"{slowest * 1000:.0f} ms at most"
    again = time.monotonic()
    left = fleet.arena.until_quiet(lambda: sum(map(fleet.live, ALIASES)), seconds=SETTLE_SECONDS)
    result.facts[f"{name}: all jobs ended after"] = f"{time.monotonic() - again:.1f} s"
    if left:
        result.broken.append(f"{name}: {left} jobs are live {SETTLE_SECONDS:.0f} s after the fault")
    return victim, began, ended


def _keys(name: str, alias: str, start: int, turn: int, per_second: int) -> dict[str, int]:
    step = 1000 / per_second
    return {f"{name}:{alias}:{turn}:{n}": start + 1000 * turn + round(step * n) for n in range(per_second)}


# The checks


def _check(fleet: Fleet, result: Result, spans: Mapping[str, tuple[str, int, int]]) -> None:
    begun: dict[str, list[int]] = {}  # key -> when its attempts began
    for entry in ledger.read(fleet.arena.ledger):
        if entry["kind"] == "begins":
            begun.setdefault(entry["key"], []).append(entry["now_ms"])
    early = [key for key, (_, due_ms) in fleet.due.items() if min(begun.get(key, [due_ms])) < due_ms]
    if early:
        result.broken.append(f"{len(early)} jobs began before they were due, such as {early[:3]}")
    for alias in ALIASES:
        _check_effects(fleet, result, alias)
    result.facts["attempts of a job, at most"] = max(map(len, begun.values()), default=0)
    for name, (victim, began, ended) in spans.items():
        for alias in ALIASES:
            late = sorted(
                begun[key][-1] - due_ms
                for key, (where, due_ms) in fleet.due.items()
                if where == alias and key.startswith(f"{name}:") and began <= due_ms < ended and key in begun
            )
            p99 = late[-(-len(late) * 99 // 100) - 1] if late else -1
            what = f"{len(late)} jobs, late p50 {late[len(late) // 2]} ms, p99 {p99} ms, most {late[-1]} ms"
            result.facts[f"{name}: {alias}"] = what if late else "no jobs"
            if alias != victim and not 0 <= p99 <= HEALTHY_P99_MS:
                result.broken.append(f"{name}: {alias}, which is well, was late: p99 {p99} ms of {len(late)} jobs")


def _check_effects(fleet: Fleet, result: Result, alias: str) -> None:
    counts = dict(fleet.rows(alias, "SELECT key, count(*) FROM fleet_effect GROUP BY key"))
    wanted = {key for key, (where, _) in fleet.due.items() if where == alias}
    lost, twice = sorted(wanted - counts.keys()), sorted(key for key, count in counts.items() if count > 1)
    foreign = sorted(counts.keys() - wanted)
    for what, keys in (("lost", lost), ("took effect twice", twice), ("nobody scheduled here", foreign)):
        if keys:
            result.broken.append(f"{alias}: {len(keys)} jobs {what}, such as {keys[:3]}")
