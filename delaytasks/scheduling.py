"""Making promises: one, or many at once. They take effect with the caller's transaction.

The mirror hears of them on commit. Changing a promise is in changing.py.
"""

import functools
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, Literal, NamedTuple, cast, get_args

from django.db import transaction

from . import dialect, engine, on_commit, signals, statements, topics
from .attempt import make_way
from .clock import from_ms
from .conflicts import retried_once
from .exceptions import BadInput, KeyIsLive, Reserved, UnknownTopic
from .models import Job, Topic
from .places import Entry
from .promises import Delay, check_actor, check_name, to_new_job
from .statements import Event, Live, NewJob, Placed
from .states import Outcome

OnConflict = Literal["reject", "keep", "replace"]
CHUNK = 500
_TOPIC_AND_KEY = itemgetter(0, 1)
_RACES = 5  # a live job that ends between our statements makes us look again


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
    by           who asked, when that is not this program: kept in an event of the job

    Never touches Redis inside the transaction, never runs anything early. Raises BadInput in
    one of its kinds, KeyIsLive, Reserved (replace, and its handler is running).
    """
    using = engine.alias(using)
    row = to_new_job(topic, key=key, delay=delay, due_at=due_at, body=body, ttr=ttr)
    _check_known(using, topic)
    found = _place(using, row, _checked_mode(on_conflict), check_actor(by))
    if found.placed:
        return _as_job(using, row, found.placed[0], is_new=not found.replaced)
    return Job.objects.using(using).get(pk=found.kept[0])


def schedule_unique(topic: str, *, key: str, among: Collection[str], using: str | None = None, **terms: Any) -> Job:
    """schedule(), for callers to whom a key is the name of one job across topics, not of one per topic.

    among   the topics in which no other live job may have the key

    Two such calls at once cannot both succeed (on PostgreSQL at its usual isolation, READ COMMITTED). A
    schedule() without this rule, in a program that uses the same key under two topics on purpose, is
    not kept from it. Raises what schedule() raises; KeyIsLive also names a live job of another topic.
    """
    using = engine.alias(using)
    check_name(topic, key)

    def whole() -> Job:
        with transaction.atomic(using):
            dialect.lock_name(using, key)
            job = schedule(topic, key=key, using=using, **terms)
            elsewhere = [(other, key) for other in among if other != topic]
            if elsewhere:
                for live in statements.find_live(using, elsewhere).values():
                    raise KeyIsLive(f"{_what_is_live(live)} Here a key names one job, whatever its topic: use another.")
            return job

    return retried_once(whole, using)


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
    using, mode, by = engine.alias(using), _checked_mode(on_conflict), check_actor(by)
    if isinstance(items, Sequence):  # can be read again, so a deadlock with another bulk is tried again
        return retried_once(lambda: _schedule_all(using, Ahead(_chunks(items)), mode, by), using)
    return _schedule_all(using, _chunks(items), mode, by)  # a generator may ask the same database for each item


class Ahead(Iterator[list[NewJob]]):
    """The chunks, of which the next one can be made while the database is at the one before."""

    def __init__(self, chunks: Iterator[list[NewJob]]) -> None:
        self._chunks = chunks
        self._made: list[list[NewJob]] = []

    def make(self) -> None:
        if not self._made:
            self._made.extend(islice(self._chunks, 1))

    def __next__(self) -> list[NewJob]:
        self.make()
        if not self._made:
            raise StopIteration
        return self._made.pop()


def _schedule_all(using: str, chunks: Iterator[list[NewJob]], mode: OnConflict, by: str) -> Scheduled:
    created = kept = replaced = position = 0
    known: set[str] = set()
    make = chunks.make if isinstance(chunks, Ahead) else None
    with transaction.atomic(using):
        for chunk in chunks:
            _check_all_known(using, chunk, known, position)
            position += len(chunk)
            for row in chunk:
                make_way(using, row.topic, row.key)
            found = _place_all(using, chunk, mode, by, make)
            replaced += found.replaced
            kept += len(chunk) - found.created - found.replaced
            created += found.created
    return Scheduled(created, kept, replaced)


def _check_all_known(using: str, rows: Sequence[NewJob], known: set[str], position: int) -> None:
    for topic in {row.topic for row in rows} - known:
        try:
            _check_known(using, topic)
        except UnknownTopic as error:
            first = next(place for place, row in enumerate(rows, position) if row.topic == topic)
            raise UnknownTopic(f"Item {first}: {error}") from None
        known.add(topic)


def _checked(items: Iterable[Mapping[str, Any]]) -> Iterator[NewJob]:
    for position, item in enumerate(items):
        try:
            row = to_new_job(**item)
        except TypeError as error:
            raise BadInput(f"Item {position}: {error}. It takes topic, key, delay or due_at, body, ttr.") from None
        except BadInput as error:
            raise type(error)(f"Item {position}: {error}") from None
        yield row


def _chunks(items: Iterable[Mapping[str, Any]]) -> Iterator[list[NewJob]]:
    rows = _checked(items)
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
    modes = get_args(OnConflict)
    if on_conflict not in modes:
        raise BadInput(f"on_conflict is {on_conflict!r}; it is 'reject', 'keep' or 'replace'.")
    return cast(OnConflict, on_conflict)


# -- placing rows -------------------------------------------------------------------------------


class _Found(NamedTuple):
    created: int
    placed: list[Placed]  # inserted or replaced
    replaced: int
    kept: list[int]  # ids


def _place(using: str, row: NewJob, on_conflict: OnConflict, by: str) -> _Found:
    make_way(using, row.topic, row.key)
    if not by:  # no transaction of our own: one statement is one
        inserted = statements.insert_new(using, [row])
        if inserted:
            return _announced(using, _Found(1, inserted, 0, []))
    return retried_once(lambda: _place_together(using, [row], on_conflict, by), using)


def _place_together(using: str, rows: Sequence[NewJob], on_conflict: OnConflict, by: str) -> _Found:
    with transaction.atomic(using):
        return _place_all(using, rows, on_conflict, by)


def _place_all(
    using: str, rows: Sequence[NewJob], on_conflict: OnConflict, by: str, meanwhile: Callable[[], None] | None = None
) -> _Found:
    """In the caller's transaction. meanwhile: as for dialect.run()."""
    waiting = _once_each(rows, on_conflict)
    twice = len(rows) - len(waiting)
    placed: list[Placed] = []
    kept: list[int] = []
    replaced = 0
    for _ in range(_RACES):
        one_lock_order = sorted(waiting.values(), key=_TOPIC_AND_KEY)
        inserted = statements.insert_new(using, one_lock_order, meanwhile)
        placed += inserted
        _record_scheduled(using, inserted, by)
        if len(inserted) == len(waiting):
            break
        _drop(waiting, inserted)
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


