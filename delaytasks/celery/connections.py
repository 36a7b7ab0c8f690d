"""Persistent database connections for the engine's own tasks, as configured by CONN_MAX_AGE.

Celery closes all connections before and after each task, whatever CONN_MAX_AGE says, so each run_topic message would
start a new PostgreSQL server process. Between two of the engine's tasks, the connection is therefore taken out of
django.db.connections, where Celery would close it. The project's tasks are not affected.
"""

import functools
import logging
import os
import selectors
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from celery import current_task
from django.db import OperationalError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created
from kombu.utils.compat import detect_environment

from .. import databases
from ..circuit_breaker import CircuitBreaker, CircuitOpen
from .shutdown import stopping

logger = logging.getLogger("delaytasks")
P = ParamSpec("P")
R = TypeVar("R")
ANSWER_SECONDS = 1.0
PAUSES_SECONDS = (1, 5)  # after the first and after further failures: each attempt to connect takes connect_timeout
_TUPLES_OK = 2  # psycopg.pq.ExecStatus
_MEASURE = "delaytasks.measure_time_anew"

# For each thread by its id: alias -> its connection between two of the engine's tasks.
_idle: dict[int, dict[str, Any]] = {}
_parents_connections: list[Any] = []  # referenced for ever: a forked process must neither use nor close them


class NoAnswer(Exception):
    """The database accepts connections and does not answer."""


def keep_connections(task: Callable[P, R]) -> Callable[P, R]:
    """Decorate a task so that, in a worker, it reuses the connections of the engine's previous task in its thread."""

    @functools.wraps(task)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _run_by_worker():
            return task(*args, **kwargs)
        _restore()
        result = task(*args, **kwargs)
        _stash()  # not after an error: the connections' state is unknown, and Celery closes them
        return result

    return run


def measure_time_anew() -> None:
    """Measure the database's clock after new connections of this process, at most once a second.

    After a failover, another server's clock counts. If it is behind, new leases would seem over by the old offset: each
    job would be interrupted, and charged a failure, before its handler begins. If it is ahead, movers would be late.
    """
    connection_created.connect(_invalidate_clock, dispatch_uid=_MEASURE)


def stop_measuring_time_anew() -> None:
    """Undo measure_time_anew()."""
    connection_created.disconnect(dispatch_uid=_MEASURE)


def _invalidate_clock(connection: BaseDatabaseWrapper, **_: object) -> None:
    if connection.alias in databases.aliases():
        databases.clock(connection.alias).invalidate()


def in_worker() -> bool:
    """Return whether a worker runs the current task. A direct call or an eager task runs in the caller's process."""
    return bool(current_task) and not (current_task.request.called_directly or current_task.request.is_eager)


def _run_by_worker() -> bool:
    """Return whether a worker's process or thread runs this task.

    A direct call or an eager task uses the caller's connections. A greenlet ends with its task, so no later task could
    reuse its connections.
    """
    return in_worker() and detect_environment() == "default"


def _restore() -> None:
    for alias, connection in _idle.pop(threading.get_ident(), {}).items():
        if _is_open(alias):  # Celery has kept one, as the project has configured: close ours
            connection.close()
            continue
        connections[alias] = connection
        connection.close_if_unusable_or_obsolete()
        # Check even without CONN_HEALTH_CHECKS: workers do not need that setting, because Celery connects anew for
        # each task. Not now but at the first use: a database that this task does not use may not answer.
        connection.health_check_enabled, connection.health_check_done = True, False


def _stash() -> None:
    for alias in filter(_is_open, databases.aliases()):
        connection = connections[alias]
        if _in_transaction(connection):  # a transaction left open: Celery closes the connection, which rolls it back
            continue
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None and not stopping():
            del connections[alias]
            _idle.setdefault(threading.get_ident(), {})[alias] = connection


def close_idle() -> None:
    """Close the kept connections of all threads, when the worker has stopped."""
    while _idle:
        for connection in _idle.popitem()[1].values():
            connection.inc_thread_sharing()
            connection.close()


def answers(using: str) -> bool:
    """Return whether the database answers a worker's task within ANSWER_SECONDS. After a failure, pause the checks.

    Returns False during the pause. Always returns True for a database other than PostgreSQL, in a transaction, and
    outside a worker's task.

    A server that hangs keeps its connections open, and queries would wait for it without limit. Its tasks would then
    block all processes of the worker, one after the other. For new connections, connect_timeout in OPTIONS is the
    limit. A database that is down is not noticed here: its errors come at once.
    """
    connection = connections[using]
    if connection.vendor != "postgresql" or connection.in_atomic_block or not _run_by_worker():
        return True
    try:
        _breaker(using).call(_await_answer, connection)
    except CircuitOpen:
        return False
    except NoAnswer as error:
        logger.warning("database %s does not answer; the process goes on with the others: %s", using, error)
        return False
    return True


@functools.cache
def _breaker(using: str) -> CircuitBreaker:
    return CircuitBreaker(NoAnswer, *PAUSES_SECONDS)


def _await_answer(connection: Any) -> None:
    """Check the connection, as Django does before its first query, but with a limit. Raises NoAnswer."""
    if connection.connection is None:
        _connect(connection)
    elif not connection.health_check_done:
        pgconn = connection.connection.pgconn
        try:
            pgconn.send_query(b"SELECT 1")
            pgconn.flush()
            if not _is_readable(pgconn.socket, ANSWER_SECONDS):
                raise NoAnswer(f"it was silent for {ANSWER_SECONDS:g} s")
            results = list(iter(pgconn.get_result, None))
            connection.health_check_done = bool(results) and results[0].status == _TUPLES_OK
        except connection.Database.Error:
            pass
        finally:
            if not connection.health_check_done:
                connection.close()


def _is_readable(descriptor: int, seconds: float) -> bool:
    with selectors.DefaultSelector() as selector:  # not select(): a descriptor may be 1,024 or more
        selector.register(descriptor, selectors.EVENT_READ)
        return bool(selector.select(seconds))


def _connect(connection: Any) -> None:
    try:
        connection.ensure_connection()
    except OperationalError as error:
        if type(error.__cause__).__name__ == "ConnectionTimeout":
            raise NoAnswer(error) from error


def _is_open(alias: str) -> bool:
    return any(c.alias == alias and c.connection is not None for c in connections.all(initialized_only=True))


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    raw: Any = connection.connection
    if connection.in_atomic_block:
        return True
    return raw.info.transaction_status.name != "IDLE" if connection.vendor == "postgresql" else raw.in_transaction


def _forget_parents() -> None:
    _parents_connections.append(dict(_idle))
    _idle.clear()


os.register_at_fork(after_in_child=_forget_parents)
