"""Schedule one job or many. The jobs are inserted in the caller's transaction; the mirror is updated on commit.

The rows are stored by storage.py. The functions that cancel and reschedule jobs are in control.py.
"""

import functools
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack, cast, get_args, overload
from zoneinfo import ZoneInfo

from django.db import transaction

from .. import databases, tracing
from ..clock import from_ms
from ..db import dialects, transitions
from ..db.retries import in_transaction, retry_conflicts
from ..db.transitions import NewJob, StoredJob
from ..exceptions import BadInput, BadSchedule, KeyIsLive, UnknownTopic, short_repr
from ..querysets import find_job, get_job
from ..validators import check_priority, check_topic
from . import series, storage
from .inputs import Delay, check_actor, check_known, check_name, to_key, to_new_job
from .series import NewSeries
from .storage import OnConflict as OnConflict
from .subjects import Instance

if TYPE_CHECKING:
    from ..models import Job

CHUNK = 500


class _Counts(NamedTuple):
    created: int
    kept: int
    replaced: int


class Scheduled(_Counts):
    """The result of schedule_many(): the numbers of jobs created, kept as they were and replaced.

    job_ids   list of int: the job of each item, in the order of the items; empty if the items came from a generator,
              because there may be millions of them
    again     int: with on_conflict="again", the number of running jobs that will run once more
    """

    job_ids: Sequence[int] = ()
    again: int = 0


class JobOptions(TypedDict, total=False):
    """The options of schedule() for a single job, but the subject."""

    delay: Delay | None
    due_at: datetime | None
    body: Any
    ttr: Delay | None
    expires: Delay | None
    priority: int
    on_conflict: OnConflict
    using: str | None
    by: str


class ScheduleOptions(JobOptions, total=False):
    """All options of schedule() but the subject. Handle.schedule() accepts them."""

    period: Delay | None
    repeat: int | None
    cron: str
    rrule: str
    tz: str | ZoneInfo


