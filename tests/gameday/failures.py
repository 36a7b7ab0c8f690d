"""The twelve failures of a game day, and how the runbook mends them.

Each is a generator: it makes the failure, yields while that lasts, and then does what the page says.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import psycopg
import redis

from delaytasks import schedule_many
from delaytasks.models import Topic
from tests.support.background import repeating
from tests.torture import postgresql
from tests.torture.environment import Arena

from . import timeouts
from .environment import WAL_MEGABYTES, PostgresOnSmallDisk, has_faketime

MEGABYTE = 1_000_000
PIECE_BYTES = 10_000
PIECES = 600  # at a time: enough for five megabytes
SLOW_JOBS = 60
HERD_JOBS = 3_000
BEHIND_SECONDS = 60
SLOT = "forgotten"


class Failure(NamedTuple):
    """A failure to be made in an installation.

    alert     the one that should tell of it
    step      a sentence of the page to which the alert leads: what is done here
    topic     of jobs that the failure itself schedules; all of them must have finished in the end
    missing   returns why it cannot be made on this machine; "" if it can
    """

    name: str
    alert: str
    step: str
    happen: Callable[[Arena], AbstractContextManager[None]]
    topic: str
    missing: Callable[[Arena], str]


FAILURES: list[Failure] = []


def failure(
    name: str,
    *,
    alert: str,
    step: str,
    topic: str = "",
    missing: Callable[[Arena], str] = lambda there: "",
) -> Callable[[Callable[[Arena], Iterator[None]]], Callable[[Arena], Iterator[None]]]:
    """Register the decorated generator."""

    def register(generator: Callable[[Arena], Iterator[None]]) -> Callable[[Arena], Iterator[None]]:
        FAILURES.append(Failure(name, alert, step, contextlib.contextmanager(generator), topic, missing))
        return generator

    return register


def promise(topic: str, count: int, *, delay: float = 0) -> None:
    schedule_many([{"topic": topic, "key": f"{topic}-{number}", "delay": delay} for number in range(count)])


# Redis


@failure(
    "Redis is flushed",
    alert="DelaytasksMirrorRebuilt",
    step="repair the differences: `manage.py delaytasks audit`.",
)
def redis_flushed(there: Arena) -> Iterator[None]:
    there.redis.flush()
    yield
    there.manage("delaytasks", "audit")


@failure("Redis is full", alert="DelaytasksMirrorDown", step="Give it more: `config set maxmemory 2gb`")
def redis_full(there: Arena) -> Iterator[None]:
    """Another program takes all the memory of the Redis that is mirror and broker, and any that becomes free."""
    with contextlib.closing(there.redis.client()) as client, repeating(lambda: _take_all(client), 0.1):
        memory: Any = client.info("memory")
        client.config_set("maxmemory", memory["used_memory"] + 5 * MEGABYTE)
        try:
            yield
        finally:
            client.config_set("maxmemory", "2gb")


def _take_all(client: redis.Redis) -> None:
    with contextlib.suppress(redis.exceptions.OutOfMemoryError):
        for _ in range(PIECES):
            client.rpush("ballast", "x" * PIECE_BYTES)


# PostgreSQL


@failure("PostgreSQL is away", alert="DelaytasksDatabaseDown", step="Start it.")
def postgresql_away(there: Arena) -> Iterator[None]:
    server = postgresql.server(there)
    server.stop(signal.SIGQUIT)
    try:
        yield
    finally:
        server.start()


def _without_disk(there: Arena) -> str:
    server = postgresql.server(there)
    assert isinstance(server, PostgresOnSmallDisk)
    return "" if server.has_disk else "only root can mount a small disk"


@failure(
    "the disk of the WAL is full",
    alert="DelaytasksDatabaseDown",
    step="drop it",
    missing=_without_disk,
)
def wal_full(there: Arena) -> Iterator[None]:
    """A replication slot that nobody reads keeps all WAL."""
    server = postgresql.server(there)
    assert isinstance(server, PostgresOnSmallDisk)
    with contextlib.suppress(psycopg.OperationalError), postgresql.connect(there) as ours:
        ours.execute("SELECT pg_create_physical_replication_slot(%s, true)", [SLOT])
        while True:
            ours.execute("SELECT pg_logical_emit_message(false, 'filler', repeat('x', %s))", [MEGABYTE])
    try:
        yield
    finally:
        server.stop()
        server.resize_disk(2 * WAL_MEGABYTES)
        server.start()
        with postgresql.connect(there) as ours:
            ours.execute("SELECT pg_drop_replication_slot(%s)", [SLOT])
            ours.execute("CHECKPOINT")


@failure("the network stalls", alert="DelaytasksDatabaseDown", step="Repair the network")
def network_stalls(there: Arena) -> Iterator[None]:
    """No packet passes between PostgreSQL and the processes. Connections stay open."""
    there.proxy.stalls = True
    try:
        yield
    finally:
        there.proxy.heal()


# Processes


@failure("all workers die", alert="DelaytasksMoverSilent", step="start the workers")
def all_die(there: Arena) -> Iterator[None]:
    for worker in there.those("worker"):
        worker.die()
    try:
        yield
    finally:
        for worker in there.those("worker"):
            worker.come_back()


@failure("beat dies", alert="DelaytasksBeatSilent", step="Is beat running?")
def beat_dies(there: Arena) -> Iterator[None]:
    there.crew["beat"].die()
    try:
        yield
    finally:
        there.crew["beat"].come_back()


@failure("a worker dies", alert="DelaytasksWorkerLost", step="Start it again.")
def worker_dies(there: Arena) -> Iterator[None]:
    there.crew["worker1"].die()
    try:
        yield
    finally:
        there.crew["worker1"].come_back()


# Handlers


@failure("a handler is slow", alert="DelaytasksJobsWait", step="lower its concurrency", topic=timeouts.SLOW)
def handler_slow(there: Arena) -> Iterator[None]:
    """It takes all processes of the workers. Limit it, so that others go on; then what it waits for is repaired."""
    slow = there.directory / timeouts.SLOW_FILE
    slow.touch()
    promise(timeouts.SLOW, SLOW_JOBS)
    try:
        yield
        Topic.objects.update_or_create(name=timeouts.SLOW, defaults={"concurrency": 1})
        there.hold(2)
    finally:
        slow.unlink()


@failure("a job is poison", alert="DelaytasksJobsDie", step="Repair the cause, then retry", topic=timeouts.POISON)
def poison(there: Arena) -> Iterator[None]:
    promise(timeouts.POISON, 1)
    yield
    (there.directory / timeouts.REPAIRED_FILE).touch()
    there.manage("delaytasks", "retry", timeouts.POISON, f"{timeouts.POISON}-0")


# The rest


def _without_faketime(there: Arena) -> str:
    return "" if has_faketime() else "there is no libfaketime: install Debian's package libfaketime"


@failure(
    "a clock is wrong",
    alert="DelaytasksClockDiffers",
    step="If the alert names one host, repair its clock",
    missing=_without_faketime,
)
def clock_wrong(there: Arena) -> Iterator[None]:
    there.dial.turn(-BEHIND_SECONDS)
    try:
        yield
    finally:
        there.dial.turn(0)


@failure("a herd is due at once", alert="DelaytasksLate", step="start more workers", topic=timeouts.HERD)
def herd(there: Arena) -> Iterator[None]:
    promise(timeouts.HERD, HERD_JOBS, delay=3)
    yield
    there.enlist("worker3", lambda name: there.start_worker(name, concurrency=2))
