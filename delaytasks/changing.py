"""Changing promises: cancel, reschedule, run now, retry. Each takes effect with the caller's transaction.

Each is a guarded statement, so at every interleaving with the mover, a reservation or a
finish exactly one side wins, and the other is told so. The mirror hears of it on commit.
"""

import enum
from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple, TypeVar

from django.db import IntegrityError, transaction

from . import dialect, engine, on_commit, signals, statements
from .conflicts import retried_once
from .exceptions import BadInput, KeyIsLive, MovedMeanwhile, NotDead, NotLive, Reserved
from .models import Job
from .places import Entry
from .promises import Delay, check_actor, check_name, to_when
from .statements import Cancelled, Event, Live
from .states import Outcome, State

Answer = TypeVar("Answer")
When = tuple[int | None, int | None]  # due_ms, or a delay in ms from now by the database's clock


class Who(NamedTuple):
    """Who asked for a change, and why: kept in its event."""

    by: str
    reason: str


_RACES = 5  # a live job that changes between our statements makes us look again


class CancelResult(enum.StrEnum):
    """What became of a cancel; always the truth at the moment of the statement."""

    CANCELLED = "cancelled"  # it will not run; also if it had been cancelled before
    RUNNING = "running"  # reserved: its handler is at work and was not disturbed
    ALREADY_FINISHED = "already finished"  # it ended before: finished, or dead
    UNKNOWN = "unknown"  # there never was such a job


def cancel(topic: str, *, key: str, using: str | None = None, by: str = "", reason: str = "") -> CancelResult:
    """Call a promise off. Inside a transaction the answer is true if that transaction commits.

    by, reason   who asked and why, for the job's event: lines of up to 255 characters

    A job that is reserved is not disturbed: its handler is running. Never raises for a job that
    is gone; the answer says what was found.
    """
    using = engine.alias(using)
    check_name(topic, key)
    return _cancel(
        using,
        Who(by, reason),
        lambda: statements.cancel_live(using, topic, key, actor=by, reason=reason),
        lambda: statements.find_latest(using, topic, key),
    ).answer


