"""Moving many jobs at once: what changing.py does to one, done to each of them that is in the state it leaves.

They are locked in the order of their ids, moved by one statement, and have one event each; the mirror gets one
message on commit. Why a job was not moved is not said here: whoever asks looks at each of those by itself (bulk.py).
All of it runs in the caller's transaction.
"""

from collections.abc import Sequence

from django.db import IntegrityError, transaction

from . import dialect, on_commit, signals, statements
from .changing import Who
from .places import Entry
from .promises import to_when
from .statements import Event, Live
from .states import Outcome, State

DELAYED, CANCELLED, DEAD = int(State.DELAYED), int(State.CANCELLED), int(State.DEAD)
Moved = list[tuple[Live, int, int]]  # as it was, due ms now, and when that was


def free(using: str, ids: Sequence[int], state: State) -> set[int]:
    """Those of the jobs that are in this state and that nobody else has locked; now they are, until the end."""
    return {live.id for live in statements.lock_in_state(using, ids, int(state), wait=False)}


def cancel(using: str, ids: Sequence[int], who: Who) -> set[int]:
    """delayed/ready → cancelled; those that were."""
    moved = _move(using, ids, DELAYED, f"state = {CANCELLED}, ended_at = {dialect.of(using).now}")
    events = (Event(was.id, Outcome.CANCELLED, was.attempt, due_ms, now_ms) for was, due_ms, now_ms in moved)
    statements.record(using, (event._replace(actor=who.by, reason=who.reason) for event in events))
    on_commit.remove(using, *(Entry(was.id, was.topic, was.due_ms) for was, _, _ in moved))
    return _told(using, moved, signals.job_cancelled)


def postpone(using: str, ids: Sequence[int], later_ms: int, who: Who) -> set[int]:
    """delayed/ready → delayed, due `later_ms` after the due time, or after now if that has passed; those that were.

    The mirror is not told: its entry is early then, and its refused claim puts it right. Raises BadDelay.
    """
    to_when(later_ms / 1000, None)
    d = dialect.of(using)
    moved = _move(using, ids, DELAYED, f"due_at = {d.plus_ms(f'{d.greatest}(due_at, {d.now})', str(later_ms))}")
    _record(using, moved, Outcome.RESCHEDULED, who)
    return _told(using, moved, signals.job_rescheduled)


def run_now(using: str, ids: Sequence[int], who: Who) -> set[int]:
    """delayed → ready; those that were. What is ready already is left where it is in the queue."""
    now = dialect.of(using).now
    moved = _move(using, ids, DELAYED, f"due_at = {now}", f"AND due_at > {now}")
    _record(using, moved, Outcome.RESCHEDULED, who)
    _enter(using, moved)
    return _told(using, moved, signals.job_rescheduled)


def retry(using: str, ids: Sequence[int], who: Who) -> set[int]:
    """dead → ready; those that were. None of them if the key of one is live again."""
    again = f"state = {DELAYED}, due_at = {dialect.of(using).now}, ended_at = NULL, died_at = NULL, failures = 0"
    try:
        with transaction.atomic(using):
            moved = _move(using, ids, DEAD, again)
    except IntegrityError:
        return set()
    _record(using, moved, Outcome.RETRIED, who)
    _enter(using, moved)
    return _told(using, moved, signals.job_rescheduled)


def _move(using: str, ids: Sequence[int], before: int, change: str, only: str = "") -> Moved:
    d = dialect.of(using)
    held = {live.id: live for live in statements.lock_in_state(using, ids, before, only)}
    if not held:
        return []
    sql = f"""
        UPDATE delaytasks_job SET {change} WHERE id IN ({", ".join(["%s"] * len(held))}) AND state = {before}
        RETURNING id, {d.to_ms("due_at")}, {d.to_ms(d.now)}"""
    with dialect.cursor(using) as cursor:
        cursor.execute(sql, list(held))
        return [(held[job_id], due_ms, now_ms) for job_id, due_ms, now_ms in cursor.fetchall()]


def _record(using: str, moved: Moved, outcome: Outcome, who: Who) -> None:
    events = (Event(was.id, outcome, was.attempt, was.due_ms, now_ms, None, due_ms) for was, due_ms, now_ms in moved)
    statements.record(using, (event._replace(actor=who.by, reason=who.reason) for event in events))


def _enter(using: str, moved: Moved) -> None:
    on_commit.enter(using, [Entry(was.id, was.topic, due_ms) for was, due_ms, _ in moved], mark=True)


def _told(using: str, moved: Moved, signal: signals.Signal) -> set[int]:
    for was, _, _ in moved:
        on_commit.send(using, signal, was.id)
    return {was.id for was, _, _ in moved}
