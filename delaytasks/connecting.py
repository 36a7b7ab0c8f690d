"""The database connection of the engine's own tasks, kept from one to the next for as long as CONN_MAX_AGE says.

Celery closes every connection before and after each task, whatever CONN_MAX_AGE says: each bell would pay for a
process of the PostgreSQL server. So between two of our tasks the connection is not where Celery looks for it, nor a
task of the project. Those have what Celery gives them, as ever.
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

from . import engine

P = ParamSpec("P")
R = TypeVar("R")

_aside = threading.local()  # .kept: alias -> this thread's connection, between two of our tasks
_of_the_parent: list[Any] = []  # what a forked process must neither use nor close


def keeping_connections(body: Callable[P, R]) -> Callable[P, R]:
    """The same task, on the connections that the one before it in this thread left; only where a worker runs it."""

    @functools.wraps(body)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _by_a_worker():
            return body(*args, **kwargs)
        _put_back()
        result = body(*args, **kwargs)
        _lay_aside()  # not after an error: in what state that left them nobody knows, and Celery closes them
        return result

    return run


def _by_a_worker() -> bool:
    """Not in a call or an eager task: their connections are the caller's. Not in a greenlet: it ends with its task."""
    if not current_task or detect_environment() != "default":
        return False
    request = current_task.request
    return not (request.called_directly or request.is_eager)


def _put_back() -> None:
    kept, _aside.kept = getattr(_aside, "kept", {}), {}
    for alias, connection in kept.items():
        if _is_open(alias):  # the project has Celery keep its connections: one is enough
            connection.close()
            continue
        connections[alias] = connection
        connection.close_if_unusable_or_obsolete()
        # Whatever CONN_HEALTH_CHECKS says: with Celery's new connection for each task nobody needed it in a worker.
        connection.health_check_done = connection.connection is not None and connection.is_usable()
        if not connection.health_check_done:
            connection.close()


def _lay_aside() -> None:
    for alias in filter(_is_open, engine.aliases()):
        connection = connections[alias]
        if _in_transaction(connection):  # somebody's that nobody will end: it goes with the connection
            continue
        connection.close_if_unusable_or_obsolete()
        if connection.connection is not None:
            del connections[alias]
            _aside.kept[alias] = connection


def _is_open(alias: str) -> bool:
    return any(c.alias == alias and c.connection is not None for c in connections.all(initialized_only=True))


def _in_transaction(connection: BaseDatabaseWrapper) -> bool:
    raw: Any = connection.connection
    if connection.in_atomic_block:
        return True
    return raw.info.transaction_status.name != "IDLE" if connection.vendor == "postgresql" else raw.in_transaction


def _forget() -> None:
    _of_the_parent.append(getattr(_aside, "kept", None))
    _aside.kept = {}


os.register_at_fork(after_in_child=_forget)
