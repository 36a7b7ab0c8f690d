"""Retry database work after a serialization failure, a deadlock or a busy SQLite database.

Under REPEATABLE READ and SERIALIZABLE, PostgreSQL refuses a statement whose rows another transaction has changed since
its own began. With READ COMMITTED, only deadlocks are conflicts.
"""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

Returned = TypeVar("Returned")
TRIES = 20
_FIRST_PAUSE_SECONDS = 0.001  # the longest pause before the second try; doubled before each further one
_LONGEST_PAUSE_SECONDS = 0.1
_CONFLICTS = {"40001", "40P01"}  # PostgreSQL: serialization_failure, deadlock_detected
_LOCK_NOT_AVAILABLE = "55P03"  # PostgreSQL: lock_not_available
_BUSY = 5  # SQLite: the low byte of SQLITE_BUSY errors; waiting writers do not get the lock in order


def is_retryable(error: BaseException) -> bool:
    """Return whether the transaction that raised this error may succeed if it is repeated."""
    if not isinstance(error, OperationalError):
        return False
    return _is_conflict(error) or getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == _BUSY


def _is_conflict(error: OperationalError) -> bool:
    return getattr(error.__cause__, "sqlstate", None) in _CONFLICTS


def waited_too_long(error: BaseException) -> bool:
    """Return whether this error says that a lock was not free within the limit of dialects.wait_at_most()."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) == _LOCK_NOT_AVAILABLE


def retry_once(call: Callable[[], Returned], check: Callable[[], None]) -> Returned:
    """Return call(). Call it once more if the database reports a conflict that a retry may solve.

    For calls that run a handler. For the engine's own work use retry_conflicts(), which repeats more often.

    check   called before the second call; it raises an exception if that must not be made
    """
    try:
        return call()
    except OperationalError as error:
        if not is_retryable(error):
            raise
    check()
    return call()


def retry_conflicts(call: Callable[[], Returned], using: str) -> Returned:
    """Return call(). Repeat it after a conflict, at most TRIES times in all, with short pauses of random length.

    Inside a transaction of this database nothing is repeated: only the code that opened it can repeat it as a whole. A
    busy SQLite database is tried once more only, because each try waits for as long as its `timeout` says.
    """
    for number in range(TRIES - 1):
        try:
            return call()
        except OperationalError as error:
            if _inside_transaction(using) or not is_retryable(error) or (number and not _is_conflict(error)):
                raise
        time.sleep(random.uniform(0, min(_FIRST_PAUSE_SECONDS * 2**number, _LONGEST_PAUSE_SECONDS)))
    return call()


def in_transaction(using: str, do: Callable[[], Returned]) -> Returned:
    """Return do(), called in a transaction. After a conflict, repeat it, as retry_conflicts() says."""

    def call() -> Returned:
        with transaction.atomic(using):
            return do()

    return retry_conflicts(call, using)


def try_twice(call: Callable[[], Returned], using: str) -> Returned:
    """Return call(). After any database error, call it once more, with a new connection if the old one is broken.

    Inside a transaction nothing is repeated, as with retry_conflicts().
    """
    try:
        return call()
    except (DatabaseError, InterfaceError):
        if _inside_transaction(using):
            raise
        connections[using].close_if_unusable_or_obsolete()
        return call()


def _inside_transaction(using: str) -> bool:
    connection = connections[using]
    return connection.in_atomic_block or not connection.autocommit