@overload
def schedule(topic: str, key: str, *, subject: Instance | None = None, **options: Unpack[ScheduleOptions]) -> "Job": ...
@overload
def schedule(topic: str, key: None = None, *, subject: Instance, **options: Unpack[ScheduleOptions]) -> "Job": ...
def schedule(
    topic: str,
    key: str | None = None,
    *,
    subject: Instance | None = None,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    body: Any = None,
    ttr: Delay | None = None,
    expires: Delay | None = None,
    priority: int = 0,
    on_conflict: OnConflict = "reject",
    period: Delay | None = None,
    repeat: int | None = 0,
    cron: str = "",
    rrule: str = "",
    tz: str | ZoneInfo = "UTC",
    using: str | None = None,
    by: str = "",
) -> "Job":
    """Schedule a job. It is live as soon as the caller's transaction commits.

    topic        str: a topic with a handler, a setting or a Topic row
    key          str, 1 to 255 printable characters: at most one live job has it in this topic. None:
                 that of the subject, "<model>:<primary key>"
    subject      the saved model instance that the job is about; None: none. Its model's label and its
                 primary key are stored. Composite primary keys are refused
    delay        timedelta, or seconds as int or float, from now by the database's clock
    due_at       aware datetime, to the millisecond; a past one means now. Give delay or due_at, not both
    body         any JSON value, at most MAX_BODY_BYTES; None is stored as {}
    ttr          timedelta or seconds that one attempt may take; None: the TTR of the topic's handler
    expires      timedelta or seconds after its due time in which an attempt may begin; later the job is not run
                 and ends as skipped. None: as the topic's handler says
    priority     int, 0 to 9: a due job of a higher priority runs before other due jobs of the topic, unless they
                 have been due for a minute longer per level of difference
    on_conflict  for a live job with this topic and key: "reject" raises KeyIsLive, "keep"
                 returns it as it is, "replace" gives it the new due time, body, TTR,
                 expiry and priority, and the new subject if there is one; "again" keeps it if it waits, and if its
                 handler is running, makes it run once more after that
    period       timedelta or seconds from 0.1 on: a series of repeat + 1 jobs, `period` apart, the first after
                 `delay` or at `due_at`, or at once
    repeat       int, required with period; None: without end
    cron         str, five fields: a job at each of these times. With delay, period and repeat, each of these
                 times has repeat + 1 jobs: the first `delay` after it, the others `period` apart
    rrule        str: a recurrence rule of RFC 5545; `due_at` is its DTSTART
    tz           IANA name or ZoneInfo: the time zone of cron and rrule
    using        str, a database alias; None: the router's database for writes
    by           str: the person who requested it, if any; stored in an event of the job

    Returns the row, a delaytasks.models.Job; its attribute is_new is True if this call created it, and
    runs_again if it is running and runs once more, at again_due_at. A handler may schedule the key of its
    own running job: that job is finished then, and the new one is its next run.

    With "again" the next run is stored with the running job; of several calls the last one wins. The commit
    that ends the attempt makes the next run live, however the attempt ends, even if the job is dead. If the
    job is to be run again anyway (the attempt failed, snoozed or was lost), there is one next run: at the
    earlier of both times, with the newer body and TTR and no failures. cancel() withdraws the next run. The
    handler itself is not disturbed, but its end waits for your transaction: lock your own row first, as the
    handler does, or the two may wait for each other.

    With period, cron or rrule the call starts a series, and returns its first job. The keys of its jobs are
    "<key>#<wall time>", so `key` has at most 228 characters. cancel() with `key` ends the series. If there is
    a series with this key, "keep" returns its next job, and "replace" begins it anew. If there is a live
    single job with this key, "keep" returns it, and "replace" raises KeyIsLive. If several jobs of a series are
    overdue, only the last one runs. With `period` and a finite `repeat`, without cron and rrule, all of them
    run, one after the other.

    Never runs a handler itself, never accesses Redis inside the transaction. The handler never begins
    before the due time, by the database's clock.

    Raises UnknownTopic, BadTopic, BadKey, BadDelay, NaiveDatetime, BadBody, BodyTooLarge, BadTTR, BadSchedule,
    BadTimeZone and BadInput, with nothing written; KeyIsLive; Reserved ("replace" while the handler is running).
    """
    using = databases.alias(using)
    if period is not None or repeat != 0 or cron or rrule:
        if expires is not None or on_conflict == "again":
            raise BadSchedule('a series takes no expires= (give it to @handler) and no on_conflict="again".')
        if check_priority(priority):
            raise BadSchedule("a series takes no priority=: its jobs have the priority 0.")
        topic = check_topic(topic)
        label, pk, key = to_key(topic, key, subject)
        mode, by = _checked_mode(on_conflict), check_actor(by)
        return series.start(
            using,
            NewSeries(topic, key, label, pk, delay, due_at, period, repeat, cron, rrule, tz, body, ttr, mode, by),
        )
    if tz != "UTC":
        raise BadSchedule("tz is the zone of cron and rrule, and neither was given.")
    row = to_new_job(
        topic, key=key, subject=subject, delay=delay, due_at=due_at, body=body, ttr=ttr, expires=expires,
        priority=priority,
    )  # fmt: skip
    return schedule_row(using, row, on_conflict, by)


def schedule_row(using: str, row: NewJob, on_conflict: OnConflict, by: str) -> "Job":
    """Schedule a job whose fields are checked, as schedule() does."""
    check_known(using, row.topic)
    mode, by = _checked_mode(on_conflict), check_actor(by)
    with tracing.scheduling(row.topic) as span:
        job = _schedule_one(using, row._replace(trace_context=span.context), mode, by)
        span.scheduled(job.pk)
        return job


