"""The public verbs: schedule, cancel, reschedule, run now, retry. Each takes effect with the caller's transaction.

Each is a guarded statement, so at every interleaving with the mover, a reservation or a
finish exactly one side wins, and the other is told so. The mirror hears of it on commit.
"""

import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Literal, NamedTuple, TypeVar

from django.db import IntegrityError, transaction
from django.dispatch import Signal

from . import conf, engine, signals, statements, topics
from .attempt import make_way
from .clock import from_ms
from .conflicts import retried_once
from .exceptions import BadInput, KeyIsLive, NotDead, NotLive, Reserved, UnknownTopic
from .models import Job, Topic
from .places import GONE, Entry, Settlement
from .promises import check_key, to_new_job, to_when
from .states import Outcome, State
from .statements import Event, Live, NewJob, Placed

Delay = timedelta | float | int
OnConflict = Literal["reject", "keep", "replace"]
Answer = TypeVar("Answer")
CHUNK = 500
OVERLAP_MS = 300_000  # beyond the horizon; the feeder reads as far back below its mark
_RACES = 5  # a live job that ends between our statements makes us look again


class CancelResult(enum.StrEnum):
    """What became of a cancel; always the truth at the moment of the statement."""

    CANCELLED = "cancelled"  # it will not run; also if it had been cancelled before
    RUNNING = "running"  # reserved: its handler is at work and was not disturbed
    ALREADY_FINISHED = "already finished"  # it ended before: finished, or dead
    UNKNOWN = "unknown"  # there never was such a job


class Scheduled(NamedTuple):
    created: int
    kept: int
    replaced: int


def schedule(
    topic: str,
    *,
    key: str,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    body: Any = None,
    ttr: Delay | None = None,
    on_conflict: OnConflict = "reject",
    using: str | None = None,
    by: str = "",
) -> Job:
    """Make a promise: the job, live as soon as the caller's transaction commits. job.is_new tells if it was made now.

    delay        timedelta or seconds from now, by the database's clock
    due_at       aware datetime; a past one means now. Exactly one of delay and due_at
    body         JSON, at most MAX_BODY_BYTES
    ttr          timedelta or seconds one attempt may take; None: as the topic's handler says
    on_conflict  for a live job with this topic and key: "reject" raises KeyIsLive, "keep"
                 returns it as it is, "replace" gives it the new due time, body and TTR
    by           the person who asked, for the event of a replacement

    Never touches Redis inside the transaction, never runs anything early. Raises BadInput in
    one of its kinds, KeyIsLive, Reserved (replace, and its handler is running).
    """
    using = engine.alias(using)
    row = to_new_job(topic, key=key, delay=delay, due_at=due_at, body=body, ttr=ttr)
    _check_known(using, topic)
    found = _place(using, [row], _checked_mode(on_conflict), by)
    if found.placed:
        return _as_job(using, row, found.placed[0], is_new=not found.replaced)
    return Job.objects.using(using).get(pk=found.kept[0])


def schedule_many(
    items: Iterable[Mapping[str, Any]],
    *,
    on_conflict: OnConflict = "reject",
    using: str | None = None,
    by: str = "",
) -> Scheduled:
    """Make many promises in one transaction, all or none; how many were created, kept and replaced.

    items   dicts with the arguments of schedule(): topic, key, delay or due_at, body, ttr. It may
            be a generator; it is read in chunks of 500

    Raises what schedule() raises; the message names the item by its position, from 0.
    """
    using, mode = engine.alias(using), _checked_mode(on_conflict)
    if isinstance(items, Sequence):  # can be read again, so a deadlock with another bulk is tried again
        return retried_once(lambda: _schedule_all(using, items, mode, by), using)
    return _schedule_all(using, items, mode, by)


def _schedule_all(using: str, items: Iterable[Mapping[str, Any]], mode: OnConflict, by: str) -> Scheduled:
    created = kept = replaced = 0
    known: set[str] = set()
    with transaction.atomic(using):
        for chunk in _chunks(_checked(using, items, known)):
            found = _place(using, chunk, mode, by)
            replaced += found.replaced
            kept += len(chunk) - found.created - found.replaced
            created += found.created
    return Scheduled(created, kept, replaced)


def _checked(using: str, items: Iterable[Mapping[str, Any]], known: set[str]) -> Iterator[NewJob]:
    for position, item in enumerate(items):
        try:
            row = to_new_job(**item)
            if row.topic not in known:
                _check_known(using, row.topic)
                known.add(row.topic)
        except TypeError as error:
            raise BadInput(f"Item {position}: {error}. It takes topic, key, delay or due_at, body, ttr.") from None
        except BadInput as error:
            raise type(error)(f"Item {position}: {error}") from None
        yield row


