"""Handlers that misbehave, under a steady load of others. Their jobs end as defined in misbehaviours.py.

Other faults may keep the database from answering meanwhile: whatever is asked of it here is asked again.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.db import InterfaceError, OperationalError, connection

from delaytasks.models import Job
from delaytasks.states import State
from tests.support.servers import wait_until

from ..constants import TTR_SECONDS
from ..environment import Arena
from ..misbehaviours import FAMILIES, Manner
from . import fault

ENDS_SECONDS = 120  # a dozen processes end and are replaced, one after the other; a busy machine takes seconds for each
AWAY_SECONDS = 20  # without an answer of the database; no other fault lasts longer
PAUSE_SECONDS = 0.5  # before a call without an answer is repeated
IDLE_SECONDS = 2 * TTR_SECONDS  # the largest age of a worker's transaction
MORE_BYTES = 100_000_000  # allowed growth of a process


def misbehaves(family: str, name: str, *, quick: bool = False) -> None:
    """Register a fault that schedules jobs of these topics and checks how they end."""

    @fault(f"a handler {name}", uses="handlers", quick=quick)
    def inflict(arena: Arena) -> None:
        for manner, keys in [(manner, schedule(arena, manner)) for manner in _manners(family)]:
            await_ends(arena, manner, keys)
        _await_none(lambda: _old_transactions(arena), "all transactions of handlers are closed")
        if family == "memory":
            _await_none(lambda: _grown(arena), "its memory is freed")


def _manners(family: str) -> list[Manner]:
    vendor = "postgres" if connection.vendor == "postgresql" else "sqlite"
    return [manner for manner in FAMILIES[family] if vendor in manner.databases]


def schedule(arena: Arena, manner: Manner) -> list[str]:
    """Schedule the jobs of a topic. Return their keys, also those of calls without an answer: such jobs may exist."""
    keys: list[str] = []

    def scheduled() -> bool:
        name = f"{manner.name}-{time.monotonic_ns()}"
        new = [f"{name}-{'always' if i % 2 else 'once'}-{i}" for i in range(manner.jobs)]
        keys.extend(new)
        jobs = [
            {"key": key, "delay": i / 20, "ttr": manner.ttr_seconds, "body": {"always": "always" in key}}
            for i, key in enumerate(new)
        ]
        arena.schedule(name, manner.topic, jobs)
        return True

    _await(scheduled, f"{manner.topic} to be scheduled", AWAY_SECONDS)
    return keys


def await_ends(arena: Arena, manner: Manner, keys: list[str]) -> None:
    """Wait until the jobs have ended, and check how. The last error may be that of another fault."""
    jobs = Job.objects.filter(topic=manner.topic, key__in=keys)
    rows = _await(lambda: _if_all_ended(list(jobs.all())), f"{manner.topic} to end", ENDS_SECONDS)
    for job in rows:
        dies = bool(manner.error) and "always" in job.key
        outcome = f"{job} is {State(job.state).word} after {job.attempt} attempts: {job.error}"
        assert (job.state == State.DEAD) is dies, outcome
        assert not dies or arena.at_once > 1 or manner.error in job.error, outcome


def _if_all_ended(jobs: list[Job]) -> list[Job]:
    return jobs if all(job.ended_at for job in jobs) else []


def _await(done: Callable[[], Any], what: str | Callable[[], str], seconds: float) -> Any:
    """Wait until done() is true and return its value. Without an answer of the database, it is called again."""

    def answered() -> Any:
        try:
            return done()
        except (OperationalError, InterfaceError):
            connection.close()
            time.sleep(PAUSE_SECONDS)
            return None

    return wait_until(answered, seconds=seconds, what=what)


def _await_none(problems: Callable[[], object], what: str) -> None:
    _await(lambda: not problems(), lambda: f"{what}: {problems()}", IDLE_SECONDS)


def _old_transactions(arena: Arena) -> list[tuple]:
    """Return old transactions, which hold locks or prevent vacuum."""
    if connection.vendor != "postgresql":
        return []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT application_name, state, now() - xact_start, left(query, 60) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND xact_start < clock_timestamp() - make_interval(secs => %s)",
            [IDLE_SECONDS],
        )
        return cursor.fetchall()


def _grown(arena: Arena) -> dict[int, int]:
    """Return the children that use much more memory than their main process, in bytes."""
    found = {}
    for worker in arena.those("worker"):
        usual = _rss(worker.pid)
        found |= {pid: _rss(pid) - usual for pid in arena.children(worker) if _rss(pid) > usual + MORE_BYTES}
    return found


def _rss(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (FileNotFoundError, ProcessLookupError):
        return 0


misbehaves("raises", "raises, whatever its message is")
misbehaves("hangs", "never returns")
misbehaves("deaf", "does not listen to the interrupt at its TTR")
misbehaves("forks", "forks")
misbehaves("memory", "eats memory")
misbehaves("nonsense", "returns nonsense")
misbehaves("itself", "schedules or cancels itself")
misbehaves("closes", "closes the database connection")
misbehaves("open", "leaves a transaction open", quick=True)
misbehaves("exits", "exits, kills its process or raises what ends it")
misbehaves("process", "changes the signals, the directory or the environment of its process")
