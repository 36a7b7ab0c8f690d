"""Add the jobs of concurrent requests with one statement; cancel the jobs of concurrent requests with another."""

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from django.db import transaction

from ... import handlers, permissions, signals, topics
from ...db import groups, transitions
from ...db.groups import Added, Done, NewRow, Topics
from ...db.transitions import Cancel, JobRow, NewJob, StoredJob
from ...jobs import audit_log, next_runs, on_commit
from ...states import State
from ..access.permissions import Right
from .batchers import FallBack

logger = logging.getLogger("delaytasks")
LOCK_WAIT_MS = 20  # a key that another transaction has locked must not delay the group
ROUNDS = 3  # tries for rows whose live job changed during the statement


class Add(NamedTuple):
    """A job to add for a caller.

    mode     on_conflict. If a job with this key is live: "keep" keeps it; "again" keeps it if it waits, and lets it run
             once more if it is running; with other modes, the answer is FallBack
    caller   an authenticated caller with the right to produce on the topic
    unique   the key may be live in no other topic that the caller sees
    """

    job: NewJob
    mode: str
    caller: Any
    unique: bool


def add_group(using: str, adds: Sequence[Add]) -> list[Added | FallBack]:
    """Add the jobs. The answer for each is an Added with CREATED, KEPT or AGAIN, or else FallBack."""
    answers: list[Added | FallBack] = [FallBack() for _ in adds]
    remaining = dict(enumerate(adds))
    for number in range(ROUNDS):
        try:
            _add_round(using, remaining, answers)
        except Exception as error:
            if number == 0:
                raise
            logger.debug("%s adds are left to Django's views: %r", len(remaining), error)
            break  # earlier rounds are committed: their answers stand
        if not remaining:
            break
    return answers


def _add_round(using: str, remaining: dict[int, Add], answers: list[Added | FallBack]) -> None:
    _read_hidden_topics(using, remaining.values())
    topics = Topics(handlers.known(), _stored.get(using, frozenset()))
    known = frozenset((*topics.handled, *topics.stored))
    rows = [_to_row(add, known) for add in remaining.values()]

    def store_next_runs(using: str, running: Mapping[int, NewRow]) -> list[StoredJob]:
        sources = {(add.job.topic, add.job.key): add.caller.source for add in remaining.values()}
        actors = {job_id: (row.actor, sources[groups.topic_and_key(row)]) for job_id, row in running.items()}
        return next_runs.store(using, {job_id: row.job for job_id, row in running.items()}, actors)

    results, new_topics = groups.add_each(using, rows, topics, LOCK_WAIT_MS, store_next_runs)
    if new_topics:
        _stored[using] = frozenset((*topics.stored, *new_topics))
    added = dict(zip(remaining, results, strict=True))
    _notify(using, [(remaining[n], row) for n, row in added.items()])
    for n, row in added.items():
        if row.done is not Done.REPEAT:
            del remaining[n]
        if row.done in (Done.CREATED, Done.KEPT, Done.AGAIN):
            answers[n] = row


# Names of the Topic rows by alias, as last seen. A row may have been deleted since: then the views handle the request.
_stored: dict[str, frozenset[str]] = {}


def _to_row(add: Add, known: frozenset[str]) -> NewRow:
    elsewhere = add.caller.visible(known) if add.unique else None
    return NewRow(add.job, add.mode, add.caller.signature, add.caller.producer or "", elsewhere)


def _read_hidden_topics(using: str, adds: Iterable[Add]) -> None:
    """Read once for all callers which topics hide bodies: the response to POST /jobs/ shows the body."""
    callers = [add.caller for add in adds if not add.unique and not add.caller.may(Right.CONSUME, add.job.topic)]
    if callers:
        hidden = permissions.topics_hiding_bodies(using)
        for caller in callers:
            caller.hidden_topics = hidden


def known_topics(using: str, asked: Collection[str | None]) -> set[str]:
    """Return the topics with a handler, setting or row if a request searches all topics; otherwise an empty set.

    asked   the topic of each request; None: all topics
    """
    return topics.known(using) if None in asked else set()


def visible(topic: str | None, caller: Any, known: set[str]) -> list[str]:
    """Return the topics to search for a key: the given one, or those of `known` that the caller sees."""
    return [each for each in known if caller.sees(each)] if topic is None else [topic]


def _notify(using: str, added: Sequence[tuple[Add, Added]]) -> None:
    """On commit, add the new jobs to the mirror and send job_scheduled."""
    created = [
        StoredJob(row.id, add.job.topic, add.job.key, row.due_ms, row.stored_ms, add.job.priority)
        for add, row in added if row.done is Done.CREATED
    ]  # fmt: skip
    on_commit.stored(using, created)
    for row in (row for _, row in added if row.done is Done.AGAIN):
        on_commit.send_signal(using, signals.job_scheduled, row.id)


# -- delete -------------------------------------------------------------------------------------


class Delete(NamedTuple):
    """A job to cancel for a caller, by its key.

    topic    None: any topic that the caller sees
    rights   the caller needs one of them
    """

    key: str
    topic: str | None
    caller: Any
    rights: Any
    reason: str


def delete_group(using: str, deletes: Sequence[Delete]) -> list[bool | FallBack]:
    """Cancel each job that waits and is the only live one with its key. The answer is True; FallBack for the others."""
    with transaction.atomic(using):
        groups.begin(using, LOCK_WAIT_MS)
        known = known_topics(using, [each.topic for each in deletes])
        topics = [visible(each.topic, each.caller, known) for each in deletes]
        pairs = {(topic, each.key) for each, among in zip(deletes, topics, strict=True) for topic in among}
        live = transitions.find_live(using, sorted(pairs)) if pairs else {}
        rows = [
            _only([live[topic, each.key] for topic in among if (topic, each.key) in live], each)
            for each, among in zip(deletes, topics, strict=True)
        ]
        named = zip(rows, deletes, strict=True)
        cancels = (Cancel(row.id, each.caller.signature, each.reason) for row, each in named if row is not None)
        done = transitions.cancel_each(using, cancels)
        cancelled = {each.id for each in done}
        _write_audit(using, zip(rows, deletes, strict=True), cancelled)
        on_commit.cancelled(using, done)
    return [True if row is not None and row.id in cancelled else FallBack() for row in rows]


def _write_audit(using: str, pairs: Iterable[tuple[JobRow | None, Delete]], cancelled: Collection[int]) -> None:
    """Write an entry to the audit log for each cancelled job, as Caller.log() does for one."""
    entries = {
        row.id: audit_log.entry(
            "job.cancelled",
            each.caller.signature,
            f"job {row.id}",
            topic=row.topic,
            name=row.key,
            reason=each.reason,
            source=each.caller.source,
        )
        for row, each in pairs
        if row is not None and row.id in cancelled
    }
    audit_log.record(using, entries.values())


def _only(live: Sequence[JobRow], delete: Delete) -> JobRow | None:
    """Return the only live job if it waits and the caller may cancel it, else None."""
    if len(live) != 1 or live[0].state != State.DELAYED or not delete.caller.may(delete.rights, live[0].topic):
        return None
    return live[0]
