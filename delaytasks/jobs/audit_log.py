"""The audit log: who changed what, when, from where, with the values before and after.

An entry is written in the transaction of the change. Entries are never changed, and deleted only by prune(), which
writes an entry of its own. models.AuditEntry and triggers (db/audit_triggers.py) refuse any other change.

The events of a job (models.JobEvent) remain the record of its life. The audit log adds what they do not have: changes
to topics, tokens, grants and accounts, refused requests, the address of the caller, and the body that a job had before
it was replaced.
"""

import contextlib
import hashlib
import json
import socket
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction

from ..clock import from_ms
from ..db.transitions import NewJob, StoredJob
from ..states import State

if TYPE_CHECKING:
    from ..models import AuditEntry, Job, Schedule

PRUNED = "audit.pruned"
PRUNE_BATCH = 1000
_MAX_REQUEST = 200  # characters of a path that are stored


class Source(NamedTuple):
    """Where a change comes from.

    address   IP address of the client, or name of the host of a command; "" for a worker and other Python code
    request   "POST /api/jobs/", or "manage.py delaytasks token"
    """

    address: str = ""
    request: str = ""


Actor = tuple[str, Source | None]  # who makes a change, and from where; None: from the current source
_NOWHERE = Source()
_source: ContextVar[Source] = ContextVar("delaytasks_audit_source", default=_NOWHERE)


def source_of(request: Any) -> Source:
    """Return the source of an HTTP request. Behind a proxy, the server must set REMOTE_ADDR from its header."""
    address, path = str(request.META.get("REMOTE_ADDR") or ""), f"{request.method} {request.path}"
    return Source(_printable(address[:255]), _printable(path[:_MAX_REQUEST]))


def _printable(text: str) -> str:
    """Replace unprintable characters, which PostgreSQL or a terminal may not accept, by "?"."""
    return "".join(each if each.isprintable() else "?" for each in text)


def set_source(source: Source) -> None:
    """Set the source of the changes that this request or task makes from now on."""
    _source.set(source)


def reset_source(**_: object) -> None:
    """Receiver of request_started: under WSGI a thread keeps the source of its last request."""
    _source.set(_NOWHERE)


@contextlib.contextmanager
def source(each: Source) -> Iterator[None]:
    """Set the source of the changes made in a block."""
    token = _source.set(each)
    try:
        yield
    finally:
        _source.reset(token)


def command_source(verb: str) -> Source:
    return Source(socket.gethostname(), f"manage.py delaytasks {verb}")


def entry(action: str, actor: str, target: str, **columns: Any) -> "AuditEntry":
    """Return an entry that is not stored yet, with the current source unless `source` is given.

    action    what was done: "job.replaced", "token.revoked"
    actor     who did it, as in JobEvent.actor
    target    the kind of the object and its id: "job 17"
    columns   topic, name, reason, before, after, source
    """
    from ..models import AuditEntry

    address, request = columns.pop("source", None) or _source.get()
    return AuditEntry(action=action, actor=actor, target=target, address=address, request=request, **columns)


def record(using: str, entries: Iterable["AuditEntry"]) -> None:
    """Write the entries in the caller's transaction."""
    from ..models import AuditEntry

    AuditEntry.objects.using(using).bulk_create(list(entries), batch_size=500)


def target_of(row: Any) -> tuple[str, dict[str, str]]:
    """Return the target of an entry about this row, and the entry's columns `topic` and `name`."""
    from ..models import Job, Schedule, Topic

    if isinstance(row, Schedule):
        return f"schedule {row.pk}", {"topic": row.topic, "name": row.name}
    if isinstance(row, Job):
        return f"job {row.pk}", {"topic": row.topic, "name": row.key}
    if isinstance(row, Topic):
        return f"topic {row.pk}", {"topic": row.pk}
    return f"{kind_of(row)} {row.pk}", {"name": str(getattr(row, "prefix", row))[:255]}


def kind_of(row: Any) -> str:
    """Return the first part of the actions on this row: "job", "token", "bulk_change"."""
    return _KINDS.get(row._meta.model_name, str(row._meta.model_name))


_KINDS = {"serviceaccount": "account", "bulkchange": "bulk_change"}


# -- replaced bodies ------------------------------------------------------------------------------


class Replaced(NamedTuple):
    """Values that are about to be replaced: those of waiting jobs, or those of the next runs of running jobs.

    A running job without a next run has its own values: its next run replaces them if the attempt fails.
    """

    jobs: Mapping[int, tuple[datetime, int, Any]]  # id -> due time, TTR in ms, body
    next_runs: Collection[int]  # ids of the running jobs that have a next run
    keep_bodies: Collection[str]  # topics whose bodies the log keeps


