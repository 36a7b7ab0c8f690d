"""The next run of a job that is scheduled again while its handler is running.

If the handler itself schedules its own key, the running job is finished, and the new job is its next run.

With schedule(on_conflict="again"), the running job's row stores the terms of the next run: its due time, TTR, expiry
and body. If the attempt ends and the job stays live, the statement that ends the attempt merges the terms into the row.
If the job ends, the same transaction inserts its next run as a new job.
"""

from collections.abc import Collection, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from django.db import connections, transaction

from .. import signals
from ..db import transitions
from ..db.transitions import Event, JobRow, NewJob, StoredJob
from ..exceptions import Reserved
from ..states import Outcome, State
from . import audit_log, on_commit

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from ..models import Job


class Running(Protocol):
    """The attributes of a running job that finish_own() needs."""

    id: int
    topic: str
    key: str
    using: str
    ended: bool

    def finish(self) -> None: ...

    def still_held(self) -> bool: ...


_running: ContextVar[tuple[Any, ...]] = ContextVar("delaytasks_running", default=())


class running_jobs:
    """Mark these jobs as those whose handler runs inside the block."""

    def __init__(self, *jobs: Running) -> None:
        self.jobs = jobs

    def __enter__(self) -> None:
        self.token = _running.set(self.jobs)

    def __exit__(self, *error: object) -> None:
        _running.reset(self.token)


def finish_own(using: str, topic: str, key: str) -> bool:
    """Finish the running job with this topic and key, if there is one, so that its handler can schedule the key again.

    Return whether there was one. Raises Reserved outside a transaction, because the finish and the new job must be
    committed together.
    """
    for job in _running.get():
        if (job.topic, job.key, job.using) == (topic, key, using) and (not job.ended or job.still_held()):
            job.ended = False  # it was True if a savepoint has rolled an earlier finish back
            if not connections[using].in_atomic_block:
                raise Reserved(
                    f"{job!r} is running. To schedule the next job of this key from a handler with atomic=False, "
                    "call schedule() inside `with job.finishing():`."
                )
            job.finish()
            return True
    return False


def runs_here(using: str, job_id: int) -> bool:
    """Return whether the caller is the handler of this job."""
    return any((job.id, job.using) == (job_id, using) for job in _running.get())


# -- on_conflict="again" ------------------------------------------------------------------------


def store_next_runs(
    using: str, live: Mapping[tuple[str, str], JobRow], rows: Mapping[tuple[str, str], NewJob], by: str
) -> tuple[list[int], list[int]]:
    """Store the next runs of the live jobs that are running. The jobs and rows are by topic and key.

    Return (the ids of the jobs that wait, those of the running ones). Jobs that have ended meanwhile are in neither.
    """
    locked = {(row.topic, row.key): row for row in transitions.lock_live(using, [row.id for row in live.values()])}
    waiting = [row.id for row in locked.values() if row.state == State.DELAYED]
    running = {row.id: rows[pair] for pair, row in locked.items() if row.state == State.RESERVED}
    next_runs = store(using, running, dict.fromkeys(running, (by, None)))
    if by:
        attempts = {row.id: row.attempt for row in locked.values()}
        transitions.record(using, [_event(s, attempts[s.id], by) for s in next_runs])
    for each in next_runs:
        on_commit.send_signal(using, signals.job_scheduled, each.id)
    return waiting, [each.id for each in next_runs]


def store(using: str, rows: Mapping[int, NewJob], actors: Mapping[int, audit_log.Actor]) -> list[StoredJob]:
    """Store the next runs of these running jobs, in the caller's transaction. Return those that were stored.

    actors   by the job's id: the audit log has an entry for each next run with an actor
    """
    if not rows:
        return []
    audited = [job_id for job_id in rows if actors[job_id][0]]
    before = audit_log.before_replace(using, audited, State.RESERVED) if audited else None
    stored = transitions.store_next_runs(using, rows)
    if before is not None:
        audit_log.record_next_runs(using, before, [(each, rows[each.id]) for each in stored], actors)
    return stored


def _event(next_run: StoredJob, attempt: int, by: str) -> Event:
    """Return the event that records who scheduled a running job again. Its times are those of the next run."""
    due_ms = next_run.due_ms
    return Event(next_run.id, Outcome.SCHEDULED, attempt, due_ms, next_run.stored_ms, None, due_ms, "", by)


def schedule_next(using: str, ids: Sequence[int]) -> None:
    """Insert the next runs of these jobs, which have ended, in the caller's transaction."""
    if not ids:
        return
    on_commit.stored(using, transitions.insert_next_runs(using, ids))


def withdraw(using: str, ids: Collection[int], *, by: str = "", reason: str = "") -> set[int]:
    """Withdraw the next runs of these running jobs. Return the ids of the jobs that had one.

    Withdrawals that a person requested are recorded in the audit log: the job goes on, so it gets no event.
    """
    if not ids:
        return set()
    with transaction.atomic(using):
        before = audit_log.before_replace(using, ids, State.RESERVED) if by else None
        withdrawn = transitions.withdraw_next_runs(using, sorted(ids))
        if withdrawn and before is not None:
            audit_log.record_withdrawn(using, before, _jobs(using, withdrawn), by, reason)
    return withdrawn


def _jobs(using: str, ids: Collection[int]) -> "QuerySet[Job]":
    from ..models import Job

    return Job.objects.using(using).only("topic", "key").filter(pk__in=ids).order_by("pk")
