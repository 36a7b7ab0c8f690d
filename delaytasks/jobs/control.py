"""Cancel, reschedule, run now and retry single jobs. The changes take effect with the caller's transaction.

Each change is a guarded statement. If a claim, a finish or another change of the same job happens at the same time,
exactly one of the two succeeds, and the return value or an exception reports it. The mirror is updated on commit.
"""

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args, overload

from django.db import IntegrityError, transaction

from .. import databases, signals
from ..db import dialects, transitions
from ..db.retries import in_transaction, retry_conflicts
from ..db.transitions import Cancelled, Event, JobRow
from ..exceptions import BadInput, KeyIsLive, MovedMeanwhile, NotDead, NotLive, Reserved, short_repr
from ..outcomes import CANCEL_RESULTS, NOT_DELAYED, CancelResult, Result
from ..querysets import get_job
from ..states import Outcome, State, shown
from . import next_runs, on_commit, series
from .inputs import Delay, check_actor, check_known, check_name, to_when
from .storage import RACES

if TYPE_CHECKING:
    from ..models import Job

WhenRunning = Literal["leave", "fence"]
When = tuple[int | None, int | None]  # (due_ms, None), or (None, delay in ms from now by the database's clock)
NOW: When = (None, 0)


class Named(NamedTuple):
    """A job by topic and key: the live one, otherwise the newest."""

    topic: str
    key: str

    def find(self, using: str) -> JobRow | None:
        return transitions.find_latest(using, self.topic, self.key)

    def find_live(self, using: str) -> JobRow:
        row = transitions.find_live(using, [self]).get(self)
        if row is None:
            raise NotLive(
                f"{self} is not live: it is finished, cancelled, dead or unknown. "
                "Jobs of a series have keys of their own."
            )
        return row

    def cancel(self, using: str, origin: "Origin") -> Cancelled | None:
        return transitions.cancel_live(using, self.topic, self.key, actor=origin.by, reason=origin.reason)

    def end_series(self, using: str, origin: "Origin") -> Result:
        return series.cancel(using, self.topic, self.key, by=origin.by, reason=origin.reason)

    def __str__(self) -> str:
        return f"{self.topic} {self.key!r}"


class Numbered(NamedTuple):
    """A job by its id."""

    id: int

    def find(self, using: str) -> JobRow | None:
        return transitions.find_by_id(using, self.id)

    def find_live(self, using: str) -> JobRow:
        row = self.find(using)
        if row is None or row.state not in (State.DELAYED, State.RESERVED):
            raise NotLive(f"{self} is not live: it is {'unknown' if row is None else State(row.state).word}.")
        return row

    def cancel(self, using: str, origin: "Origin") -> Cancelled | None:
        return transitions.cancel_delayed(using, self.id, actor=origin.by, reason=origin.reason)

    def end_series(self, using: str, origin: "Origin") -> Result:
        return Result.NOT_FOUND  # the series of a job goes on

    def __str__(self) -> str:
        return f"Job {self.id}"


Target = Named | Numbered


def _named(topic: str, key: str) -> Named:
    return Named(*check_name(topic, key))


class Origin(NamedTuple):
    """Who requested a change, and why: stored in its event."""

    by: str
    reason: str
    running: WhenRunning = "leave"  # what a cancel does with a running job


