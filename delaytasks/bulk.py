"""One change to many jobs: a snapshot of which, worked through in small pieces, each job with its own truthful answer.

The snapshot is taken when somebody confirms, so what they saw is what is acted upon, and each job
is visited once: what is postponed does not come round again. A piece is some seconds of a Celery
task, which then sends the next; the sweep sends it again if one was lost.
"""

import logging
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from celery import current_app
from django.apps import apps
from django.db import transaction
from django.utils import timezone
from kombu.exceptions import OperationalError as BrokerDown

from . import changing, engine
from .changing import CancelResult
from .conflicts import retried_once
from .exceptions import BadInput, DelaytasksError, KeyIsLive, NotDead, NotLive, Reserved
from .models import BulkChange, Job
from .states import State

logger = logging.getLogger("delaytasks")
MOST = 100_000  # jobs of one change
PIECE = 100  # jobs of one transaction
TASK = "delaytasks.bulk_change"
SAMPLES = 20  # jobs that are named for each outcome
STALLED_SECONDS = 30

Operation, Standing = BulkChange.Operation, BulkChange.State
UNDER_WAY = (Standing.WAITING, Standing.RUNNING)
DONE_WORDS = {
    Operation.CANCEL: "cancelled",
    Operation.POSTPONE: "postponed",
    Operation.RUN_NOW: "made ready",
    Operation.RETRY: "retried",
}
_REFUSALS: dict[type[DelaytasksError], str] = {
    Reserved: "already running",
    NotDead: "not dead",
    KeyIsLive: "its key is live again",
}
_ENDED = {State.FINISHED: "already finished", State.CANCELLED: "already cancelled", State.DEAD: "dead"}
UNKNOWN = "no longer there"


def start(
    operation: str,
    ids: Sequence[int],
    *,
    by: str,
    user_id: Any = "",
    reason: str = "",
    delay_ms: int | None = None,
    wish: dict[str, Any] | None = None,
    using: str | None = None,
) -> BulkChange:
    """Ask for a change to these jobs; it begins when the transaction commits and a worker has time.

    operation   "cancel", "postpone" (then delay_ms says by how much), "run_now", "retry"
    ids         of the jobs, at most 100,000; each is visited once, in this order
    wish        what was chosen by, for people to read

    Raises BadInput.
    """
    using = engine.alias(using)
    if operation not in Operation.values:
        raise BadInput(f"operation is {operation!r}; it is one of {', '.join(Operation.values)}.")
    if (operation == Operation.POSTPONE) != (delay_ms is not None):
        raise BadInput("delay_ms says by how much to postpone, and belongs to nothing else.")
    if not 0 < len(ids) <= MOST:
        raise BadInput(f"{len(ids):,} jobs were chosen; from 1 to {MOST:,} can be changed at once.")
    made = BulkChange.objects.using(using).create(
        operation=operation, ids=list(ids), total=len(ids), by=by, user_id=str(user_id or ""), reason=reason,
        delay_ms=delay_ms, wish=wish or {},
    )  # fmt: skip
    transaction.on_commit(lambda: send(made.pk, using), using=using, robust=True)
    return made


def send(pk: int, using: str) -> None:
    """Ask a worker to go on with the change. A broker that does not answer is asked again by the sweep."""
    try:
        current_app.send_task(TASK, (pk, using), retry=False, ignore_result=True)
    except (BrokerDown, OSError) as error:
        logger.warning("bulk change %s was not sent to a worker, the sweep sends it again: %s", pk, error)


def stop(pk: int, *, using: str | None = None) -> bool:
    """Leave the rest of the change undone; False if it has ended. The piece at work is finished first."""
    rows = BulkChange.objects.using(engine.alias(using)).filter(pk=pk, state__in=UNDER_WAY)
    return bool(rows.update(state=Standing.STOPPED, ended_at=timezone.now()))


def stalled(using: str) -> list[int]:
    """The changes under way that nobody has worked on for a while."""
    since = timezone.now() - timedelta(seconds=STALLED_SECONDS)
    under_way = BulkChange.objects.using(using).filter(state__in=UNDER_WAY)
    quiet = under_way.filter(worked_at__lt=since) | under_way.filter(worked_at=None, created_at__lt=since)
    return list(quiet.order_by("pk").values_list("pk", flat=True))


def work(pk: int, *, using: str, seconds: float = 5.0) -> bool:
    """Go on with a change for a while; whether there is more to do."""
    over = time.monotonic() + seconds
    while retried_once(lambda: _piece(pk, using), using):
        if time.monotonic() >= over:
            return True
    return False


