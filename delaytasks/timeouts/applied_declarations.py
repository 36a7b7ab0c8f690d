"""Record which declarations are applied. For others, no job is made, moved or cancelled.

reconcile.plan() counts what a declaration would change, reconcile.apply() puts it into force. Each statement that
looks for differences reads the Declaration row, so that processes with another version of the code write nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from django.apps import apps
from django.conf import settings
from django.db import transaction

from .. import databases
from ..clock import to_ms
from ..exceptions import BadInput
from ..jobs import cancellation
from ..jobs.cancellation import CancelCounts
from . import declarations, renames
from .declarations import Declaration

Overdue = Literal["run", "skip"] | timedelta
_automatic = 0


def _rows() -> Any:
    """Return the model Declaration, which can be imported only when Django's apps are loaded."""
    return apps.get_model("delaytasks", "Declaration")


@contextmanager
def automatically() -> Iterator[None]:
    """Treat each declaration as applied inside the block. For the test kit."""
    global _automatic
    _automatic += 1
    try:
        yield
    finally:
        _automatic -= 1


def is_automatic() -> bool:
    """Return whether each declaration counts as applied automatically: with DEBUG=True and in the test kit."""
    return bool(_automatic) or settings.DEBUG


class Removed(NamedTuple):
    """A topic that was applied, but that the code no longer declares."""

    topic: str
    live: int  # number of its live jobs


def removed(using: str) -> list[Removed]:
    known = {each.topic for each in declarations.registered()}
    topics = _rows().objects.using(using).exclude(topic__in=known).order_by("topic")
    jobs = apps.get_model("delaytasks", "Job").objects.using(using).live()
    return [Removed(topic, jobs.filter(topic=topic).count()) for topic in topics.values_list("topic", flat=True)]


def forget(topic: str, using: str) -> CancelCounts:
    """Cancel the live jobs of a topic that the code no longer declares, and delete the record that it was applied.

    If it is declared again, their rows get new jobs. Deletes the clocks of a service level, with their history.

    Raises BadInput if the code declares the topic, or if it was never applied.
    """
    if declarations.find(topic) is not None:
        raise BadInput(f"{topic!r} is declared in the code: remove its @timeout first.")
    if not _rows().objects.using(using).filter(topic=topic).exists():
        known = ", ".join(each.topic for each in removed(using)) or "none"
        raise BadInput(f"{topic!r} was never applied. Topics that are no longer declared: {known}.")
    counts = cancellation.cancel_jobs(using, topic=topic, also=", declared_due = NULL")
    apps.get_model("delaytasks", "SlaClock").objects.using(using).filter(topic=topic).delete()
    _rows().objects.using(using).filter(topic=topic).delete()
    return counts


def not_applied(using: str, among: Sequence[Declaration]) -> list[Declaration]:
    """Return those of these declarations whose fingerprint is not the applied one."""
    rows = _rows().objects.using(using).filter(topic__in=[each.topic for each in among])
    known = dict(rows.values_list("topic", "fingerprint"))
    return [each for each in among if known.get(each.topic) != each.fingerprint]


class Applied(NamedTuple):
    """The stored record of an applied declaration.

    skip_before_ms   rows with an earlier due time are skipped; 0: none are
    """

    fingerprint: str
    skip_before_ms: int


def find(topic: str, using: str) -> Applied | None:
    """Return the record of an applied topic; None if it was never applied, or if all count as applied automatically."""
    if is_automatic():
        return None
    row = _rows().objects.using(using).filter(topic=topic).first()
    return None if row is None else Applied(row.fingerprint, to_ms(row.applied_at) if row.overdue == "skip" else 0)


def store(declaration: Declaration, using: str, overdue: Overdue = "run") -> None:
    """Put a declaration into force when the caller's transaction commits. Its next reconciliation begins at once.

    overdue   for rows whose due time has passed already: "run" their jobs now, "skip" them, or a timedelta over which
              the jobs are spread
    """
    now = databases.now(using)
    values: dict[str, Any] = {
        "fingerprint": declaration.fingerprint,
        "applied_at": now,
        "overdue": "spread" if isinstance(overdue, timedelta) else overdue,
        "spread_until": now + overdue if isinstance(overdue, timedelta) else None,
        "phase": "", "position": "", "began_at": None,
    }  # fmt: skip
    new, rows = _rows()(topic=declaration.topic, **values), _rows().objects.using(using)
    # One statement: under REPEATABLE READ, a row that another process has just stored is a conflict, which is retried.
    rows.bulk_create([new], update_conflicts=True, unique_fields=["topic"], update_fields=[*values])
    renames.rename_jobs(declaration, using)


def ensure_row(declaration: Declaration, using: str) -> None:
    """Store the row of a declaration that counts as applied automatically: reconciliation keeps its position there."""
    with transaction.atomic(using):
        if not_applied(using, [declaration]):
            store(declaration, using)
