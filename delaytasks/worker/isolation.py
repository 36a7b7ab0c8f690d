"""Clean up after a handler: end open transactions and forked processes, and close broken connections."""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections

from ..exceptions import TransactionLeftOpen, TTRExceeded
from . import ttr

logger = logging.getLogger("delaytasks")
CANCEL_SECONDS = 2
_running = threading.local()  # .pid: this process, while this thread is inside isolated(); otherwise None
_parent_connections: list[Any] = []  # connections that a forked child inherited: it neither uses nor closes them


@contextmanager
def isolated(ttr_ms: int) -> Iterator[None]:
    """Limit the block, which calls code of the project, to a TTR, and clean up after it.

    A transaction that the block has begun in this thread and left open is rolled back, as the next job in this thread
    would write into it. A process that is forked inside the block ends when it reaches the end of the block.

    Raises TTRExceeded, with this thread's connections closed, or TransactionLeftOpen.
    """
    before = [(connection, len(connection.atomic_blocks)) for connection in connections.all(initialized_only=True)]
    outer, _running.pid = getattr(_running, "pid", None), os.getpid()
    try:
        with ttr.limit(ttr_ms):
            try:
                yield
            except BaseException as error:
                if os.getpid() != _running.pid:
                    _exit_child(error)
                raise
            finally:
                if os.getpid() != _running.pid:
                    os._exit(0)
    except BaseException as error:
        if isinstance(error, TTRExceeded):
            close_connections()
        else:
            _roll_back(before)
        raise
    finally:
        _running.pid = outer
    if aliases := _roll_back(before):
        raise TransactionLeftOpen(f"The handler left a transaction open on {', '.join(aliases)}; it was rolled back.")


def _roll_back(before: list[tuple[Any, int]]) -> list[str]:
    """Roll back the transactions that were begun since `before` and are open. Return their databases' aliases.

    Leave atomic blocks one by one: the caller may be in a transaction, such as that of a test. A transaction that was
    not begun by a block ends with its connection.
    """
    left_open = _left_open(before)
    for connection, depth in left_open:
        with suppress(Exception):
            for block in reversed(connection.atomic_blocks[depth:]):
                block.__exit__(TransactionLeftOpen, None, None)
    if left_open and _left_open(before):
        close_connections()
    return [connection.alias for connection, _ in left_open]


def _left_open(before: list[tuple[Any, int]]) -> list[tuple[Any, int]]:
    now = before
    if len(before) < len(connections.settings):  # the block may have opened connections
        depths = {connection.alias: depth for connection, depth in before}
        now = [(c, depths.get(c.alias, 0)) for c in connections.all(initialized_only=True)]
    return [(connection, depth) for connection, depth in now if _is_open(connection, depth)]


def _is_open(connection: Any, depth: int) -> bool:
    if connection.connection is None:
        return False
    if len(connection.atomic_blocks) != depth:
        return True
    if depth or not connection.settings_dict["AUTOCOMMIT"]:
        return False
    return not connection.autocommit or _in_raw_transaction(connection)


def _in_raw_transaction(connection: Any) -> bool:
    """Return whether the driver is in a transaction, for example after cursor.execute("BEGIN")."""
    raw = connection.connection
    if connection.vendor == "postgresql":
        return raw.info.transaction_status.name in ("ACTIVE", "INTRANS", "INERROR")
    return bool(getattr(raw, "in_transaction", False))


def _exit_child(error: BaseException) -> None:
    """Exit from a forked child without Python's shutdown, which would flush and close files of the parent."""
    if isinstance(error, SystemExit) and isinstance(error.code, int | None):
        os._exit((error.code or 0) & 0xFF)
    with suppress(Exception):
        logger.error("a child process that a handler forked has failed", exc_info=error)
    os._exit(1)


def _detach_connections() -> None:
    """Detach the parent's connections in a forked child of a handler.

    The child can then neither use the parent's session on the server nor keep it open. A query of the child raises
    inside the handler's transaction; outside a transaction the child opens a connection of its own.
    """
    if getattr(_running, "pid", None) is None:
        return
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        _parent_connections.append(connection.connection)
        if connection.vendor == "postgresql":
            _replace_socket(connection.connection)
        connection.connection = None
        if connection.in_atomic_block:
            connection.closed_in_transaction = connection.needs_rollback = True


def _replace_socket(raw: Any) -> None:
    """Replace the connection's socket by /dev/null in this process, without a message to the server."""
    with suppress(Exception):  # the socket is closed already
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, raw.fileno(), inheritable=False)
        os.close(null)


os.register_at_fork(after_in_child=_detach_connections)


# -- connections of an interrupted handler ------------------------------------------------------


def cancel_queries() -> None:
    """Cancel the running queries of this thread's connections, so that these can be rolled back.

    Called in the signal handler, before TTRExceeded is raised. Never raises.
    """
    for connection in connections.all(initialized_only=True):
        raw = connection.connection
        if raw is None or connection.vendor != "postgresql" or raw.info.transaction_status.name != "ACTIVE":
            continue
        try:
            raw.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception as error:
            logger.warning("an interrupted query could not be cancelled: %s", error)


def close_connections() -> None:
    """Close this thread's connections, which an interrupt may have left in any state."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            try:
                if connection.vendor == "sqlite":
                    # A cursor in a traceback keeps a closed connection, and its write lock, alive: so roll back first.
                    connection.connection.rollback()
                connection.close()
            except Exception as error:
                logger.warning("an interrupted connection could not be closed: %s", error)


def reset_broken_connections() -> None:
    """Reset connections that were closed inside an atomic block. Called after all atomic blocks have been left."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and connection.closed_in_transaction:
            connection.in_atomic_block, connection.connection = False, None  # the next connect() resets the rest
