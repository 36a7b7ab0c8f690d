"""Cancel, postpone, run now and retry many jobs with one statement each. jobs/control.py changes single jobs.

The functions run in the caller's transaction. They change only the jobs that are in the required state, lock them in
id order, and record one event for each. The mirror is updated once, on commit. Each function returns the ids of the
jobs that it has changed; apply.py finds out why the others were not changed.
"""

from collections.abc import Sequence

from django.db import IntegrityError, transaction

from .. import signals
from ..db import dialects, transitions
from ..db.transitions import Cancel, Event, JobRow
from ..jobs import on_commit
from ..jobs.control import Origin
from ..jobs.inputs import to_when
from ..states import Outcome, State

DELAYED, DEAD = int(State.DELAYED), int(State.DEAD)
Moved = list[tuple[JobRow, int, int]]  # (row before the change, its new due time, time of the change), in ms since 1970


def lock_free(using: str, ids: Sequence[int], state: State) -> set[int]:
    """Lock the jobs in this state that no other transaction has locked. Return the ids of the locked jobs."""
    return {row.id for row in transitions.lock_in_state(using, ids, int(state), wait=False)}


def cancel(using: str, ids: Sequence[int], origin: Origin) -> set[int]:
    """delayed/ready and dead → cancelled. Return the ids of the cancelled jobs."""
    cancels = (Cancel(job_id, origin.by, origin.reason) for job_id in ids)
    cancelled = transitions.cancel_each(using, cancels, dead=True)
    on_commit.cancelled(using, cancelled)
    return {each.id for each in cancelled}


def postpone(using: str, ids: Sequence[int], later_ms: int, origin: Origin) -> set[int]:
    """delayed/ready → delayed, due `later_ms` after the old due time, or after now for an overdue job.

    Return the ids of the postponed jobs. Raises BadDelay. The mirror is not changed: its entry is too early then, and a
    refused claim corrects it.
    """
    to_when(later_ms / 1000, None)
    d = dialects.get_dialect(using)
    moved = _move(using, ids, DELAYED, f"due_at = {d.plus_ms(f'{d.greatest}(due_at, {d.now})', str(later_ms))}")
    return _record(using, moved, Outcome.RESCHEDULED, origin, later=True)


def run_now(using: str, ids: Sequence[int], origin: Origin) -> set[int]:
    """delayed → ready. Return the ids of the jobs made ready. Jobs that are ready already are not changed."""
    now = dialects.get_dialect(using).now
    moved = _move(using, ids, DELAYED, f"due_at = {now}", f"AND due_at > {now}")
    return _record(using, moved, Outcome.RESCHEDULED, origin)


def retry(using: str, ids: Sequence[int], origin: Origin) -> set[int]:
    """dead → ready. Return the ids of the retried jobs: none if the key of any of the jobs is live again."""
    changes = (
        f"state = {DELAYED}, due_at = {dialects.get_dialect(using).now}, ended_at = NULL, died_at = NULL, failures = 0"
    )
    try:
        with transaction.atomic(using):
            moved = _move(using, ids, DEAD, changes)
    except IntegrityError:
        return set()
    return _record(using, moved, Outcome.RETRIED, origin)


def _move(using: str, ids: Sequence[int], before: int, changes: str, only: str = "") -> Moved:
    d = dialects.get_dialect(using)
    locked = {row.id: row for row in transitions.lock_in_state(using, ids, before, only)}
    if not locked:
        return []
    condition, params = d.among("id", list(locked))
    sql = f"""
        UPDATE delaytasks_job SET {changes} WHERE {condition} AND state = {before}
        RETURNING id, {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    return [(locked[job_id], due_ms, now_ms) for job_id, due_ms, now_ms in dialects.run(using, sql, params)]


def _record(using: str, moved: Moved, outcome: Outcome, origin: Origin, *, later: bool = False) -> set[int]:
    """Write the events; on commit send job_rescheduled and, unless `later`, update the mirror. Return the jobs' ids."""
    events = (Event(row.id, outcome, row.attempt, row.due_ms, now_ms, None, due_ms) for row, due_ms, now_ms in moved)
    transitions.record(using, (event._replace(actor=origin.by, reason=origin.reason) for event in events))
    if not later:
        on_commit.add_to_mirror(using, [row._replace(due_ms=due_ms) for row, due_ms, _ in moved], mark=True)
    for row, _, _ in moved:
        on_commit.send_signal(using, signals.job_rescheduled, row.id)
    return {row.id for row, _, _ in moved}