def _schedule_one(using: str, row: NewJob, on_conflict: OnConflict, by: str) -> "Job":
    for _ in range(storage.RACES):
        result = storage.store(using, row, on_conflict, by)
        if result.stored:
            return _as_job(using, row, result.stored[0], is_new=not result.replaced)
        kept = find_job(using, result.kept[0])
        if kept is not None:
            kept.runs_again = bool(result.again)
            return kept
    raise storage.changed_too_often(
        row.topic, row.key
    )  # each time, the kept job ended and was pruned before it was read


def schedule_unique(
    topic: str, key: str, *, among: Collection[str], subject: Instance | None = None, **options: Unpack[JobOptions]
) -> "Job":
    """Schedule a job whose key must be unique across several topics.

    among   collection of str: the topics in which no other live job may have the key

    The other arguments and the result are those of schedule() for a single job. The queue protocol over HTTP uses this
    function, because its commands may name a job by its key alone.

    If two calls of this function schedule the same key in two topics at the same time, one of them fails
    (on PostgreSQL at READ COMMITTED, its default isolation level). A plain schedule() of the same key in
    another topic is never refused.

    Raises the exceptions of schedule(). Raises KeyIsLive, which names the job, also if the key is live in
    another topic.
    """
    for name in options.keys() - JobOptions.__optional_keys__:  # such as those of a series, whose jobs have other keys
        raise TypeError(f"schedule_unique() has no option {name!r}.")
    using = databases.alias(options.get("using"))
    check_name(topic, key)

    def schedule_and_check() -> "Job":
        dialects.lock_name(using, key)
        job = schedule(topic, key, subject=subject, **(options | {"using": using}))
        elsewhere = [(other, key) for other in among if other != topic]
        if elsewhere:
            for live in transitions.find_live(using, elsewhere).values():
                raise KeyIsLive(f"{storage.describe_live(live)} Here keys are unique across topics: use another key.")
        return job

    return in_transaction(using, schedule_and_check)


def schedule_many(
    items: Iterable[Mapping[str, Any]],
    *,
    on_conflict: OnConflict = "reject",
    using: str | None = None,
    by: str = "",
) -> Scheduled:
    """Schedule many jobs in one transaction, all or none. Return how many were created, kept and replaced.

    items        mappings with arguments of schedule(): topic, key or subject, delay or due_at, body, ttr, expires,
                 priority. A generator is read in chunks of 500, never all at once
    on_conflict  as in schedule(), for all items. A repeated topic and key is a conflict as well
    using, by    as in schedule(), for all items

    Returns Scheduled(created, kept, replaced), three ints; its attribute job_ids has the id of each item's
    job, if items is a list or another sequence. A kept job may have ended since. With on_conflict="again", its
    attribute again is the number of running jobs that will run once more.

    Raises the exceptions of schedule(), with nothing scheduled. The message names the item by its
    position, from 0.
    """
    using, mode, by = databases.alias(using), _checked_mode(on_conflict), check_actor(by)
    with tracing.scheduling() as span:
        scheduled = _schedule_items(using, items, mode, by, span.context)
        span.scheduled_many(sum(scheduled) + scheduled.again)
        return scheduled


def _schedule_items(
    using: str, items: Iterable[Mapping[str, Any]], mode: OnConflict, by: str, trace_context: str
) -> Scheduled:
    if isinstance(items, Sequence):  # can be read again, so the call can be repeated after a deadlock
        return retry_conflicts(lambda: _schedule_all(using, Prefetched(_chunks(items, trace_context)), mode, by), using)
    # Without prefetch: a generator may query the same database.
    return _schedule_all(using, _chunks(items, trace_context), mode, by)


class Prefetched(Iterator[list[NewJob]]):
    """An iterator of chunks that can prepare the next chunk while the database stores the current one."""

    def __init__(self, chunks: Iterator[list[NewJob]]) -> None:
        self._chunks = chunks
        self._next: list[list[NewJob]] = []

    def prefetch(self) -> None:
        if not self._next:
            self._next.extend(islice(self._chunks, 1))

    def __next__(self) -> list[NewJob]:
        self.prefetch()
        if not self._next:
            raise StopIteration
        return self._next.pop()


