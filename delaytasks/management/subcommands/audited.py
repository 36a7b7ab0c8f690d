"""Write what a subcommand has changed to the audit log. The actor is the user of the operating system.

Subcommands that only do what workers do regularly (move, sweep, rebuild, audit) write no entry.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections

from ... import admin_log
from ...jobs import audit_log
from . import arguments

logger = logging.getLogger("delaytasks")


def write(using: str, row: Any, what: str, **columns: Any) -> None:
    """Write an entry for a change of this row.

    what      an Action, or "added", "changed", "deleted"
    columns   as in audit_log.entry()
    """
    admin_log.write_audit(arguments.os_actor(), [row], what, using=using, **columns)


def write_named(using: str, action: str, target: str, **columns: Any) -> None:
    """Write an entry for what has no row. The arguments are those of audit_log.entry()."""
    audit_log.record(using, [audit_log.entry(action, arguments.os_actor(), target, **columns)])


@contextmanager
def many(using: str, action: str, target: str, *, topic: str | None = None) -> Iterator[dict[str, Any]]:
    """Write one entry at the end of the block, for a command that makes many changes in several transactions.

    Yields the dict for the entry's column `after`: what was chosen, and how many were changed. If it is empty at the
    end, no entry is written: clear it before an error that refuses the whole command. If the block raises, the entry
    has the exception's name, because earlier transactions are committed. If that entry cannot be written, this is
    logged, and the block's exception is raised.
    """
    after: dict[str, Any] = {}
    try:
        yield after
    except BaseException as error:
        if after:
            after["failed"] = type(error).__name__
            try:
                _write_last(using, action, target, topic, after)
            except Exception as reason:
                logger.error("audit log: the entry %s of a command that failed was not written: %s", action, reason)
        raise
    if after:
        _write_last(using, action, target, topic, after)


def _write_last(using: str, action: str, target: str, topic: str | None, after: dict[str, Any]) -> None:
    _forget_idle(using)
    write_named(using, action, target, topic=topic or "", after=after)


def _forget_idle(using: str) -> None:
    """Close the connection, so that the entry gets a new one: a server may have closed it during a run of hours."""
    if not connections[using].in_atomic_block:
        connections[using].close()