def cancel_job(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> CancelResult:
    """cancel() for a job known by its id."""
    return call_off(job_id, using=using, by=by, reason=reason).answer


class CalledOff(NamedTuple):
    """answer: as cancel()'s. mine: whether this call did it; a job that had been cancelled before is not its doing."""

    answer: CancelResult
    mine: bool = False


def call_off(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> CalledOff:
    """cancel_job() for who also has to say whose doing it was."""
    using = engine.alias(using)
    return _cancel(
        using,
        Who(by, reason),
        lambda: statements.cancel_delayed(using, job_id, actor=by, reason=reason),
        lambda: statements.find_by_id(using, job_id),
    )


def _cancel(using: str, who: Who, change: Callable[[], Cancelled | None], find: Callable[[], Live | None]) -> CalledOff:
    if dialect.of(using).writes_in_with:  # no transaction of our own: one statement is one
        _check(who)
        return retried_once(lambda: _called_off(using, change, find), using)
    return _atomically(using, who, lambda _: _called_off(using, change, find))


def _called_off(using: str, change: Callable[[], Cancelled | None], find: Callable[[], Live | None]) -> CalledOff:
    for _ in range(_RACES):
        done = change()
        if done is not None:
            on_commit.remove(using, Entry(done.id, done.topic, done.due_ms))
            on_commit.send(using, signals.job_cancelled, done.id)
            return CalledOff(CancelResult.CANCELLED, mine=True)
        seen = find()
        if seen is None:
            return CalledOff(CancelResult.UNKNOWN)
        if seen.state != State.DELAYED:
            return CalledOff(_WHY_NOT_CANCELLED[seen.state])
    return CalledOff(CancelResult.RUNNING)  # it was claimed each time, a moment before us


_WHY_NOT_CANCELLED = {
    int(State.RESERVED): CancelResult.RUNNING,
    int(State.CANCELLED): CancelResult.CANCELLED,
    int(State.FINISHED): CancelResult.ALREADY_FINISHED,
    int(State.DEAD): CancelResult.ALREADY_FINISHED,
}


def _atomically(using: str, who: Who, do: Callable[[Who], Answer]) -> Answer:
    _check(who)

    def whole() -> Answer:
        with transaction.atomic(using):
            return do(who)

    return retried_once(whole, using)


def _check(who: Who) -> None:
    check_actor(who.by)
    check_actor(who.reason, what="reason")


# -- reschedule, run now, retry -----------------------------------------------------------------


def reschedule(
    topic: str,
    key: str,
    *,
    due_at: datetime | None = None,
    delay: Delay | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> Job:
    """Move a live job to a new due time, earlier or later; the job as it is now.

    due_at   aware; to the millisecond; a past time means now
    delay    timedelta or seconds from now; exactly one of the two

    A job that is overdue already and is moved to now keeps its place in the queue. A job that
    is reserved is not moved: its handler is running. Never creates a job, never changes the
    attempt count. Raises NotLive, Reserved, NaiveDatetime, BadDelay.
    """
    using = engine.alias(using)
    due_ms, delay_ms = to_when(delay, due_at)
    return _atomically(
        using, Who(by, reason), lambda who: _move(using, _live(using, topic, key), lambda _: (due_ms, delay_ms), who)
    )


def reschedule_job(
    job_id: int,
    *,
    due_at: datetime | None = None,
    delay: Delay | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> Job:
    """reschedule() for a job known by its id."""
    using = engine.alias(using)
    due_ms, delay_ms = to_when(delay, due_at)
    return _atomically(
        using, Who(by, reason), lambda who: _move(using, _live_by_id(using, job_id), lambda _: (due_ms, delay_ms), who)
    )


def postpone_job(
    job_id: int,
    later: Delay,
    *,
    seen_due_ms: int | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> Job:
    """Move a live job, known by its id, to `later` after its due time, or after now if that has passed.

    later         timedelta or seconds
    seen_due_ms   only if it is still due then: whoever asks twice postpones once

    Raises NotLive, Reserved, MovedMeanwhile, BadDelay.
    """
    using = engine.alias(using)
    _, later_ms = to_when(later, None)

    def later_than(held: Live) -> When:
        if seen_due_ms not in (None, held.due_ms):
            raise MovedMeanwhile(f"{held.topic} {held.key!r} (job {held.id}) was moved meanwhile.")
        return max(held.due_ms, engine.now_ms(using)) + (later_ms or 0), None

    return _atomically(using, Who(by, reason), lambda who: _move(using, _live_by_id(using, job_id), later_than, who))


def run_now(topic: str, key: str, *, using: str | None = None, by: str = "", reason: str = "") -> Job:
    """Make a live job due now; the job as it is now. Raises NotLive, Reserved."""
    using = engine.alias(using)
    return _atomically(using, Who(by, reason), lambda who: _move(using, _live(using, topic, key), _at_once, who))


def run_job_now(job_id: int, *, using: str | None = None, by: str = "", reason: str = "") -> Job:
    """run_now() for a job known by its id."""
    using = engine.alias(using)
    return _atomically(using, Who(by, reason), lambda who: _move(using, _live_by_id(using, job_id), _at_once, who))


def _at_once(_: Live) -> When:
    return None, 0


def _live(using: str, topic: str, key: str) -> Live:
    check_name(topic, key)
    found = statements.find_live(using, [(topic, key)]).get((topic, key))
    if found is None:
        raise NotLive(f"{topic} {key!r} is not live: it finished, was cancelled, is dead or never was.")
    return found


def _live_by_id(using: str, job_id: int) -> Live:
    found = statements.find_by_id(using, job_id)
    if found is None or found.state not in (State.DELAYED, State.RESERVED):
        what = "unknown" if found is None else State(found.state).word
        raise NotLive(f"Job {job_id} is not live: it is {what}.")
    return found


def _move(using: str, seen: Live, when: Callable[[Live], When], who: Who) -> Job:
    """`when` is asked once the row is locked: nobody else moves it in between."""
    locked = statements.lock_delayed(using, seen.id)  # a reserved row is not waited for: its handler may hold it
    if locked is not None:
        seen = locked
        due_ms, delay_ms = when(locked)
        moved = statements.move_delayed(using, seen.id, due_ms=due_ms, delay_ms=delay_ms)
    if locked is None or moved is None:
        raise Reserved(f"{seen.topic} {seen.key!r} (job {seen.id}) cannot be moved: its handler is running.")
    new_ms, now_ms = moved
    event = Event(seen.id, Outcome.RESCHEDULED, seen.attempt, seen.due_ms, now_ms, None, new_ms)
    statements.record(using, [event._replace(actor=who.by, reason=who.reason)])
    if new_ms <= seen.due_ms:  # later is not told: the entry is early then, and its refused claim puts it right
        on_commit.enter(using, [Entry(seen.id, seen.topic, new_ms)], mark=True)
    on_commit.send(using, signals.job_rescheduled, seen.id)
    return Job.objects.using(using).get(pk=seen.id)


def retry_dead(
    topic: str | None = None,
    key: str | None = None,
    *,
    job_id: int | None = None,
    using: str | None = None,
    by: str = "",
    reason: str = "",
) -> Job:
    """Give a dead job another max_attempts tries, from now on; the job as it is now.

    By (topic, key) it is the newest, if that is dead. Raises NotDead; KeyIsLive, which names the live
    job that has taken the key meanwhile.
    """
    using = engine.alias(using)
    return _atomically(using, Who(by, reason), lambda who: _retry(using, _dead(using, topic, key, job_id), who))


def _dead(using: str, topic: str | None, key: str | None, job_id: int | None) -> Live:
    if job_id is not None:
        found = statements.find_by_id(using, job_id)
    elif topic is not None and key is not None:
        check_name(topic, key)
        found = statements.find_latest(using, topic, key)
        if found is not None and found.state in (State.DELAYED, State.RESERVED):
            raise KeyIsLive(f"{topic} {key!r} is live again as job {found.id}: a dead one cannot be retried beside it.")
    else:
        raise BadInput("retry_dead takes topic and key, or job_id.")
    if found is None or found.state != State.DEAD:
        what = "unknown" if found is None else State(found.state).word
        raise NotDead(f"Only a dead job can be retried; {job_id or f'{topic} {key!r}'} is {what}.")
    return found


def _retry(using: str, dead: Live, who: Who) -> Job:
    try:
        with transaction.atomic(using):
            due_ms = statements.retry_if_dead(using, dead.id)
    except IntegrityError:
        live = statements.find_live(using, [(dead.topic, dead.key)]).get((dead.topic, dead.key))
        raise KeyIsLive(
            f"{dead.topic} {dead.key!r} is live again as job {live.id if live else '?'}: "
            f"the dead job {dead.id} cannot be retried beside it."
        ) from None
    if due_ms is None:
        raise NotDead(f"Job {dead.id} is not dead any more.")
    event = Event(dead.id, Outcome.RETRIED, dead.attempt, dead.due_ms, due_ms, None, due_ms)
    statements.record(using, [event._replace(actor=who.by, reason=who.reason)])
    on_commit.enter(using, [Entry(dead.id, dead.topic, due_ms)], mark=True)
    on_commit.send(using, signals.job_rescheduled, dead.id)
    return Job.objects.using(using).get(pk=dead.id)
