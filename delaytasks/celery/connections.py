"""Persistent database connections for the engine's own tasks, as configured by CONN_MAX_AGE.

Celery closes all connections before and after each task, whatever CONN_MAX_AGE says, so each run_topic message would
start a new PostgreSQL server process. Between two of the engine's tasks, the connection is therefore taken out of
django.db.connections, where Celery would close it. The project's tasks are not affected.
"""

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from celery import current_task
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from kombu.utils.compat import detect_environment

from .. import databases

P = ParamSpec("P")
R = TypeVar("R")

_idle = threading.local()  # .connections: alias -> this thread's connection between two of the engine's tasks
_parents_connections: list[Any] = []  # referenced for ever: a forked process must neither use nor close them


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


def _run_by_worker() -> bool:
    """Return whether a worker's process or thread runs this task.

    A direct call or an eager task uses the caller's connections. A greenlet ends with its task, so no later task could
    reuse its connections.
    """
    if not current_task or detect_environment() != "default":
        return False
    request = current_task.request
    return not (request.called_directly or request.is_eager)


def _restore() -> None:
    idle, _idle.connections = getattr(_idle, "connections", {}), {}
    for alias, connection in idle.items():
        if _is_open(alias):  # kept by Celery, as the project has configured: one is enough
            connection.close()
            continue
        connections[alias] = connection
        connection.close_if_unusable_or_obsolete()
        # Check even without CONN_HEALTH_CHECKS: workers do not need that setting, because Celery connects anew for
        # each task.
        connection.health_check_done = connection.connection is not None and connection.is_usable()
        if not connection.health_check_done:
            connection.close()


def _stash() -> None:
    for alias in filter(_is_open, databases.aliases()):
        connection = connections[alias]
        if _in_transaction(connection):  # a transaction left open: Celery closes the connection, which rolls it back
            continue
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None:
            del connections[alias]
            _idle.connections[alias] = connection


def _is_open(alias: str) -> bool:
    return any(c.alias == alias and c.connection is not None for c in connections.all(initialized_only=True))


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    raw: Any = connection.connection
    if connection.in_atomic_block:
        return True
    return raw.info.transaction_status.name != "IDLE" if connection.vendor == "postgresql" else raw.in_transaction


def _forget_parents() -> None:
    _parents_connections.append(getattr(_idle, "connections", None))
    _idle.connections = {}


os.register_at_fork(after_in_child=_forget_parents)