def _schedule_all(using: str, chunks: Iterator[list[NewJob]], mode: OnConflict, by: str) -> Scheduled:
    created = replaced = position = 0
    again: set[int] = set()  # an item of a later chunk may be about the same job
    job_ids: list[int] = []
    known: set[str] = set()
    prefetch = chunks.prefetch if isinstance(chunks, Prefetched) else None
    with transaction.atomic(using):
        for chunk in chunks:
            _check_all_known(using, chunk, known, position)
            position += len(chunk)
            result = storage.store_many(using, chunk, mode, by, prefetch)
            replaced += result.replaced
            again.update(result.again)
            created += result.created
            if prefetch is not None:
                job_ids += [result.ids[row.topic, row.key] for row in chunk]
    scheduled = Scheduled(created, position - created - replaced - len(again), replaced)
    scheduled.job_ids, scheduled.again = job_ids, len(again)
    return scheduled


def _check_all_known(using: str, rows: Sequence[NewJob], known: set[str], position: int) -> None:
    for topic in {row.topic for row in rows} - known:
        try:
            check_known(using, topic)
        except UnknownTopic as error:
            first = next(n for n, row in enumerate(rows, position) if row.topic == topic)
            raise UnknownTopic(f"Item {first}: {error}") from None
        known.add(topic)


def _checked(items: Iterable[Mapping[str, Any]], trace_context: str) -> Iterator[NewJob]:
    for position, item in enumerate(items):
        try:
            row = to_new_job(**item)
        except TypeError as error:
            raise BadInput(
                f"Item {position}: {_mistake(item, error)}. "
                "It takes topic, key or subject, delay or due_at, body, ttr, expires, priority."
            ) from None
        except BadInput as error:
            raise type(error)(f"Item {position}: {error}") from None
        yield row._replace(trace_context=trace_context) if trace_context else row


def _mistake(item: object, error: TypeError) -> str:
    """Return why to_new_job(**item) raised a TypeError, without the name of that function."""
    if not isinstance(item, Mapping):
        return f"{short_repr(item)} is not a mapping"
    return str(error).removeprefix("to_new_job() ")


def _chunks(items: Iterable[Mapping[str, Any]], trace_context: str) -> Iterator[list[NewJob]]:
    rows = _checked(items, trace_context)
    while chunk := list(islice(rows, CHUNK)):
        yield chunk


def _checked_mode(on_conflict: str) -> OnConflict:
    modes = get_args(OnConflict)
    if on_conflict not in modes:
        raise BadInput(f"on_conflict is {on_conflict!r}; use 'reject', 'keep', 'replace' or 'again'.")
    return cast(OnConflict, on_conflict)


@functools.cache
def _new_columns() -> dict[str, Any]:
    """Return the default value of each column of a new job."""
    from ..models import Job  # here, so that schedule() can be imported before Django's apps are loaded

    return {field.attname: field.get_default() for field in Job._meta.concrete_fields}


def _columns(row: NewJob, stored: StoredJob) -> tuple[list[str], list[Any]]:
    columns = _new_columns() | {
        "id": stored.id,
        "topic": row.topic,
        "key": row.key,
        "due_at": from_ms(stored.due_ms),
        "ttr_ms": row.ttr_ms,
        "body": json.loads(row.body),
        "created_at": from_ms(stored.stored_ms),
        "subject_label": row.subject_label or None,
        "subject_pk": row.subject_pk or None,
        "expires_ms": row.expires_ms,
        "trace_context": row.trace_context or None,
        "priority": row.priority,
    }
    return list(columns), list(columns.values())


def _as_job(using: str, row: NewJob, stored: StoredJob, *, is_new: bool) -> "Job":
    if not is_new:
        return get_job(using, stored.id)
    from ..models import Job

    job = Job.from_db(using, *_columns(row, stored))
    job.is_new = True
    return job
