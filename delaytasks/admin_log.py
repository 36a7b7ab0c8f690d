"""Write staff actions to the log of Django's admin and to the audit log: user, time, row, action and reason.

An entry is plain text, "Cancelled: they paid by phone", so that it is readable even if this app is no longer
installed. admin/log_entries.py recognizes the first words of an entry, the action, to translate them: never change a
stored action.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from django.apps import apps
from django.contrib.auth import get_user_model

from . import databases
from .jobs import audit_log
from .outcomes import Result

ADDED, CHANGED = 1, 2  # LogEntry's ADDITION and CHANGE; not imported, because the admin may not be installed


class Action(StrEnum):
    """What was done: the first words of each entry. The values are stored, so never change one."""

    CANCELLED = "Cancelled"
    POSTPONED = "Postponed"
    MADE_READY = "Made ready"
    RETRIED = "Retried"
    RESCHEDULED = "Rescheduled"
    SCHEDULED = "Scheduled"
    REPLACED = "Replaced"
    PAUSED = "Paused"
    RESUMED = "Resumed"
    BEGUN = "Begun"
    STOPPED = "Stopped"
    WENT_ON = "Went on"
    REVOKED = "Revoked"
    CREATED = "Created"
    CHANGED = "Changed"
    DELETED = "Deleted"
    RUN_ONCE = "Run once"
    BACKFILLED = "Backfilled"

    @classmethod
    def of(cls, result: Result) -> "Action":
        """Return the action of a change that has this result."""
        return cls[result.name]


def entry_message(what: Action, reason: str = "") -> str:
    """Return the message of an entry: "Cancelled: they paid by phone", or "Cancelled." without a reason."""
    return f"{what}: {reason}" if reason else f"{what}."


def read(message: str) -> tuple[Action | None, str]:
    """Parse a message of entry_message() into its action and reason. Return (None, "") for any other message."""
    what, colon, reason = message.partition(": ")
    what = what if colon else what.removesuffix(".")
    return (Action(what), reason) if what in set(Action) else (None, "")


def code(row: Any, what: str) -> str:
    """Return the code that the audit log stores for this action on this row, such as "job.made_ready"."""
    return f"{audit_log.kind_of(row)}.{what.lower().replace(' ', '_')}"


def write(
    user_id: Any,
    rows: Iterable[Any],
    what: Action,
    reason: str = "",
    *,
    flag: int = CHANGED,
    audit: bool = True,
    **columns: Any,
) -> None:
    """Write one entry for each row to the log of Django's admin and to the audit log.

    user_id   the primary key of the user, as its own type or as a str. If the user no longer exists, write nothing
    audit     False for bulk changes: the audit log has one entry for the whole change instead of one for each job
    columns   of the entry in the audit log, as in audit_log.entry()
    """
    rows = list(rows)
    if not rows or not user_id or not apps.is_installed("django.contrib.auth"):
        return
    user: Any = get_user_model()._default_manager.filter(pk=user_id).first()
    if user is None:
        return
    if apps.is_installed("django.contrib.admin"):
        from django.contrib.admin.models import LogEntry

        LogEntry.objects.log_actions(user_id, rows, flag, entry_message(what, reason), single_object=False)
    if audit and what is not Action.REPLACED:  # schedule() itself writes the audit entry of a replaced job
        write_audit(user.get_username(), rows, what, reason, **columns)


def write_audit(
    actor: str, rows: Iterable[Any], what: str, reason: str = "", *, using: str | None = None, **columns: Any
) -> None:
    """Write one entry for each row to the audit log.

    actor     who did it, as in JobEvent.actor
    what      an Action, or "added", "changed", "deleted"
    using     the alias of the database; None: the router's database for writes
    columns   as in audit_log.entry()
    """
    entries = []
    for row in rows:
        target, names = audit_log.target_of(row)
        entries.append(audit_log.entry(code(row, what), actor, target, reason=reason, **names, **columns))
    audit_log.record(databases.alias(using), entries)