def _chunks(rows: Iterator[NewJob]) -> Iterator[list[NewJob]]:
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _check_known(using: str, topic: str) -> None:
    known = topics.known()
    if topic not in known and not Topic.objects.using(using).filter(name=topic).exists():
        raise UnknownTopic(
            f"Topic {topic!r} is unknown: no @handler is registered for it, DELAYTASKS['TOPICS'] does not name it "
            f"and no Topic row exists. Known here: {', '.join(known) or 'none'}."
        )


def _checked_mode(on_conflict: str) -> OnConflict:
    if on_conflict not in ("reject", "keep", "replace"):
        raise BadInput(f"on_conflict is {on_conflict!r}; it is 'reject', 'keep' or 'replace'.")
    return on_conflict


# -- placing rows -------------------------------------------------------------------------------


class _Found(NamedTuple):
    created: int
    placed: list[Placed]  # inserted or replaced
    replaced: int
    kept: list[int]  # ids


def _place(using: str, rows: Sequence[NewJob], on_conflict: OnConflict, by: str) -> _Found:
    for row in rows:
        make_way(using, row.topic, row.key)
    if len(rows) == 1:  # no transaction of our own: one statement is one
        inserted = statements.insert_new(using, rows)
        if inserted:
            return _announced(using, _Found(1, inserted, 0, []))
    return retried_once(lambda: _place_together(using, rows, on_conflict, by), using)


def _place_together(using: str, rows: Sequence[NewJob], on_conflict: OnConflict, by: str) -> _Found:
    waiting = _once_each(rows, on_conflict)
    twice = len(rows) - len(waiting)
    placed: list[Placed] = []
    kept: list[int] = []
    replaced = 0
    with transaction.atomic(using):
        for _ in range(_RACES):
            inserted = statements.insert_new(using, sorted(waiting.values(), key=lambda row: row[:2]))  # one lock order
            placed += inserted
            _drop(waiting, inserted)
            if not waiting:
                break
            live = statements.find_live(using, list(waiting))
            if live and on_conflict == "reject":
                raise _is_live(next(iter(live.values())))
            if live and on_conflict == "replace":
                placed += _replace(using, live, waiting, by)
                replaced += len(live)
            kept += [found.id for found in live.values()] if on_conflict == "keep" else []
            _drop(waiting, live.values())
            if not waiting:
                break
        else:
            topic, key = next(iter(waiting))
            raise KeyIsLive(f"{topic} {key!r} changed {_RACES} times while it was being scheduled; try again.")
        found = _Found(len(placed) - replaced, placed, replaced, kept)
        _announced(using, found)
    return found._replace(replaced=replaced + twice) if on_conflict == "replace" else found


def _once_each(rows: Sequence[NewJob], on_conflict: OnConflict) -> dict[tuple[str, str], NewJob]:
    """By (topic, key): the first of a kind counts, or the last if it is to replace."""
    unique: dict[tuple[str, str], NewJob] = {}
    for row in rows:
        if (row.topic, row.key) not in unique or on_conflict == "replace":
            unique[row.topic, row.key] = row
        elif on_conflict == "reject":
            raise KeyIsLive(f"{row.topic} {row.key!r} is in the list twice.")
    return unique


def _drop(waiting: dict[tuple[str, str], NewJob], done: Iterable[Placed | Live]) -> None:
    for each in done:
        waiting.pop((each.topic, each.key), None)


def _is_live(live: Live) -> KeyIsLive:
    return KeyIsLive(
        f"{live.topic} {live.key!r} is live already: job {live.id}, due at {from_ms(live.due_ms).isoformat()}. "
        "Use on_conflict='keep' or 'replace', or another key."
    )


def _replace(
    using: str, live: Mapping[tuple[str, str], Live], rows: Mapping[tuple[str, str], NewJob], by: str
) -> list[Placed]:
    placed = statements.replace_delayed(using, {seen.id: rows[pair] for pair, seen in live.items()})
    refused = live.keys() - {(p.topic, p.key) for p in placed}
    if refused:
        seen = live[min(refused)]
        raise Reserved(f"{seen.topic} {seen.key!r} (job {seen.id}) cannot be replaced: its handler is running.")
    olds = [(live[p.topic, p.key], p) for p in placed]
    statements.record(
        using,
        [Event(o.id, Outcome.RESCHEDULED, o.attempt, o.due_ms, p.placed_ms, None, p.due_ms, "", by) for o, p in olds],
    )
    return placed


