"""What a handler may leave behind: a transaction that it never ended, a process that it forked."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections

from . import ttr
from .exceptions import TransactionLeftOpen, TTRExceeded
from .interrupted import drop_connections

logger = logging.getLogger("delaytasks")
_running = threading.local()  # .here: this thread runs somebody's code
_of_the_parent: list[Any] = []  # a child's inherited connections: neither used nor closed there


@contextmanager
def guarded(ttr_ms: int) -> Iterator[None]:
    """Run somebody's code inside the block: under a TTR, and with nothing left behind.

    Raises TTRExceeded, TransactionLeftOpen; this thread's connections are closed then.
    """
    try:
        with nothing_left_open(), ttr.limit(ttr_ms), alone():
            yield
    except TTRExceeded:
        drop_connections()
        raise


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """Raise TransactionLeftOpen if the block leaves a connection of this thread in a transaction that it began.

    All of them are closed then: what was not committed is rolled back and its locks are free. Otherwise what
    runs next here would be swallowed by a transaction that nobody commits.
    """
    before = [(connection, len(connection.atomic_blocks)) for connection in connections.all(initialized_only=True)]
    try:
        yield
    except BaseException:
        if _left_open(before):
            drop_connections()
        raise
    if left := _left_open(before):
        drop_connections()
        raise TransactionLeftOpen(f"The handler left a transaction open on {', '.join(left)}: it was rolled back.")


def _left_open(before: list[tuple[Any, int]]) -> list[str]:
    now = before
    if len(before) < len(connections.settings):  # there may be new ones
        depths = {connection.alias: depth for connection, depth in before}
        now = [(c, depths.get(c.alias, 0)) for c in connections.all(initialized_only=True)]
    return [connection.alias for connection, depth in now if _is_open(connection, depth)]


def _is_open(connection: Any, depth: int) -> bool:
    if connection.connection is None:
        return False
    if len(connection.atomic_blocks) != depth:
        return True
    if depth or not connection.settings_dict["AUTOCOMMIT"]:
        return False
    return not connection.autocommit or _began_by_hand(connection)


def _began_by_hand(connection: Any) -> bool:
    raw = connection.connection
    if connection.vendor == "postgresql":
        return raw.info.transaction_status.name in ("ACTIVE", "INTRANS", "INERROR")
    return bool(getattr(raw, "in_transaction", False))


@contextmanager
def alone() -> Iterator[None]:
    """A child that is forked inside the block ends where the block ends: what comes after is the parent's."""
    here, before, _running.here = os.getpid(), getattr(_running, "here", False), True
    try:
        yield
    except BaseException as error:
        if os.getpid() != here:
            _end_child(error)
        raise
    finally:
        if os.getpid() != here:
            os._exit(0)
        _running.here = before


def _end_child(error: BaseException) -> None:
    """Without Python's own way out, which would flush and close what is the parent's."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        os._exit((error.code or 0) & 0xFF)
    with suppress(Exception):
        logger.error("a process that a handler forked failed", exc_info=error)
    os._exit(1)


def _let_go() -> None:
    """In a child of a handler: the parent's connections are not to be had here.

    Nothing the child does, and not its mere life, reaches the parent's session on the server. Inside the handler's
    transaction a query is refused; outside one the child gets a connection of its own.
    """
    if not getattr(_running, "here", False):
        return
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        _of_the_parent.append(connection.connection)
        if connection.vendor == "postgresql":
            _cut(connection.connection)
        connection.connection = None
        if connection.in_atomic_block:
            connection.closed_in_transaction = connection.needs_rollback = True


def _cut(raw: Any) -> None:
    """Put /dev/null in the socket's place, in this process alone: the number is taken, and nobody is told."""
    with suppress(Exception):  # closed already
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, raw.fileno(), inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_let_go)