def _piece(pk: int, using: str) -> bool:
    """Change the next few jobs, in one transaction with how far that is; False if nothing is left to do here.

    So a killed worker leaves no job changed and not counted, and of two that work at once one goes home.
    """
    with transaction.atomic(using):
        found = BulkChange.objects.using(using).select_for_update(skip_locked=True).filter(pk=pk, state__in=UNDER_WAY)
        change = found.first()
        if change is None:
            return False
        ids = change.ids[change.position : change.position + PIECE]
        jobs = Job.objects.using(using).defer("body", "error").in_bulk(ids)
        done = []
        for job_id in ids:
            word = change_one(change, jobs.get(job_id), using)
            _count(change, word, jobs.get(job_id), job_id)
            if word == DONE_WORDS[Operation(change.operation)]:
                done.append(jobs[job_id])
        log(change, done, using)
        return _store_progress(change, len(ids), using)


def change_one(change: BulkChange, job: Job | None, using: str) -> str:
    """Do to one job what the change asks for; what became of it, in a word."""
    if job is None:
        return UNKNOWN
    if job.state == State.CANCELLED and change.operation == Operation.CANCEL:
        return _ENDED[State.CANCELLED]  # cancel() would say so, too, and the log would name somebody who did nothing
    try:
        answer = _ACTS[Operation(change.operation)](change, job.pk, using)
    except NotLive:
        return _standing(job.pk, using)
    except DelaytasksError as error:
        return _REFUSALS.get(type(error)) or str(error)
    if isinstance(answer, CancelResult) and answer is not CancelResult.CANCELLED:
        return "already running" if answer is CancelResult.RUNNING else _standing(job.pk, using)
    return DONE_WORDS[Operation(change.operation)]


def _standing(job_id: int, using: str) -> str:
    state = Job.objects.using(using).filter(pk=job_id).values_list("state", flat=True).first()
    return UNKNOWN if state is None else _ENDED.get(State(state), "already running")


_ACTS: dict[str, Callable[[BulkChange, int, str], object]] = {
    Operation.CANCEL: lambda c, i, using: changing.cancel_job(i, using=using, by=c.by, reason=c.reason),
    Operation.POSTPONE: lambda c, i, using: changing.postpone_job(
        i, (c.delay_ms or 0) / 1000, using=using, by=c.by, reason=c.reason
    ),
    Operation.RUN_NOW: lambda c, i, using: changing.run_job_now(i, using=using, by=c.by, reason=c.reason),
    Operation.RETRY: lambda c, i, using: changing.retry_dead(job_id=i, using=using, by=c.by, reason=c.reason),
}


def _count(change: BulkChange, word: str, job: Job | None, job_id: int) -> None:
    change.outcomes[word] = change.outcomes.get(word, 0) + 1
    named = change.samples.setdefault(word, [])
    if len(named) < SAMPLES:
        named.append([job_id, job.topic if job else "", job.key if job else ""])


def _store_progress(change: BulkChange, worked: int, using: str) -> bool:
    now = timezone.now()
    position = change.position + worked
    ended = position >= change.total
    BulkChange.objects.using(using).filter(pk=change.pk).update(
        position=position, outcomes=change.outcomes, samples=change.samples, worked_at=now,
        state=Standing.DONE if ended else Standing.RUNNING, ended_at=now if ended else None,
    )  # fmt: skip
    return not ended


def log(change: BulkChange, jobs: list[Job], using: str) -> None:
    """The admin's log says who did what to each job, where the admin is installed."""
    if not jobs or not change.user_id or not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import CHANGE, LogEntry
    from django.contrib.auth import get_user_model

    if not get_user_model()._default_manager.filter(pk=change.user_id).exists():
        return  # whoever asked is gone meanwhile; the events still say who it was

    said = DONE_WORDS[Operation(change.operation)].capitalize()
    why = f"{said}: {change.reason}" if change.reason else f"{said}."
    LogEntry.objects.log_actions(change.user_id, jobs, CHANGE, why, single_object=False)


def fail(pk: int, error: str, *, using: str) -> None:
    """Say that the change cannot go on."""
    rows = BulkChange.objects.using(using).filter(pk=pk, state__in=UNDER_WAY)
    rows.update(state=Standing.FAILED, error=error[:10_000], ended_at=timezone.now())