def _announced(using: str, found: _Found) -> _Found:
    entries = [Entry(p.id, p.topic, p.due_ms) for p in found.placed]
    if entries:
        transaction.on_commit(lambda: _enter(using, entries, mark=found.replaced > 0), using=using, robust=True)
    if signals.job_scheduled.receivers:
        for placed in found.placed:
            _send_on_commit(using, signals.job_scheduled, placed.id)
    return found


def _enter(using: str, entries: list[Entry], *, mark: bool) -> None:
    """Tell the mirror; jobs beyond the horizon are rows only, the feeder brings them in. Judged now, at commit."""
    until_ms = engine.now_ms(using) + conf.get().horizon_ms + OVERLAP_MS
    engine.tell(using).add((entry for entry in entries if entry.at_ms <= until_ms), mark=mark)


def _send_on_commit(using: str, signal: Signal, job_id: int) -> None:
    def send() -> None:
        job = Job.objects.using(using).filter(pk=job_id).first()
        if job is not None:
            signal.send_robust(sender=job.topic, job=job)

    if signal.receivers:
        transaction.on_commit(send, using=using, robust=True)


def _as_job(using: str, row: NewJob, placed: Placed, *, is_new: bool) -> Job:
    if not is_new:
        return Job.objects.using(using).get(pk=placed.id)
    job = Job(
        id=placed.id, topic=row.topic, key=row.key, state=State.DELAYED, due_at=from_ms(placed.due_ms),
        ttr_ms=row.ttr_ms, body=json.loads(row.body), created_at=from_ms(placed.placed_ms),
    )  # fmt: skip
    job._state.adding, job._state.db = False, using
    job.is_new = True
    return job


# -- cancel -------------------------------------------------------------------------------------


def cancel(topic: str, *, key: str, using: str | None = None, by: str = "") -> CancelResult:
    """Call a promise off. Inside a transaction the answer is true if that transaction commits.

    A job that is reserved is not disturbed: its handler is running. Never raises for a job that
    is gone; the answer says what was found.
    """
    using = engine.alias(using)
    topics.check_topic(topic), check_key(key)
    return _atomically(using, lambda: _cancel(using, lambda: statements.find_latest(using, topic, key), by))


def cancel_job(job_id: int, *, using: str | None = None, by: str = "") -> CancelResult:
    """cancel() for a job known by its id."""
    using = engine.alias(using)
    return _atomically(using, lambda: _cancel(using, lambda: statements.find_by_id(using, job_id), by))


def _cancel(using: str, find: Callable[[], Live | None], by: str) -> CancelResult:
    for _ in range(_RACES):
        seen = find()
        if seen is None:
            return CancelResult.UNKNOWN
        if seen.state != State.DELAYED:
            return _WHY_NOT_CANCELLED[seen.state]
        for done in statements.cancel_delayed(using, [seen.id]):
            _cancelled(using, seen.topic, done, by)
            return CancelResult.CANCELLED
    return CancelResult.RUNNING  # it was claimed each time, a moment before us


_WHY_NOT_CANCELLED = {
    int(State.RESERVED): CancelResult.RUNNING,
    int(State.CANCELLED): CancelResult.CANCELLED,
    int(State.FINISHED): CancelResult.ALREADY_FINISHED,
    int(State.DEAD): CancelResult.ALREADY_FINISHED,
}


def _cancelled(using: str, topic: str, done: statements.Cancelled, by: str) -> None:
    event = Event(done.id, Outcome.CANCELLED, done.attempt, done.due_ms, done.done_ms, None, None, "", by)
    statements.record(using, [event])
    gone = Settlement(done.id, topic, done.due_ms, GONE)
    transaction.on_commit(lambda: engine.tell(using).settle([gone]), using=using, robust=True)
    _send_on_commit(using, signals.job_cancelled, done.id)


def _atomically(using: str, do: Callable[[], Answer]) -> Answer:
    def whole() -> Answer:
        with transaction.atomic(using):
            return do()

    return retried_once(whole, using)


# -- reschedule, run now, retry -----------------------------------------------------------------


def reschedule(
    topic: str,
    key: str,
    *,
    due_at: datetime | None = None,
    delay: Delay | None = None,
    using: str | None = None,
    by: str = "",
) -> Job:
    """Move a live job to a new due time, earlier or later; the job as it is now.

    due_at   aware; to the millisecond; a past time means now
    delay    timedelta or seconds from now; exactly one of the two

    A job that is overdue already and is moved to now keeps its place in the queue. A job that is reserved is not moved: its handler is running. Never creates a job, never
    changes the attempt count. Raises NotLive, Reserved, NaiveDatetime, BadDelay.
    """
    using = engine.alias(using)
    due_ms, delay_ms = to_when(delay, due_at)
    return _atomically(using, lambda: _move(using, _live(using, topic, key), due_ms, delay_ms, by))


