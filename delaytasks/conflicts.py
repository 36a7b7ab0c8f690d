"""Serialization failures, deadlocks, locks not had in time: the database asks to try again, and we do, once."""

from collections.abc import Callable
from typing import TypeVar

from django.db import OperationalError, connections

Answer = TypeVar("Answer")
_TRY_AGAIN = {"40001", "40P01"}  # PostgreSQL: serialization_failure, deadlock_detected
_NOT_HAD = "55P03"  # PostgreSQL: lock_not_available
_BUSY = 5  # SQLite: SQLITE_BUSY, in the low byte; its one writer's lock goes to whoever asks at the right moment


def asks_to_try_again(error: BaseException) -> bool:
    if not isinstance(error, OperationalError):
        return False
    busy = getattr(error.__cause__, "sqlite_errorcode", 0) & 0xFF == _BUSY
    return busy or getattr(error.__cause__, "sqlstate", None) in _TRY_AGAIN


def waited_too_long(error: BaseException) -> bool:
    """Whether a lock was not had in the time that dialect.wait_at_most() allows."""
    return isinstance(error, OperationalError) and getattr(error.__cause__, "sqlstate", None) == _NOT_HAD


def retried_once(call: Callable[[], Answer], using: str | None = None) -> Answer:
    """call(), and once more if the database asked for it.

    using   inside a transaction of this alias it is left to whoever began that: only the whole can be repeated.
    """
    try:
        return call()
    except OperationalError as error:
        inside = using is not None and connections[using].in_atomic_block
        if inside or not asks_to_try_again(error):
            raise
        return call()