def cancel(
    topic: str,
    key: str,
    *,
    running: WhenRunning = "leave",
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> CancelResult:
    """Cancel a job. Return the result.

    topic, key   str, as they were scheduled
    running      what to do if the handler is running: "leave" leaves it alone and returns "running"; "fence" cancels
                 the job nevertheless, if its handler is atomic: the end of the attempt is refused and its effects
                 in this database are rolled back. Lock your own row first, as the handler does, or the two may
                 wait for each other. A handler that does this to its own job gets the answer "running"
    using        str, a database alias; None: the router's database for writes
    by, reason   str: who requested it and why, stored in the job's event; each one line, up to 255 characters

    Returns a CancelResult, which is a str: "cancelled", "running", "already finished" or "unknown".
    In a transaction the answer holds if the transaction commits.

    If the running job was scheduled again (on_conflict="again"), that next run is withdrawn; the answer is "running".

    If the key is that of a series (schedule() with period, cron or rrule), the series ends: its waiting jobs are
    cancelled, and no further jobs are made. "running" then means that one of its jobs is running and continues. If a
    single job with the same key is live too, only that one is cancelled; another call ends the series.

    Without running="fence", a job whose handler is running is never disturbed. Never raises for a job that has
    ended. A dead job is cancelled too, so that nobody can retry it. A job can also be cancelled if its topic
    no longer has a handler.

    Raises UnknownTopic (the job does not exist, and no handler, setting or Topic row has this topic's
    name), BadTopic, BadKey, BadInput.
    """
    using, target, origin = databases.alias(using), _named(topic, key), Origin(by, reason, running)
    if running not in get_args(WhenRunning):
        raise BadInput(f"running is {running!r}; use 'leave' or 'fence'.")
    result = _cancel(using, target, origin)
    if result in (Result.NOT_FOUND, Result.ALREADY_FINISHED, Result.ALREADY_CANCELLED):
        ended = target.end_series(using, origin)
        result = result if ended is Result.NOT_FOUND else ended
    if result is Result.NOT_FOUND:  # only then, because usually the job exists and one statement is enough
        check_known(using, target.topic)
    return CANCEL_RESULTS[result]


def cancel_job(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> CancelResult:
    """Cancel a job by its id; otherwise as cancel()."""
    return CANCEL_RESULTS[cancel_by_id(job_id, using=using, by=by, reason=reason)]


def cancel_by_id(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> Result:
    """Cancel a job by its id. Return CANCELLED if this call did it, ALREADY_CANCELLED if an earlier one did."""
    return _cancel(databases.alias(using), Numbered(job_id), Origin(by, reason))


def _cancel(using: str, target: Target, origin: Origin) -> Result:
    _check(origin)
    if dialects.get_dialect(using).writes_in_with:  # one statement needs no transaction of our own
        return retry_conflicts(lambda: _try_cancel(using, target, origin), using)
    return in_transaction(using, lambda: _try_cancel(using, target, origin))


def _try_cancel(using: str, target: Target, origin: Origin) -> Result:
    for _ in range(RACES):
        cancelled = target.cancel(using, origin)
        if cancelled is not None:
            on_commit.cancelled(using, [cancelled])
            return Result.CANCELLED
        row = target.find(using)
        if row is None:
            return Result.NOT_FOUND
        if row.state == State.DEAD:
            if transitions.cancel_dead(using, row.id, actor=origin.by, reason=origin.reason):
                on_commit.send_signal(using, signals.job_cancelled, row.id)
                ended = target.end_series(using, origin)
                return Result.RUNNING if ended is Result.RUNNING else Result.CANCELLED
        elif row.state == State.RESERVED and origin.running == "fence" and not next_runs.runs_here(using, row.id):
            fenced = transitions.fence(using, row.id, actor=origin.by, reason=origin.reason)
            now = target.find(using) if fenced is None else None
            if now is not None and (now.state, now.attempt) == (row.state, row.attempt):
                next_runs.withdraw(using, [row.id], by=origin.by, reason=origin.reason)
                return Result.RUNNING  # its handler is not atomic
            if fenced is not None:
                on_commit.send_signal(using, signals.job_cancelled, row.id)
                return Result.CANCELLED
        elif row.state == State.RESERVED and row.again:
            if next_runs.withdraw(using, [row.id], by=origin.by, reason=origin.reason):
                return Result.RUNNING
        elif row.state != State.DELAYED:
            return NOT_DELAYED[State(row.state)]
    return Result.RUNNING  # each time, the job was claimed just before our UPDATE and free again before our SELECT


def _check(origin: Origin) -> None:
    check_actor(origin.by)
    check_actor(origin.reason, what="reason")


# -- reschedule, run now, retry -----------------------------------------------------------------


def reschedule(
    topic: str,
    key: str,
    *,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> "Job":
    """Move a live job to an earlier or later due time. Return its row.

    topic, key   str, as they were scheduled; of a series, the key of one of its jobs
    delay        timedelta, or seconds as int or float, from now by the database's clock
    due_at       aware datetime, to the millisecond; a past one means now. Give delay or due_at, not both
    using        str, a database alias; None: the router's database for writes
    by, reason   str: who requested it and why, stored in the job's event; each one line, up to 255 characters

    Takes effect with the caller's transaction. An overdue job that is moved to now keeps its due time, and
    with it its place in the queue. Never moves a job whose handler is running, never creates a job, never changes
    the attempt count.

    Raises NotLive (finished, cancelled, dead or unknown), Reserved (its handler is running),
    NaiveDatetime, BadDelay, BadTopic, BadKey, BadInput.
    """
    when, target = to_when(delay, due_at), _named(topic, key)
    return _move(databases.alias(using), target, lambda _: when, Origin(by, reason))


def reschedule_job(
    job_id: int,
    *,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> "Job":
    """Reschedule a job by its id; otherwise as reschedule()."""
    when = to_when(delay, due_at)
    return _move(databases.alias(using), Numbered(job_id), lambda _: when, Origin(by, reason))


def postpone_job(
    job_id: int,
    later: Delay,
    *,
    seen_due_ms: int | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> "Job":
    """Postpone a live job by `later`. Return its row.

    job_id        int, the primary key of the row
    later         timedelta or seconds, added to the due time, or to the current time if the job is overdue
    seen_due_ms   the due time that the user saw, in ms since 1970. If the job has another due time, raise
                  MovedMeanwhile, so that a repeated request postpones the job only once. None: do not check

    Raises NotLive, Reserved, MovedMeanwhile, BadDelay.
    """
    using = databases.alias(using)
    _, later_ms = to_when(later, None)

    def postponed(row: JobRow) -> When:
        if seen_due_ms not in (None, row.due_ms):
            raise MovedMeanwhile(f"{row.topic} {row.key!r} (job {row.id}) was moved meanwhile.")
        return max(row.due_ms, databases.now_ms(using)) + (later_ms or 0), None

    return _move(using, Numbered(job_id), postponed, Origin(by, reason))


def run_now(topic: str, key: str, *, using: str | None = None, by: str = "", reason: str = "") -> "Job":
    """Make a live job due now. Return its row.

    topic, key   str, as they were scheduled; of a series, the key of one of its jobs
    using        str, a database alias; None: the router's database for writes
    by, reason   str: who requested it and why, stored in the job's event; each one line, up to 255 characters

    Takes effect with the caller's transaction; a worker runs the job. An overdue job keeps its due time,
    and with it its place in the queue. Never runs the handler here, never creates a job, never changes the
    attempt count.

    Raises NotLive (finished, cancelled, dead or unknown), Reserved (its handler is running), BadTopic,
    BadKey, BadInput.
    """
    return _move(databases.alias(using), _named(topic, key), lambda _: NOW, Origin(by, reason))


def run_job_now(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> "Job":
    """Make a job due now by its id; otherwise as run_now()."""
    return _move(databases.alias(using), Numbered(job_id), lambda _: NOW, Origin(by, reason))


def _move(using: str, target: Target, new_due: Callable[[JobRow], When], origin: Origin) -> "Job":
    """Lock the live job and move it, in a transaction. Return its row. Raises NotLive, Reserved.

    new_due   called with the locked row; returns the new due time. Because of the lock no other transaction moves the
              job in between
    """
    _check(origin)
    return in_transaction(using, lambda: _move_and_record(using, target, new_due, origin))


def _move_and_record(using: str, target: Target, new_due: Callable[[JobRow], When], origin: Origin) -> "Job":
    row, (new_ms, now_ms) = _move_delayed(using, target, new_due)
    event = Event(row.id, Outcome.RESCHEDULED, row.attempt, row.due_ms, now_ms, None, new_ms)
    transitions.record(using, [event._replace(actor=origin.by, reason=origin.reason)])
    # A postponement does not change the mirror: the entry is too early then, and a refused claim corrects it.
    if new_ms <= row.due_ms:
        on_commit.add_to_mirror(using, [row._replace(due_ms=new_ms)], mark=True)
    on_commit.send_signal(using, signals.job_rescheduled, row.id)
    return get_job(using, row.id)


def _move_delayed(using: str, target: Target, new_due: Callable[[JobRow], When]) -> tuple[JobRow, tuple[int, int]]:
    """Return the locked row as it was, and (new due time, time of the statement). Raises Reserved and NotLive."""
    for number in range(RACES):
        row = target.find_live(using)
        # This never waits for a reserved row, which its handler may have locked.
        locked = transitions.lock_delayed(using, row.id)
        if locked is not None:
            due_ms, delay_ms = new_due(locked)
            moved = transitions.move_delayed(using, row.id, due_ms=due_ms, delay_ms=delay_ms)
            if moved is not None:
                return locked, moved
        elif row.state == State.RESERVED and number:  # not at once: its handler may have just scheduled the key again
            break
    raise Reserved(f"{row.topic} {row.key!r} (job {row.id}) cannot be moved: its handler is running.")


@overload
def retry_dead(topic: str, key: str, *, using: str | None = None, by: str = "", reason: str = "") -> "Job": ...
@overload
def retry_dead(*, job_id: int, using: str | None = None, by: str = "", reason: str = "") -> "Job": ...
def retry_dead(
    topic: str | None = None,
    key: str | None = None,
    *,
    job_id: int | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> "Job":
    """Make a dead job ready again, with its failures at 0. Return its row.

    topic, key   str, as they were scheduled: the newest job with this name must be dead
    job_id       int, instead of topic and key: the primary key of the row
    using        str, a database alias; None: the router's database for writes
    by, reason   str: who requested it and why, stored in the job's event; each one line, up to 255 characters

    Takes effect with the caller's transaction. The job keeps its body, its events and its attempt count,
    which never decreases. It may fail max_attempts times before it is dead again. Never creates a job.

    Raises NotDead; KeyIsLive, which names the live job that now has the key; BadTopic, BadKey, BadInput.
    """
    using, origin = databases.alias(using), Origin(by, reason)
    _check(origin)
    return in_transaction(using, lambda: _retry(using, _find_dead(using, topic, key, job_id), origin))


def _find_dead(using: str, topic: str | None, key: str | None, job_id: int | None) -> JobRow:
    if topic is None and key is None and job_id is not None:
        row = transitions.find_by_id(using, _check_id(job_id))
    elif topic is not None and key is not None and job_id is None:
        topic, key = check_name(topic, key)
        row = transitions.find_latest(using, topic, key)
        if row is not None and row.state in (State.DELAYED, State.RESERVED):
            raise KeyIsLive(f"{topic} {key!r} is live again as job {row.id}: a dead job cannot be retried beside it.")
    else:
        raise BadInput("retry_dead takes topic and key, or job_id.")
    if row is None or row.state != State.DEAD:
        now_ms = databases.now_ms(using)
        state = "unknown" if row is None else shown(row.state, due_ms=row.due_ms, now_ms=now_ms).word
        raise NotDead(f"Only a dead job can be retried; {job_id or f'{topic} {key!r}'} is {state}.")
    return row


def _check_id(job_id: object) -> int:
    """Return `job_id`, an int or its text, if it can be the id of a job. Raises BadInput."""
    text = str(job_id)
    if not (text.isdecimal() and len(text) < 20 and 0 < int(text) < 2**63):
        raise BadInput(f"job_id is {short_repr(job_id)}: give the id of a job, an int.")
    return int(text)


def _retry(using: str, dead: JobRow, origin: Origin) -> "Job":
    try:
        with transaction.atomic(using):
            due_ms = transitions.retry_if_dead(using, dead.id)
    except IntegrityError:
        live = transitions.find_live(using, [(dead.topic, dead.key)]).get((dead.topic, dead.key))
        raise KeyIsLive(
            f"{dead.topic} {dead.key!r} is live again as job {live.id if live else '?'}: "
            f"the dead job {dead.id} cannot be retried beside it."
        ) from None
    if due_ms is None:
        raise NotDead(f"Job {dead.id} is no longer dead.")
    event = Event(dead.id, Outcome.RETRIED, dead.attempt, dead.due_ms, due_ms, None, due_ms)
    transitions.record(using, [event._replace(actor=origin.by, reason=origin.reason)])
    on_commit.stored(using, [dead._replace(due_ms=due_ms)], signals.job_rescheduled, mark=True)
    return get_job(using, dead.id)