def before_replace(using: str, ids: Collection[int], state: State = State.DELAYED) -> Replaced:
    """Lock the jobs in this state, DELAYED or RESERVED, until the end of the transaction. Return their current values.

    Of a running job with a next run, these are the values of the next run.
    """
    from ..models import Job, Topic

    rows = Job.objects.using(using).select_for_update(no_key=True).filter(pk__in=ids, state=state).order_by("pk")
    columns = rows.values_list("pk", "topic", "due_at", "ttr_ms", "body", "again", *_NEXT_RUN)
    jobs, next_runs, topics = {}, set(), set()
    for pk, topic, *values, again, next_due_at, next_ttr_ms, next_body in columns:
        has_next_run = again and state == State.RESERVED
        jobs[pk] = (next_due_at, next_ttr_ms, next_body) if has_next_run else tuple(values)
        topics.add(topic)
        if has_next_run:
            next_runs.add(pk)
    keep = Topic.objects.using(using).filter(name__in=topics, keep_bodies=True).values_list("name", flat=True)
    return Replaced(jobs, next_runs, set(keep))


_NEXT_RUN = ("again_due_at", "again_ttr_ms", "again_body")


def record_replaced(using: str, before: Replaced, stored: Iterable[tuple[StoredJob, NewJob]], by: str) -> None:
    """Write an entry for each job, with hashes of both bodies, and the bodies if the topic keeps them."""
    record(using, [_replaced(before, job, new, "job.replaced", by) for job, new in stored if job.id in before.jobs])


def record_next_runs(
    using: str, before: Replaced, stored: Iterable[tuple[StoredJob, NewJob]], actors: Mapping[int, Actor]
) -> None:
    """Write an entry for each next run that was stored, as record_replaced(). The actors are by the job's id."""

    def entry_of(job: StoredJob, new: NewJob) -> "AuditEntry":
        action = "job.next_run_replaced" if job.id in before.next_runs else "job.next_run_scheduled"
        by, source = actors[job.id]
        return _replaced(before, job, new, action, by, source)

    record(using, [entry_of(job, new) for job, new in stored if job.id in before.jobs])


def _replaced(
    before: Replaced, job: StoredJob, new: NewJob, action: str, by: str, source: Source | None = None
) -> "AuditEntry":
    keep = job.topic in before.keep_bodies
    after = _described(from_ms(job.due_ms), new.ttr_ms, json.loads(new.body), keep)
    return entry(
        action, by, f"job {job.id}", topic=job.topic, name=job.key, before=_described(*before.jobs[job.id], keep),
        after=after, source=source,
    )  # fmt: skip


def record_withdrawn(using: str, before: Replaced, jobs: Iterable["Job"], by: str, reason: str) -> None:
    """Write an entry for each of these jobs, whose next runs were withdrawn."""

    def entry_of(job: "Job") -> "AuditEntry":
        target, columns = target_of(job)
        values = _described(*before.jobs[job.pk], job.topic in before.keep_bodies)
        return entry("job.next_run_withdrawn", by, target, reason=reason, before=values, **columns)

    record(using, [entry_of(job) for job in jobs])


def _described(due_at: datetime, ttr_ms: int, body: Any, keep_body: bool) -> dict[str, Any]:
    described = {"due_at": due_at.isoformat(), "ttr_ms": ttr_ms, "body_sha256": body_sha256(body)}
    return described | {"body": body} if keep_body else described


def schedule_state(row: "Schedule") -> dict[str, Any]:
    """Return the values of a schedule, with the hash of its body, and the body if its topic keeps bodies."""
    from ..models import Topic

    columns = {each.attname: getattr(row, each.attname) for each in row._meta.concrete_fields}
    values = {name: columns[name] for name in _SCHEDULE_VALUES} | {"body_sha256": body_sha256(row.body)}
    values["start_at"] = row.start_at.isoformat()
    keeps = Topic.objects.using(row._state.db).filter(name=row.topic, keep_bodies=True).exists()
    return values | {"body": row.body} if keeps else values


_SCHEDULE_VALUES = (
    "topic", "tz", "cron", "rrule", "every_ms", "delay_ms", "period_ms", "repeat", "start_at", "gap", "overlap",
    "missed", "within_ms", "running", "ttr_ms", "paused",
)  # fmt: skip


def body_sha256(body: Any) -> str:
    """Return the SHA-256 of a body as JSON with sorted keys, without spaces, in UTF-8."""
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


# -- reading and pruning ----------------------------------------------------------------------------


def read(using: str, *, since: datetime | None = None, after: int = 0, limit: int = 1000) -> list["AuditEntry"]:
    """Return the oldest entries that are not before `since` and have a larger id than `after`."""
    from ..models import AuditEntry

    entries = AuditEntry.objects.using(using).filter(pk__gt=after).order_by("pk")
    return list((entries if since is None else entries.filter(at__gte=since))[:limit])


def prune(using: str, before: datetime, by: str) -> int:
    """Delete entries older than `before`, in batches, and return their number.

    An entry that announces the deletion is written first: the triggers allow only deletions that are announced.
    """
    from ..models import AuditEntry

    old = AuditEntry.objects.using(using).filter(at__lt=before)
    if not old.exists():
        return 0
    announced = entry(PRUNED, by, "audit log", deletes_before=before, after={"older_than": before.isoformat()})
    record(using, [announced])
    deleted = 0
    while True:
        with transaction.atomic(using):
            ids = list(old.order_by("at", "pk").values_list("pk", flat=True)[:PRUNE_BATCH])
            old.filter(pk__in=ids)._raw_delete(using)
        deleted += len(ids)
        if len(ids) < PRUNE_BATCH:
            return deleted