def reschedule_job(
    job_id: int, *, due_at: datetime | None = None, delay: Delay | None = None, using: str | None = None, by: str = ""
) -> Job:
    """reschedule() for a job known by its id."""
    using = engine.alias(using)
    due_ms, delay_ms = to_when(delay, due_at)
    return _atomically(using, lambda: _move(using, _live_by_id(using, job_id), due_ms, delay_ms, by))


def run_now(topic: str, key: str, *, using: str | None = None, by: str = "") -> Job:
    """Make a live job due now; the job as it is now. Raises NotLive, Reserved."""
    using = engine.alias(using)
    return _atomically(using, lambda: _move(using, _live(using, topic, key), None, 0, by))


def run_job_now(job_id: int, *, using: str | None = None, by: str = "") -> Job:
    """run_now() for a job known by its id."""
    using = engine.alias(using)
    return _atomically(using, lambda: _move(using, _live_by_id(using, job_id), None, 0, by))


def _live(using: str, topic: str, key: str) -> Live:
    topics.check_topic(topic), check_key(key)
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


def _move(using: str, seen: Live, due_ms: int | None, delay_ms: int | None, by: str) -> Job:
    locked = statements.lock_delayed(using, seen.id)  # a reserved row is not waited for: its handler may hold it
    if locked is not None:
        seen = locked
        moved = statements.move_delayed(using, seen.id, due_ms=due_ms, delay_ms=delay_ms)
    if locked is None or moved is None:
        raise Reserved(f"{seen.topic} {seen.key!r} (job {seen.id}) cannot be moved: its handler is running.")
    new_ms, now_ms = moved
    statements.record(
        using, [Event(seen.id, Outcome.RESCHEDULED, seen.attempt, seen.due_ms, now_ms, None, new_ms, "", by)]
    )
    transaction.on_commit(lambda: _mirror_move(using, seen, new_ms), using=using, robust=True)
    _send_on_commit(using, signals.job_rescheduled, seen.id)
    return Job.objects.using(using).get(pk=seen.id)


def _mirror_move(using: str, seen: Live, new_ms: int) -> None:
    if new_ms > seen.due_ms:
        engine.tell(using).settle([Settlement(seen.id, seen.topic, seen.due_ms, new_ms)])
    else:
        _enter(using, [Entry(seen.id, seen.topic, new_ms)], mark=True)


def retry_dead(
    topic: str | None = None,
    key: str | None = None,
    *,
    job_id: int | None = None,
    using: str | None = None,
    by: str = "",
) -> Job:
    """Give a dead job another max_attempts tries, from now on; the job as it is now.

    By (topic, key) it is the newest, if that is dead. Raises NotDead; KeyIsLive, which names the live
    job that has taken the key meanwhile.
    """
    using = engine.alias(using)
    return _atomically(using, lambda: _retry(using, _dead(using, topic, key, job_id), by))


def _dead(using: str, topic: str | None, key: str | None, job_id: int | None) -> Live:
    if job_id is not None:
        found = statements.find_by_id(using, job_id)
    elif topic is not None and key is not None:
        topics.check_topic(topic), check_key(key)
        found = statements.find_latest(using, topic, key)
        if found is not None and found.state in (State.DELAYED, State.RESERVED):
            raise KeyIsLive(f"{topic} {key!r} is live again as job {found.id}: a dead one cannot be retried beside it.")
    else:
        raise BadInput("retry_dead takes topic and key, or job_id.")
    if found is None or found.state != State.DEAD:
        what = "unknown" if found is None else State(found.state).word
        raise NotDead(f"Only a dead job can be retried; {job_id or f'{topic} {key!r}'} is {what}.")
    return found


def _retry(using: str, dead: Live, by: str) -> Job:
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
    statements.record(
        using, [Event(dead.id, Outcome.RETRIED, dead.attempt, dead.due_ms, due_ms, None, due_ms, "", by)]
    )
    transaction.on_commit(
        lambda: _enter(using, [Entry(dead.id, dead.topic, due_ms)], mark=True), using=using, robust=True
    )
    _send_on_commit(using, signals.job_rescheduled, dead.id)
    return Job.objects.using(using).get(pk=dead.id)
