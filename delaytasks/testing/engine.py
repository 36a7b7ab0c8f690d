"""Adapter between the test kit and the engine: workers, mirror and schedules.

Due jobs are claimed and run as by a worker, one at a time, in the caller's transaction if there is one.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from django.db import connections, transaction
from django.db.models import Min, Q

from .. import backoff, conf, databases, handlers, mirror
from ..clock import to_ms
from ..db import calendar_days, dialects, lookups, transitions
from ..handlers import Handler
from ..jobs.next_runs import running_jobs
from ..maintenance import feed, guard
from ..models import JobEvent, Schedule, Topic
from ..recurrence import maker
from ..states import Outcome, State
from ..timeouts import declarations, reconcile
from ..timeouts.desired_jobs import rows
from ..timeouts.sync import aliases_of
from ..worker.attempt import RunningJob
from ..worker.claim import Candidates
from ..worker.completion import expire
from ..worker.coroutines import await_result
from ..worker.executor import Executor
from .exceptions import ProcessDied, TestKitError

logger = logging.getLogger("delaytasks")
WORKER = "timeouts"  # the name of the worker in rows and events
MAX_TICKS = 10  # within so many ticks the guard must find a job that the mirror has lost


class DueJob(NamedTuple):
    id: int
    topic: str
    at_ms: int  # its due time, or the end of its lease
    leased: bool  # True: its process died, and its lease ends at at_ms


# Plain SQL, because it runs at each step: the ORM took a third of the time of a long replay.
_HELD = "SELECT name, {held_until} FROM delaytasks_topic WHERE held_until IS NOT NULL"
_NEXT = """
    SELECT id, topic, {at_ms} FROM delaytasks_job
    WHERE ended_at IS NULL AND state = {state} AND topic IN ({topics})
        AND topic NOT IN (SELECT name FROM delaytasks_topic WHERE paused)
    ORDER BY {at}, priority DESC, id LIMIT 1"""


def next_due(using: str, *, leases: bool) -> DueJob | None:
    """Return the live job that is due next, by due time, priority and id.

    Paused topics and topics without a handler are left out. A job of a held topic is due at the next probe.

    leases   True: also consider the ends of leases; at equal times they come first, as in a worker
    """
    topics = handlers.handled()
    sql = _HELD.format(held_until=dialects.get_dialect(using).to_ms("held_until"))
    held = {topic: until_ms for topic, until_ms in dialects.run(using, sql, []) if topic in topics}
    found = [_first(using, State.DELAYED, "due_at", [topic for topic in topics if topic not in held])]
    for topic, until_ms in held.items():
        if job := _first(using, State.DELAYED, "due_at", [topic]):
            found.append(job._replace(at_ms=max(job.at_ms, until_ms)))
    if leases:
        found.insert(0, _first(using, State.RESERVED, "lease_until", topics))
    return min((job for job in found if job), key=lambda job: job.at_ms, default=None)


def _first(using: str, state: State, at: str, topics: Sequence[str]) -> DueJob | None:
    d = dialects.get_dialect(using)
    if not topics:
        return None
    sql = _NEXT.format(at=at, at_ms=d.to_ms(at), state=int(state), topics=", ".join(["%s"] * len(topics)))
    for job_id, topic, at_ms in dialects.run(using, sql, topics):
        return DueJob(job_id, topic, at_ms, state is State.RESERVED)
    return None


def has_reserved(using: str) -> bool:
    sql = f"SELECT 1 FROM delaytasks_job WHERE ended_at IS NULL AND state = {int(State.RESERVED)} LIMIT 1"
    return bool(dialects.run(using, sql, []))


def take_back(using: str, job_id: int) -> None:
    """Take back a job whose lease has ended: it is ready again, delayed by its backoff, or dead."""
    expire(using, lookups.get_snapshots(using, [job_id]))


def claim(using: str, due: DueJob) -> RunningJob | None:
    """Claim a due job. Return None if it must not run and was ended, or if another transaction has locked it."""
    candidates = _candidates(using, due.topic)
    claimed = transitions.claim_first(using, due.topic, [due.id], WORKER, fenceable=candidates.fenceable)
    candidates.ids, candidates.until_ms = [due.id], databases.now_ms(using)  # its score in the mirror, set by offered()
    return candidates.hold_first(claimed) if claimed else None


def run(using: str, attempt: RunningJob) -> None:
    """Run an attempt and end it as a worker does."""
    executor = KitExecutor(_handler(attempt.topic), _candidates(using, attempt.topic), lambda: False, lambda: False)
    executor.run_one(attempt)
    executor.flush_removals()


def no_jitter() -> AbstractContextManager[object]:
    """Return a context manager in which jobs wait exactly as long as their topics' backoffs say."""
    return patch.object(backoff, "random", SimpleNamespace(uniform=lambda _lowest, _highest: 0.0))


class KitExecutor(Executor):
    """An executor that may be inside the transaction of a test."""

    def call(self, attempts: Sequence[RunningJob], argument: Any) -> Any:
        with nullcontext() if self.handler.atomic else own_savepoint(self.using):
            return super().call(attempts, argument)