def _record_scheduled(using: str, inserted: Sequence[Placed], by: str) -> None:
    """Who made the promise. One that the program makes by itself needs no event: its row says when."""
    if by:
        statements.record(
            using,
            [Event(p.id, Outcome.SCHEDULED, 0, p.due_ms, p.placed_ms, None, p.due_ms, "", by) for p in inserted],
        )


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
    return KeyIsLive(f"{_what_is_live(live)} Use on_conflict='keep' or 'replace', or another key.")


def _what_is_live(live: Live) -> str:
    due = from_ms(live.due_ms).isoformat()
    return f"{live.topic} {live.key!r} is live already: job {live.id}, due at {due}."


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
        on_commit.enter(using, entries, mark=found.replaced > 0)
    if signals.job_scheduled.receivers:
        for placed in found.placed:
            on_commit.send(using, signals.job_scheduled, placed.id)
    return found


@functools.cache
def _new_columns() -> dict[str, Any]:
    """What a new job has in each of its columns."""
    return {field.attname: field.get_default() for field in Job._meta.concrete_fields}


def _columns_of(row: NewJob, placed: Placed) -> tuple[list[str], list[Any]]:
    columns = _new_columns() | {
        "id": placed.id,
        "topic": row.topic,
        "key": row.key,
        "due_at": from_ms(placed.due_ms),
        "ttr_ms": row.ttr_ms,
        "body": json.loads(row.body),
        "created_at": from_ms(placed.placed_ms),
    }
    return list(columns), list(columns.values())


def _as_job(using: str, row: NewJob, placed: Placed, *, is_new: bool) -> Job:
    if not is_new:
        return Job.objects.using(using).get(pk=placed.id)
    job = Job.from_db(using, *_columns_of(row, placed))
    job.is_new = True
    return job
