"""Store the rows of new jobs: insert them, and resolve conflicts with live jobs of the same topic and key.

schedule.py checks the arguments; this module is called with rows. The mirror is updated on commit.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import itemgetter
from typing import Literal, NamedTuple

from ..clock import rfc3339_of
from ..db import transitions
from ..db.retries import in_transaction
from ..db.transitions import Event, JobRow, NewJob, StoredJob
from ..exceptions import KeyIsLive, Reserved
from ..states import Outcome, State
from . import audit_log, next_runs, on_commit

OnConflict = Literal["reject", "keep", "replace", "again"]
Pair = tuple[str, str]  # topic and key
RACES = 5  # tries: the live job may change between two of our statements
_TOPIC_AND_KEY = itemgetter(0, 1)
_reason: ContextVar[str] = ContextVar("delaytasks_reason", default="")


class StoreResult(NamedTuple):
    """The result of storing rows: the numbers of jobs by outcome, and the jobs."""

    created: int
    stored: list[StoredJob]  # inserted or replaced
    replaced: int
    kept: list[int]  # ids; also those of running jobs that run again
    ids: Mapping[Pair, int]  # by topic and key, of all these jobs
    again: Sequence[int] = ()  # ids of the running jobs that run again


def store(using: str, row: NewJob, on_conflict: OnConflict, by: str) -> StoreResult:
    """Insert, keep or replace one row."""
    own = _finish_own(using, [row], on_conflict)
    if not by:  # a single statement needs no transaction
        inserted = transitions.insert_new(using, [row])
        if inserted:
            on_commit.stored(using, inserted)
            return StoreResult(1, inserted, 0, [], {})
    return in_transaction(using, lambda: _store_all(using, [row], on_conflict, by, own=own))


def _finish_own(using: str, rows: Iterable[NewJob], on_conflict: OnConflict) -> set[Pair]:
    """If the calling handler schedules the key of its own job, finish that job. Return the topics and keys.

    With "again" nothing is finished: the next run is stored with the running job instead.
    """
    if on_conflict == "again":
        return set()
    return {(row.topic, row.key) for row in rows if next_runs.finish_own(using, row.topic, row.key)}


def store_many(
    using: str, rows: Sequence[NewJob], on_conflict: OnConflict, by: str, meanwhile: Callable[[], None] | None
) -> StoreResult:
    """Insert, keep or replace the rows, in the caller's transaction.

    meanwhile   a function that is called while the database inserts the rows
    """
    return _store_all(using, rows, on_conflict, by, meanwhile, _finish_own(using, rows, on_conflict))


def _store_all(
    using: str,
    rows: Sequence[NewJob],
    on_conflict: OnConflict,
    by: str,
    meanwhile: Callable[[], None] | None = None,
    own: Collection[Pair] = (),
) -> StoreResult:
    """Do the same as store_many().

    own   the topics and keys of jobs that the calling handler has just finished. If such a job had been scheduled
          again, its next run is live already; it gets the new values, and the earlier of both due times
    """
    remaining = _deduplicate(rows, on_conflict)
    duplicates = len(rows) - len(remaining)
    last = {(row.topic, row.key): row for row in rows}
    stored: list[StoredJob] = []
    kept: list[int] = []
    ids: dict[Pair, int] = {}
    run_again: list[int] = []
    replaced = 0
    for _ in range(RACES):
        one_lock_order = sorted(remaining.values(), key=_TOPIC_AND_KEY)
        inserted = transitions.insert_new(using, one_lock_order, meanwhile)
        stored += inserted
        _record_scheduled(using, inserted, by)
        if len(inserted) == len(remaining):
            break
        _drop(remaining, inserted)
        live = transitions.find_live(using, list(remaining))
        own_live = {pair: row for pair, row in live.items() if pair in own and on_conflict != "keep"}
        others = {pair: row for pair, row in live.items() if pair not in own_live}
        if others and on_conflict == "reject":
            raise _key_is_live(next(iter(others.values())))
        if own_live:
            done = _replace(using, own_live, remaining, by, earlier=True)
            stored, replaced, own_live = stored + done, replaced + len(done), _with_ids(own_live, done)
        if others and on_conflict == "replace":
            done = _replace(using, others, remaining, by)
            stored, replaced, others = stored + done, replaced + len(done), _with_ids(others, done)
        if others and on_conflict == "again":
            waiting, running = next_runs.store_next_runs(using, others, last, by)
            run_again += running
            kept += [*waiting, *running]
            others = {pair: row for pair, row in others.items() if row.id in (*waiting, *running)}
        live = own_live | others
        kept += [row.id for row in others.values()] if on_conflict == "keep" else []
        ids |= {pair: row.id for pair, row in live.items()}
        _drop(remaining, live.values())
        if not remaining:
            break
    else:
        raise changed_too_often(*next(iter(remaining)))
    ids |= {(row.topic, row.key): row.id for row in stored}
    result = StoreResult(len(stored) - replaced, stored, replaced, kept, ids, run_again)
    on_commit.stored(using, stored, mark=replaced > 0)
    return result._replace(replaced=replaced + duplicates) if on_conflict == "replace" else result


def changed_too_often(topic: str, key: str) -> KeyIsLive:
    """Return the exception for a job that changed each time between two statements."""
    error = KeyIsLive(f"{topic} {key!r} changed {RACES} times while it was being scheduled; try again.")
    error.may_pass = True
    return error


@contextmanager
def scheduled_because(reason: str) -> Iterator[None]:
    """Store this reason in the SCHEDULED event of each job that is scheduled with `by` inside the block."""
    token = _reason.set(reason)
    try:
        yield
    finally:
        _reason.reset(token)


def _record_scheduled(using: str, inserted: Sequence[StoredJob], by: str) -> None:
    """Record who scheduled the jobs. Write no event if `by` is empty, because created_at has the time."""
    if by:
        transitions.record(
            using,
            [
                Event(s.id, Outcome.SCHEDULED, 0, s.due_ms, s.stored_ms, None, s.due_ms, "", by, "", _reason.get())
                for s in inserted
            ],
        )


def _deduplicate(rows: Sequence[NewJob], on_conflict: OnConflict) -> dict[Pair, NewJob]:
    """Return the rows by (topic, key). Of duplicates keep the last row with "replace", otherwise the first one."""
    unique: dict[Pair, NewJob] = {}
    for row in rows:
        if (row.topic, row.key) not in unique or on_conflict == "replace":
            unique[row.topic, row.key] = row
        elif on_conflict == "reject":
            raise KeyIsLive(f"{row.topic} {row.key!r} is in the list twice.")
    return unique


def _with_ids(live: Mapping[Pair, JobRow], done: Iterable[StoredJob]) -> dict[Pair, JobRow]:
    ids = {each.id for each in done}
    return {pair: row for pair, row in live.items() if row.id in ids}


def _drop(remaining: dict[Pair, NewJob], done: Iterable[StoredJob | JobRow]) -> None:
    for row in done:
        remaining.pop((row.topic, row.key), None)


def _key_is_live(live: JobRow) -> KeyIsLive:
    return KeyIsLive(f"{describe_live(live)} Use on_conflict='keep', 'replace' or 'again', or another key.")


def describe_live(live: JobRow) -> str:
    """Return the sentence that names a live job."""
    due_at = rfc3339_of(live.due_ms)
    return f"{live.topic} {live.key!r} is live already: job {live.id}, due at {due_at}."


def _replace(
    using: str, live: Mapping[Pair, JobRow], rows: Mapping[Pair, NewJob], by: str, *, earlier: bool = False
) -> list[StoredJob]:
    """Replace the live jobs. Return those that were replaced: others have ended, or wait again, since they were read.

    earlier   a job that is due earlier keeps its due time

    Raises Reserved if one of them is running.
    """
    before = audit_log.before_replace(using, [row.id for row in live.values()]) if by else None
    stored = transitions.replace_delayed(using, {row.id: rows[pair] for pair, row in live.items()}, earlier=earlier)
    refused = live.keys() - {(s.topic, s.key) for s in stored}
    now = transitions.find_live(using, sorted(refused)) if refused else {}
    if running := [pair for pair, row in now.items() if row.state == State.RESERVED]:
        row = now[min(running)]
        raise Reserved(f"{row.topic} {row.key!r} (job {row.id}) cannot be replaced: its handler is running.")
    pairs = [(live[s.topic, s.key], s) for s in stored]
    transitions.record(
        using,
        [Event(o.id, Outcome.RESCHEDULED, o.attempt, o.due_ms, s.stored_ms, None, s.due_ms, "", by) for o, s in pairs],
    )
    if before is not None:
        audit_log.record_replaced(using, before, [(s, rows[s.topic, s.key]) for s in stored], by)
    return stored
