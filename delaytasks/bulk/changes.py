"""Bulk changes: one change to many jobs, made in small batches, with a result for each job.

The ids of the jobs are stored when the user confirms, so exactly the jobs that were shown are changed, each once. One
transaction changes a batch (apply.py) and stores the progress. A Celery task changes batches for about five seconds
and then sends a task for the rest. If that message is lost, the sweep sends the task again.

A batch does not wait for locked jobs, because other transactions would then wait for the hundreds of jobs that the
batch itself has locked. Locked jobs are put off: they are tried again after all others.
"""

import logging
import time
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

from celery import current_app
from django.contrib.auth import get_user_model
from django.db import OperationalError, transaction
from django.db.models import F

from .. import databases, permissions
from ..db import dialects
from ..db.retries import in_transaction, retry_conflicts, waited_too_long
from ..exceptions import BadInput
from ..jobs.inputs import check_actor
from ..models import BulkChange
from ..outcomes import ErrorCode
from ..worker.sender import BROKER_FAILURES, connect
from .apply import change_batch

logger = logging.getLogger("delaytasks")
MAX_JOBS = 100_000  # jobs of one change
BATCH_SIZE = 500  # jobs of one batch, which is one transaction
TASK = "delaytasks.bulk_change"
STALLED_SECONDS = 30
WAIT_MS = 250  # longest wait for a lock that cannot be skipped: a key that is being scheduled, a row of a user
PAUSE_SECONDS = 0.5  # before locked jobs are tried again
KEPT_DAYS = 90  # after the end of a change; the events of its jobs keep requester and reason

Operation, State = BulkChange.Operation, BulkChange.State
UNDER_WAY = (State.WAITING, State.RUNNING)
HALTED = (State.STOPPED, State.FAILED)


def start(
    operation: str,
    ids: Sequence[int],
    *,
    by: str,
    user_id: Any = "",
    reason: str = "",
    delay_ms: int | None = None,
    selection: dict[str, Any] | None = None,
    using: str | None = None,
) -> BulkChange:
    """Create a bulk change and return its row. The change begins after the commit, as soon as a worker is free.

    operation   "cancel", "postpone" (by delay_ms), "run_now", "retry"
    ids         ids of the jobs, at most 100,000; each job is changed once, in this order
    user_id     the primary key of the requester; "" for code, which may change all jobs
    selection   the filters that selected the jobs, for display

    Raises BadInput.
    """
    using = databases.alias(using)
    if operation not in Operation.values:
        raise BadInput(f"operation is {operation!r}; use one of {', '.join(Operation.values)}.")
    if (operation == Operation.POSTPONE) != (delay_ms is not None):
        raise BadInput("Give delay_ms for the operation postpone, and for no other operation.")
    check_actor(by)
    check_actor(reason, what="reason")
    if not 0 < len(ids) <= MAX_JOBS:
        raise BadInput(f"{len(ids):,} jobs were selected; a change takes from 1 to {MAX_JOBS:,} jobs.")
    ids = list(dict.fromkeys(ids))
    change = BulkChange.objects.using(using).create(
        operation=operation, ids=ids, total=len(ids), by=by, user_id=str(user_id or ""), reason=reason,
        delay_ms=delay_ms, selection=selection or {}, created_at=databases.now(using),
    )  # fmt: skip
    transaction.on_commit(lambda: send(change.pk, using), using=using, robust=True)
    return change


def send(pk: int, using: str) -> None:
    """Send the task that continues the change. If the broker does not answer, the sweep sends the task later.

    The task is sent over a connection of its own, because a user may wait for this function and Celery's shared
    connection would retry for six seconds, or wait without limit for a broker that hangs.
    """
    try:
        with connect(current_app) as connection:
            current_app.send_task(TASK, (pk, using), connection=connection, retry=False, ignore_result=True)
    except BROKER_FAILURES as error:
        logger.warning("bulk change %s was not sent to a worker; the sweep sends it again: %s", pk, error)


def stop(pk: int, *, using: str | None = None) -> bool:
    """Stop the change after its current batch. Return False if the change has ended already."""
    using = databases.alias(using)
    return _end(pk, using, state=State.STOPPED)


def fail(pk: int, error: str, *, using: str) -> None:
    """Mark the change as failed.

    error   a traceback or an ErrorCode
    """
    _end(pk, using, state=State.FAILED, error=error[:10_000])


def _end(pk: int, using: str, **values: Any) -> bool:
    """End the change and keep its ids, so that it can be resumed. Return False if it has ended already."""
    rows = BulkChange.objects.using(using).filter(pk=pk, state__in=UNDER_WAY)
    return bool(retry_conflicts(lambda: rows.update(**values, ended_at=databases.now(using)), using))


def can_resume(pk: int, *, using: str | None = None) -> bool:
    """Return whether the change was stopped or has failed before its last job, so that resume() would continue it."""
    return _halted(pk, databases.alias(using)).exists()