@contextmanager
def own_savepoint(using: str) -> Iterator[None]:
    """Roll back to the start of the block if an error in it makes the transaction of the test unusable.

    For code that a worker calls outside a transaction, where a database error undoes one statement only.
    """
    connection = connections[using]
    if not connection.in_atomic_block:
        yield
        return
    savepoint = transaction.savepoint(using)
    try:
        yield
    finally:
        if connection.needs_rollback or not connection.is_usable():
            transaction.set_rollback(False, using)
            transaction.savepoint_rollback(savepoint, using)
        transaction.savepoint_commit(savepoint, using)


def die(using: str, attempt: RunningJob, before: str) -> None:
    """Simulate the death of the process that runs this attempt: nothing is committed, and the job stays reserved.

    before   "handler": the handler is not called; "commit": it is called, and its transaction is rolled back
    """
    if before == "handler":
        return
    handler = _handler(attempt.topic)

    def dying(*_: Any) -> None:
        raise ProcessDied

    setattr(attempt, "end", dying)  # noqa: B010  finishing() calls it before its commit
    with (
        suppress(Exception, ProcessDied),
        running_jobs(attempt),
        transaction.atomic(using) if handler.atomic else nullcontext(),
    ):
        await_result(handler.call([attempt] if handler.batch else attempt))
        raise ProcessDied


def make_firings(using: str) -> None:
    """Make the next jobs of the schedules whose last one is due."""
    with running_callbacks():
        maker.make_due(using)


def next_firing_ms(using: str) -> float:
    """Return when a schedule must make its next job, in ms since 1970; infinity if none must.

    That is the time of its last job, which may be cancelled, or moved. Paused topics and topics without a handler are
    left out.
    """
    running = Schedule.objects.using(using).filter(paused=False, ended=False, topic__in=handlers.handled())
    running = running.exclude(topic__in=Topic.objects.using(using).filter(paused=True).values("name"))
    first = running.aggregate(first=Min("made_until"))["first"]
    return math.inf if first is None else to_ms(first)


def outcome(using: str, job_id: int, attempt: int) -> tuple[str, str]:
    """Return the outcome and the error of an attempt from its event; "lost" if there is no event."""
    attempts = Q(reserved_ms__isnull=False) | Q(outcome=Outcome.RESCHEDULED)  # moved instead of run
    events = JobEvent.objects.using(using).newest_of(job_id).filter(attempts, attempt=attempt)
    # The oldest of these: a job that waits again may have been moved afterwards.
    found: tuple[str, str] | None = events.values_list("outcome", "error").last()
    return found or ("lost", "")


def _handler(topic: str) -> Handler:
    handler = handlers.find(topic)
    assert handler is not None
    return handler


def _candidates(using: str, topic: str) -> Candidates:
    return Candidates(mirror.choose(using), topic, using=using, worker=WORKER)


@contextmanager
def calendars_read_again() -> Iterator[None]:
    """Forget the days of calendars that other tests have changed; after the block, those that this one has changed."""
    calendar_days.clear_cache()
    try:
        yield
    finally:
        calendar_days.clear_cache()


def make_declared(using: str) -> None:
    """Make the jobs of the rows that exist already; those of overdue rows are due now. An empty table costs a query."""
    here = [each for each in declarations.declarations() if using in aliases_of(each)]
    reconcile.reconcile(using, [each for each in here if rows(each, using).exists()])


# -- on_commit callbacks ------------------------------------------------------------------------


@contextmanager
def running_callbacks() -> Iterator[None]:
    """After the block, run the on_commit callbacks that were registered inside it and not rolled back.

    Only for connections inside a transaction. For the others, Django has run them already.
    """
    inside = [(each, len(each.run_on_commit)) for each in connections.all() if each.in_atomic_block]
    yield
    for connection, before in inside:
        while len(connection.run_on_commit) > before:
            new, connection.run_on_commit[before:] = connection.run_on_commit[before:], []
            _run_callbacks(connection.alias, new)


def _run_callbacks(using: str, callbacks: list[Any]) -> None:
    """Run callbacks as Django does: an exception of a robust callback is only logged, any other stops the rest."""
    for _, function, robust in callbacks:
        try:
            with own_savepoint(using):
                function()
        except Exception:
            logger.exception("an on_commit callback of a job failed")
            if not robust:
                return


# -- the mirror ---------------------------------------------------------------------------------


def check_redis(using: str) -> bool:
    """Return whether a live worker uses the configured Redis."""
    connected = mirror.connect(using)
    if connected is None:
        raise TestKitError("The test kit was asked to use the mirror, but DELAYTASKS['REDIS_URL'] is not set.")
    return connected.in_use()


def start_mirror(using: str) -> None:
    """Record in the database and in Redis that the mirror knows the jobs of the next hour."""
    connected = mirror.connect(using)
    if connected is not None:
        feed.feed(connected, using)


def clear_mirror(using: str) -> None:
    """Delete all entries of the mirror."""
    connected = mirror.connect(using)
    if connected is not None:
        connected.clear()


def offered(using: str, due: DueJob) -> bool:
    """Return whether a worker would find the job now: it is ready in the mirror, or there is no mirror."""
    connected = mirror.connect(using)
    if connected is None:
        return True
    feed.feed(connected, using)
    now_ms = databases.now_ms(using)
    connected.promote_due(now_ms, [due.topic])
    return due.id in connected.reserve(due.topic, conf.get().batch_max, now_ms, now_ms).ids


def guard_once(using: str) -> None:
    """Run the guard once: it finds overdue jobs that are missing in the mirror, and adds them."""
    connected = mirror.connect(using)
    if connected is not None:
        guard.probe(connected, using)
