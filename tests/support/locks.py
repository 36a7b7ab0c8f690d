"""Transactions of PostgreSQL that wait for each other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection, connections, transaction

from .servers import wait_until


def somebody_waits() -> bool:
    """Return whether a session of this database waits for a lock, also when called inside a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # otherwise a transaction sees what its first query has seen
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None


@contextmanager
def committed_meanwhile(change: Callable[[], Any]) -> Iterator[None]:
    """Call `change` in a transaction of another thread, and commit it as soon as the block waits for a lock."""

    def wait() -> None:
        wait_until(somebody_waits, seconds=20, what="a statement that waits for a lock")

    with _open_transaction(change, wait):
        yield


@contextmanager
def other_transaction(act: Callable[[], Any]) -> Iterator[None]:
    """Call `act` in a transaction of another thread that is rolled back at the end of the block."""
    leave = threading.Event()

    def wait() -> None:
        leave.wait(60)
        transaction.set_rollback(True)

    with _open_transaction(act, wait):
        try:
            yield
        finally:
            leave.set()


@contextmanager
def _open_transaction(act: Callable[[], Any], wait: Callable[[], Any]) -> Iterator[None]:
    """Call `act` in a transaction of another thread, which then calls `wait` before it ends."""
    acted = threading.Event()

    def transact() -> None:
        try:
            with transaction.atomic():
                act()
                acted.set()
                wait()
        finally:
            acted.set()
            connections.close_all()

    thread = threading.Thread(target=transact)
    thread.start()
    assert acted.wait(60)
    try:
        yield
    finally:
        thread.join(90)