def resume(pk: int, *, using: str | None = None) -> bool:
    """Resume a change that was stopped or has failed. Return False if it cannot be resumed."""
    using = databases.alias(using)

    def do() -> bool:
        values = {"state": State.WAITING, "error": "", "ended_at": None, "worked_at": databases.now(using)}
        resumed = bool(_halted(pk, using).update(**values))
        if resumed:
            transaction.on_commit(lambda: send(pk, using), using=using, robust=True)
        return resumed

    return in_transaction(using, do)


def _halted(pk: int, using: str) -> Any:
    rows = BulkChange.objects.using(using).filter(pk=pk, state__in=HALTED, position__lt=F("total"))
    return rows.exclude(ids=[])  # earlier versions deleted the ids of every ended change


def stalled(using: str) -> list[int]:
    """Return the primary keys of changes that are under way but have made no progress for STALLED_SECONDS."""
    since = databases.now(using) - timedelta(seconds=STALLED_SECONDS)
    under_way = BulkChange.objects.using(using).filter(state__in=UNDER_WAY)
    rows = under_way.filter(worked_at__lt=since) | under_way.filter(worked_at=None, created_at__lt=since)
    return list(rows.order_by("pk").values_list("pk", flat=True))


# -- the work -----------------------------------------------------------------------------------


class ChangeData(NamedTuple):
    """Data of a change that is read once for all batches of one Celery task."""

    pk: int
    using: str
    ids: list[int]  # up to a megabyte
    topics: Collection[str] | None  # visible to the requester; None: all


def work(pk: int, *, using: str, seconds: float = 5.0) -> bool:
    """Change batches for about `seconds`. Return whether jobs remain to be changed."""
    end = time.monotonic() + seconds
    under_way = BulkChange.objects.using(using).filter(pk=pk, state__in=UNDER_WAY)
    row = under_way.values_list("ids", "user_id").first()
    if row is None:
        return False
    ids, user_id = row
    allowed, topics = _permissions(user_id, using)
    if not allowed:
        fail(pk, ErrorCode.NOT_ALLOWED, using=using)
        return False
    while (changed := _try_batch(ChangeData(pk, using, ids, topics))) is not None:
        remaining = end - time.monotonic()
        if remaining <= 0:
            return True
        if not changed:
            time.sleep(min(PAUSE_SECONDS, remaining))
    return False


def _permissions(user_id: str, using: str) -> tuple[bool, Collection[str] | None]:
    """Return whether the requester may still change jobs, and the topics that the requester may see.

    The topics are None if all topics are visible. An empty `user_id` stands for code, which may change all jobs.
    """
    if not user_id:
        return True, None
    user = get_user_model()._default_manager.filter(pk=user_id).first()
    if user is None or not permissions.can_operate(user):
        return False, None
    return True, permissions.visible_topics(user, using)


def _try_batch(data: ChangeData) -> int | None:
    """Change a batch. Return as _change_batch(), but 0 if a lock that cannot be skipped was not free in time."""
    try:
        return retry_conflicts(lambda: _change_batch(data), data.using)
    except OperationalError as error:
        if not waited_too_long(error):
            raise
        return 0


def _change_batch(data: ChangeData) -> int | None:
    """Change the next batch and store the progress. Return the number of jobs with a result; None at the end.

    One transaction does both, so a killed worker leaves no job that is changed but not counted. If another worker has
    locked the change, return None at once.
    """
    using = data.using
    with transaction.atomic(using):
        dialects.wait_at_most(using, WAIT_MS)
        rows = BulkChange.objects.using(using).select_for_update(skip_locked=True)
        change = rows.defer("ids").filter(pk=data.pk, state__in=UNDER_WAY).first()
        if change is None:
            return None
        start = change.position + len(change.put_off)
        ids, put_off = data.ids[start : start + BATCH_SIZE], change.put_off
        if not ids:
            ids, put_off = put_off[:BATCH_SIZE], put_off[BATCH_SIZE:]
        locked = change_batch(change, ids, data.topics, using)
        change.put_off = [*put_off, *locked]
        counted = len(ids) - len(locked)
        return counted if _store_progress(change, counted, using) else None


def _store_progress(change: BulkChange, counted: int, using: str) -> bool:
    """Store the progress of the change. Return whether the change continues."""
    now = databases.now(using)
    change.position += counted
    change.worked_at = now
    if change.state != State.FAILED:
        change.state = State.DONE if change.position >= change.total else State.RUNNING
    fields = ["position", "put_off", "outcomes", "samples", "worked_at", "state", "error"]
    if change.state == State.DONE:
        change.ids = []
        fields.append("ids")
    if change.state != State.RUNNING:
        change.ended_at = now
    change.save(using=using, update_fields=[*fields, "ended_at"])
    return change.state == State.RUNNING


def prune(using: str) -> None:
    """Delete the changes that ended more than KEPT_DAYS ago."""
    oldest = databases.now(using) - timedelta(days=KEPT_DAYS)
    retry_conflicts(BulkChange.objects.using(using).filter(ended_at__lt=oldest).delete, using)
