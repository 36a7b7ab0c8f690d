"""Health checks: the parts of an installation, whether each works, and what to do if it does not.

The checks use the database and the mirror only. The advice has a section for each check in docs/howto/runbook.md.
"""

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, formatting
from .advice import ADVICE, Problem
from .health import Health, health

SWEEPS_MISSED = 4  # beat counts as failing if this many sweeps in a row are missing
MIN_SWEEP_AGE_MS = 120_000
POOL_SECONDS = 2.0


class State(StrEnum):
    OK = "ok"
    DEGRADED = "degraded"  # slower, but correct
    FAILING = "failing"
    UNKNOWN = "unknown"  # the database does not answer


_ORDER = (State.OK, State.DEGRADED, State.UNKNOWN, State.FAILING)
FAILED = (State.UNKNOWN, State.FAILING)  # the states for which a probe must not succeed


class Check(NamedTuple):
    """The result of a check.

    message   what was found
    advice    what to do; "" if the state is OK
    """

    name: str
    state: State
    message: str
    advice: str = ""


def is_sweeping(status: Health) -> bool:
    """Return whether a worker has completed a sweep recently."""
    limit_ms = max(conf.get().sweep_seconds * 1000 * SWEEPS_MISSED, MIN_SWEEP_AGE_MS)
    return status.sweep_age_ms is not None and status.sweep_age_ms < limit_ms


def worst(states: Iterable[State]) -> State:
    return max(states, key=_ORDER.index, default=State.OK)


def database_answers(using: str) -> bool:
    """Return whether the database answers. Waits for a pool at most POOL_SECONDS, because probes time out soon."""
    pool = getattr(connections[using], "pool", None)
    if pool and connections[using].connection is None:
        return _pool_answers(pool)
    for _ in range(2):  # the first try may find a connection that broke while idle
        try:
            with connections[using].cursor() as cursor:
                cursor.execute("SELECT 1")
            return True
        except (DatabaseError, InterfaceError):
            connections[using].close()
    return False


def _pool_answers(pool: Any) -> bool:
    from psycopg import Error

    pool.open()  # as Django does before its first use
    try:
        with pool.connection(timeout=POOL_SECONDS) as connection:
            connection.execute("SELECT 1")
    except Error:
        return False
    return True


def run(using: str | None = None, names: Collection[str] = ()) -> list[Check]:
    """Return the results of the named checks, or of all, in the order of NAMES.

    The numbers may be a few seconds old. Does not raise if the database or Redis does not answer.
    """
    using = databases.alias(using)
    chosen = [name for name in NAMES if not names or name in names]
    if not database_answers(using):
        return [_without_database(name, using) for name in chosen]
    if chosen == ["database"]:
        return [_database(using)]
    try:
        status = health(using)
    except (DatabaseError, InterfaceError) as error:
        return [_without_database(name, using, str(error)) for name in chosen]
    return [_database(using) if name == "database" else _CHECKS[name](status) for name in chosen]


def _database(using: str) -> Check:
    return Check("database", State.OK, f"{using} answers")


def _without_database(name: str, using: str, error: str = "") -> Check:
    if name != "database":
        return Check(name, State.UNKNOWN, "the database does not answer", "Repair the database first.")
    message = f"{using} does not answer: {error}" if error else f"{using} does not answer"
    return Check(name, State.FAILING, message, str(ADVICE[Problem.DATABASE]))


def _workers(status: Health) -> Check:
    if status.moving or is_sweeping(status):
        return Check("workers", State.OK, "at least one worker is alive")
    ages = [age for age in (status.heartbeat_age_ms, status.sweep_age_ms) if age is not None]
    message = f"no sign of a worker for {formatting.duration(min(ages))}" if ages else "there has been no worker yet"
    return Check("workers", State.FAILING, message, str(ADVICE[Problem.WORKERS]))


def _mover(status: Health) -> Check:
    if status.moving:
        return Check("mover", State.OK, f"last pass {formatting.duration(status.heartbeat_age_ms or 0)} ago")
    if status.heartbeat_age_ms is None:
        message = "no mover has checked for due jobs yet"
    else:
        message = f"no mover has checked for due jobs for {formatting.duration(status.heartbeat_age_ms)}"
    return Check("mover", State.FAILING, message, str(ADVICE[Problem.MOVER]))


def _beat(status: Health) -> Check:
    if is_sweeping(status):
        return Check("beat", State.OK, f"last sweep {formatting.duration(status.sweep_age_ms or 0)} ago")
    if status.sweep_age_ms is None:
        message = "no worker has run the sweep yet"
    else:
        message = f"no worker has run the sweep for {formatting.duration(status.sweep_age_ms)}"
    return Check("beat", State.FAILING, message, str(ADVICE[Problem.BEAT]))


def _ready(status: Health) -> Check:
    if status.oldest_ready_ms is None:
        return Check("ready", State.OK, "no job waits for a worker")  # others wait for a target or a resume
    waits = f"the oldest ready job has waited for {formatting.duration(status.oldest_ready_ms)}"
    message = f"{waits} (topic {status.oldest_ready_topic})"
    if status.oldest_ready_ms < conf.get().health_ready_seconds * 1000:
        return Check("ready", State.OK, message)
    return Check("ready", State.FAILING, message, str(ADVICE[Problem.READY]))


def _mirror(status: Health) -> Check:
    if status.mirror == "down":
        return Check("mirror", State.DEGRADED, "Redis does not answer", str(ADVICE[Problem.MIRROR_DOWN]))
    if status.mirror == "read_only":
        message = f"Redis refuses writes: {status.mirror_refusal}"
        return Check("mirror", State.DEGRADED, message, str(ADVICE[Problem.MIRROR_READ_ONLY]))
    return Check("mirror", State.OK, "Redis answers" if status.mirror == "up" else "Redis is not configured")


def _schedules(status: Health) -> Check:
    if status.schedules_behind_ms is not None:
        behind = formatting.duration(status.schedules_behind_ms)
        message = f"{status.schedule_behind} is {behind} behind: its next run has not been made"
        return Check("schedules", State.FAILING, message, str(ADVICE[Problem.SCHEDULES_BEHIND]))
    if status.schedules_stopped:
        names = ", ".join(status.schedules_stopped)
        message = f"schedules stopped by a problem: {names}"
        return Check("schedules", State.DEGRADED, message, str(ADVICE[Problem.SCHEDULES_STOPPED]))
    return Check("schedules", State.OK, "the next runs of all schedules are made")


# The check of the database comes first and is not here: it needs no Health.
_CHECKS: dict[str, Callable[[Health], Check]] = {
    "workers": _workers,
    "mover": _mover,
    "beat": _beat,
    "ready": _ready,
    "mirror": _mirror,
    "schedules": _schedules,
}
NAMES = ("database", *_CHECKS)
