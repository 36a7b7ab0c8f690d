"""End attempts: finished, snoozed, failed, released, dead or expired.

One guarded statement ends attempts and records their events, in the caller's transaction if there is one.
On commit the mirror is updated, the signals are sent and the log is written.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from django.db import connections, transaction

from .. import handlers, mirror, signals, topics, tracing
from ..backoff import DEFAULT_BACKOFF
from ..db import dialects, transitions
from ..db.lookups import JobSnapshot
from ..db.retries import is_retryable, retry_once
from ..db.transitions import Abandoned, Claimed, Ending, Event, TakenBack
from ..exceptions import LeaseLost
from ..jobs import on_commit
from ..jobs.next_runs import schedule_next
from ..mirror.base import GONE, Settlement
from ..outcomes import ErrorCode, error_text, to_stored_error
from ..querysets import get_jobs
from ..states import FAILURES, Outcome, State
from .coroutines import await_result
from .isolation import isolated, reset_broken_connections

if TYPE_CHECKING:
    from ..models import Job
    from .claim import Candidates

logger = logging.getLogger("delaytasks")
_SIGNALS = {
    Outcome.FINISHED: signals.job_finished,
    Outcome.SNOOZED: signals.job_snoozed,
    Outcome.FAILED: signals.job_failed,
    Outcome.EXPIRED: signals.job_failed,
    Outcome.DEAD: signals.job_dead,
}
# Topic -> function that is called with the alias and the attempt (or the job's row) in the transaction that ends the
# attempt, or that gives the job another declared time.
after_end: dict[str, Callable[[str, Any], None]] = {}
observers: list[Callable[[Outcome, Any], None]] = []  # called with each outcome and its job, after the signals
Result = TypeVar("Result")
_STATES = {Outcome.FINISHED: State.FINISHED, Outcome.SKIPPED: State.CANCELLED, Outcome.DEAD: State.DEAD}


class HeldAttempt(Protocol):
    """The attributes of an attempt that are needed to end it."""

    id: int
    topic: str
    key: str
    attempt: int
    due_ms: int
    reserved_ms: int
    entry_ms: int  # the score of the job's entry in the mirror
    worker: str
    actor: str  # the person or token that ends the attempt, if it is not the worker


class Completion(NamedTuple):
    """How one attempt ends."""

    held: Any  # HeldAttempt
    outcome: Outcome
    delay_ms: int | None = None  # until the next attempt; None keeps the due time
    error: str = ""  # an ErrorCode or a shortened traceback, of which the job's row stores the last line
    reason: str = ""  # why a handler skipped or snoozed its job, or the answer of a target
    exception: BaseException | None = None  # for the log, if the job is dead
    until_ms: int | None = None  # with delay_ms: the next attempt is due at this time at the latest
    polled: bool = False  # a poll was answered "not yet"


def _job_error(error: str) -> str:
    """Return the error for the job's row: a code, or the last line of a traceback."""
    last_line = error.strip().splitlines()[-1:]
    return to_stored_error(error if isinstance(error, ErrorCode) else "".join(last_line)[:1000])


class Completed(list[tuple[Completion, int]]):
    """The attempts that a transaction has ended, each with its job's new due time in ms; for notify() on commit."""

    committed = False
    offered: Sequence[int] = ()  # the jobs of which the same statement could claim one
    claimed: Claimed | None = None  # the job that the same statement has claimed; its body is not parsed
    on_commit: Callable[[], Any] = staticmethod(lambda: None)  # called on commit, before the handler's own callbacks


@contextmanager
def completing_transaction(using: str, removals: list[Any] | None = None) -> Iterator[Completed]:
    """Open a transaction whose commit ends attempts. Pass the yielded object to complete().

    removals   a list to which the attempts whose jobs have ended are added on commit. The caller passes them to
               remove_entries() soon; an entry that is not removed costs at most one refused claim. None: the entries
               are removed on commit

    Our on_commit callback is registered first, because a callback of the handler that raises prevents later
    callbacks. If an error is raised while the attribute `committed` of the yielded object is True, a callback of the
    handler has raised it.
    """
    completed = Completed()

    def after_commit() -> None:
        completed.committed = True
        notify(using, completed, removals)
        completed.on_commit()

    with transaction.atomic(using):
        transaction.on_commit(after_commit, using=using, robust=True)
        yield completed


def complete(
    using: str,
    completions: Sequence[Completion],
    completed: Completed | None = None,
    *,
    in_time: bool = False,
    relaxed: bool = False,
) -> None:
    """End these attempts, all or none. Raises LeaseLost, with nothing written, if one of them is no longer held.

    completed   the object that completing_transaction() has yielded, if the caller is inside its block; None: this
                function itself calls notify() on commit
    in_time     refuse an attempt whose lease has ended, even if the job has not been taken back
    relaxed     PostgreSQL: the commit does not wait for the disk (synchronous_commit off)
    """
    is_repeated = completed is None and not connections[using].in_atomic_block  # by the caller, after a conflict

    def end(skip: Collection[int]) -> None:
        # Without a savepoint, which saves two round trips: an error rolls back the caller's transaction anyway.
        with transaction.atomic(using, savepoint=False) if completed is None else nullcontext():
            ended = transitions.end_if_held(using, [ending(c) for c in completions], in_time=in_time, relaxed=relaxed)
            _check_all_ended(completions, ended)
            for completion in completions:
                if completion.outcome is Outcome.DEAD and completion.held.id not in skip:
                    _call_on_dead(using, completion.held)  # may schedule the key, and then there is no other next run
            schedule_next(using, [job_id for job_id, each in ended.items() if each.again])
            with_due_times = [(c, ended[c.held.id].due_ms) for c in completions]
            if completed is not None:
                completed.extend(with_due_times)
            else:
                transaction.on_commit(lambda: notify(using, with_due_times), using=using, robust=True)
            # After notify() is registered: these may move or cancel the jobs that wait again.
            for completion in completions:
                # If the effects of the handler stay, it must not be called again because of an error here. Not so for a
                # job that may fire later: its handler was not called, and its declared time must be forgotten.
                forgets = completion.outcome is Outcome.SKIPPED and getattr(completion.held, "may_fire_later", False)
                has_run = completed is None and not forgets
                if has_run or completion.outcome not in _STATES:
                    _call_after_end(using, completion.held, raises_conflicts=is_repeated)
                elif completion.held.topic in after_end:
                    after_end[completion.held.topic](using, completion.held)

    if completions:
        _skipping_broken_on_dead(using, end)


def complete_and_claim(
    using: str, completion: Completion, completed: Completed, candidates: "Candidates", offered: Sequence[int]
) -> None:
    """End the attempt as complete() and claim one of the offered jobs in the same statement, as completed.claimed.

    Called inside the block of completing_transaction(), for an outcome without signals and on_dead callback. The
    statement first checks the deferred constraints. At the commit they could deadlock: wait for a row of another
    transaction that waits for the claimed job. If the handler has executed nothing, the statement commits itself. A job
    that was scheduled again is ended without a claim. Raises LeaseLost.
    """
    has_begun, end = dialects.has_begun(using), ending(completion)
    checked = has_begun and dialects.has_check_function(using)
    if has_begun and not checked:
        dialects.check_constraints(using)
    with nullcontext() if has_begun else dialects.autocommit(using):
        ended, completed.claimed = transitions.end_and_claim(
            using, end, candidates.topic, offered, candidates.worker, fenceable=candidates.fenceable,
            check_constraints=checked,
        )  # fmt: skip
    if ended:
        completed.offered = offered
    else:
        ended = transitions.end_if_held(using, [end])
    _check_all_ended([completion], ended)
    schedule_next(using, [job_id for job_id, each in ended.items() if each.again])
    completed.append((completion, ended[completion.held.id].due_ms))


def any_receivers() -> bool:
    """Return whether a receiver is connected to any signal that the end of an attempt sends."""
    return any(signal.receivers for signal in _SIGNALS.values())


def _check_all_ended(completions: Sequence[Completion], ended: Collection[int]) -> None:
    for lost in (c.held for c in completions if c.held.id not in ended):
        raise LeaseLost(
            f"Attempt {lost.attempt} of {lost.topic} {lost.key} (id {lost.id}) is refused: its TTR passed and "
            "the job was taken back, or the attempt was ended already."
        )


def ending(completion: Completion) -> Ending:
    """Return the statement's parameters for this completion."""
    held: HeldAttempt = completion.held
    failed = completion.outcome in (Outcome.FAILED, Outcome.DEAD)
    state = _STATES.get(completion.outcome, State.DELAYED)
    return Ending(
        held.id, held.attempt, int(state), completion.delay_ms, int(failed), _job_error(completion.error),
        completion.outcome, held.due_ms, held.reserved_ms, held.worker, held.actor, to_stored_error(completion.error),
        completion.reason, completion.until_ms, int(completion.polled),
    )  # fmt: skip


def notify(using: str, completed: Sequence[tuple[Completion, int]], removals: list[Any] | None = None) -> None:
    """Update the mirror, write the log and send the signals, after the commit.

    removals   as in completing_transaction()
    """
    live = [
        Settlement(c.held.id, c.held.topic, c.held.entry_ms, due_ms)
        for c, due_ms in completed
        if c.outcome not in _STATES
    ]
    ended = [c.held for c, _ in completed if c.outcome in _STATES]
    if live:
        mirror.writable(using).settle(live)
    if removals is not None:
        removals += ended
    elif ended:
        remove_entries(using, ended)
    for completion, _ in completed:
        error = error_text(_job_error(completion.error))
        log_and_signal(completion.outcome, completion.held, error, completion.exception, completion.error)


def remove_entries(using: str, attempts: Iterable[HeldAttempt]) -> None:
    """Remove the entries of ended jobs from the mirror."""
    mirror.writable(using).settle(Settlement(held.id, held.topic, held.entry_ms, GONE) for held in attempts)


def log_and_signal(
    outcome: Outcome, job: Any, error: str = "", exception: BaseException | None = None, trace: str = ""
) -> None:
    """Log an outcome with topic, key, id and attempt, and send its signal.

    A dead job is logged as an ERROR, with its traceback if there is one; another failure as a WARNING.

    trace   the shortened traceback of `exception`, which may be too long or impossible to print
    """
    level = logging.ERROR if outcome is Outcome.DEAD else logging.WARNING if error else logging.DEBUG
    if logger.isEnabledFor(level):
        identity = {"topic": job.topic, "key": job.key, "id": job.id, "attempt": job.attempt}
        # Error trackers group by the message without its arguments: one group for each outcome of a topic.
        message = f"{outcome.value} topic={job.topic!r} key=%r id=%r attempt=%r{' error=%r' if error else ''}"
        arguments = (job.key, job.id, job.attempt, *([error] if error else []))
        exc_info = (type(exception), exception, exception.__traceback__) if exception else None
        path, line, function, _ = logger.findCaller()
        record = logger.makeRecord(
            logger.name, level, path, line, message, arguments, exc_info, function, {"job": identity}
        )
        record.exc_text = trace if exc_info else None
        logger.handle(record)
    signal = _SIGNALS.get(outcome)
    if signal is not None and signal.receivers:
        extra = {"error": error} if outcome in FAILURES else {}
        signal.send_robust(sender=job.topic, job=job, **extra)
    tracing.ended(job.id, outcome, error)
    for observe in observers:
        observe(outcome, job)


class _OnDeadBrokeTransaction(Exception):
    """An on_dead callback broke the transaction that was to mark its job dead."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def _skipping_broken_on_dead(using: str, end_jobs: Callable[[Collection[int]], Result]) -> Result:
    """Return end_jobs(skip). If an on_dead callback breaks the transaction, repeat the call without that callback.

    skip   the ids of the jobs whose on_dead callback is not called; so these jobs become dead as well

    Inside the caller's transaction nothing can be repeated, so _OnDeadBrokeTransaction is raised.
    """
    inside, skip = connections[using].in_atomic_block, set[int]()
    while True:
        try:
            return end_jobs(skip)
        except _OnDeadBrokeTransaction as error:
            if inside:
                raise
            reset_broken_connections()
            skip.add(error.job_id)


def _call_on_dead(using: str, job: Any) -> None:
    """Call the topic's on_dead callback, if it has one, and once more after a conflict. Raises _OnDeadBrokeTransaction.

    Other exceptions are logged, including BaseException: otherwise a SystemExit would end every worker that tries to
    mark this job dead. Django logs those of its on_commit callbacks, before which our own may not have run yet.
    """
    handler = handlers.find(job.topic)
    if handler is None or handler.on_dead is None:
        return
    connection: Any = connections[using]
    known, on_dead = len(connection.run_on_commit), handler.on_dead

    def call() -> None:
        with transaction.atomic(using), isolated(handler.ttr_ms):
            await_result(on_dead(job))

    try:
        retry_once(call, lambda: None)
    except BaseException:
        logger.exception("on_dead of %s failed; job %s is dead nevertheless", job.topic, job.id)
    connection.run_on_commit[known:] = [(ids, call, True) for ids, call, _ in connection.run_on_commit[known:]]
    if connection.closed_in_transaction or connection.needs_rollback:
        raise _OnDeadBrokeTransaction(job.id)


def defer(using: str, held: Any, *, delay_ms: int, declared_ms: int | None) -> None:
    """Delay a claimed job again without calling its handler now. Raises LeaseLost.

    delay_ms, declared_ms   as in worker.attempt.Defer
    """
    with transaction.atomic(using):
        if declared_ms is not None and held.topic in after_end:
            after_end[held.topic](using, held)
        found = transitions.defer(using, held.id, held.attempt, delay_ms=delay_ms, declared_ms=declared_ms)
        if found is None:
            raise LeaseLost(f"{held!r} is lost: its TTR passed and the job was taken back.")
        due_ms, done_ms = found
        if declared_ms is not None:
            event = Event(held.id, Outcome.RESCHEDULED, held.attempt, held.due_ms, done_ms, None, due_ms, held.worker)
            transitions.record(using, [event])
            on_commit.send_signal(using, signals.job_rescheduled, held.id)
        settlement = Settlement(held.id, held.topic, held.entry_ms, due_ms)
        transaction.on_commit(lambda: mirror.writable(using).settle([settlement]), using=using, robust=True)
        if declared_ms is not None:  # the row may have been saved since its lock was released
            _call_after_end(using, held, raises_conflicts=True)


def expire(using: str, snapshots: Iterable[JobSnapshot], trace: str = "") -> int:
    """Take back jobs whose lease has ended. Return the number of jobs taken back.

    trace   traceback of the interrupted handler, for the events

    Each job is ready again, or dead. If the attempt before was taken back as well, the job waits as the topic's backoff
    says: a job that kills its process must not do so 25 times in a row.

    The limit max_attempts is not applied to jobs of a topic that this process does not know. A process that knows the
    topic applies the limit when it claims the job.
    """
    return _take_back_all(using, snapshots, transitions.expire, ErrorCode.TIMED_OUT, trace)


def take_back(
    using: str,
    snapshots: Iterable[JobSnapshot],
    error: ErrorCode = ErrorCode.WORKER_LOST,
    *,
    was_called: Callable[[int], bool] = lambda _: True,
    trace: str = "",
) -> int:
    """Take back jobs whose worker is dead, as expire(), or whose group was interrupted.

    error        why they are taken back
    was_called   returns whether the handler of the job with this id was called; otherwise no failure is counted
    """
    return _take_back_all(using, snapshots, transitions.take_back, error, trace, was_called)


TakeBack = Callable[[str, Sequence[Abandoned], str], dict[int, TakenBack]]


def _take_back_all(
    using: str,
    snapshots: Iterable[JobSnapshot],
    statement: TakeBack,
    error: ErrorCode,
    trace: str = "",
    was_called: Callable[[int], bool] = lambda _: True,
) -> int:
    by_id = {s.id: s for s in snapshots}
    if not by_id:
        return 0
    attempts = [_abandoned(using, s, was_called(s.id)) for s in by_id.values()]

    def end(skip: Collection[int]) -> int:
        with transaction.atomic(using):
            taken = statement(using, attempts, error.value)
            jobs = get_jobs(using, taken.keys())
            transitions.record(
                using,
                [_expired_event(by_id[i], jobs[i], each.now_ms, trace or error.value) for i, each in taken.items()],
            )
            dead = [job for job in jobs.values() if job.state == State.DEAD]
            for job in dead:
                if job.id not in skip:
                    _call_on_dead(using, job)
            schedule_next(using, [job_id for job_id, each in taken.items() if each.again])
            expired = [(by_id[i], jobs[i]) for i in taken]
            transaction.on_commit(lambda: _notify_expired(using, expired, error), using=using, robust=True)
            for job in jobs.values():
                _call_after_end(using, job)
        return len(taken)

    return _skipping_broken_on_dead(using, end)


def _abandoned(using: str, snapshot: JobSnapshot, was_called: bool) -> Abandoned:
    handler = topics.find(using, snapshot.topic)
    max_attempts = handler.max_attempts if handler else handlers.max_attempts_if_known(snapshot.topic)
    return Abandoned(
        snapshot.id, snapshot.attempt, max_attempts,
        (handler.backoff if handler else DEFAULT_BACKOFF).delay_ms(snapshot.failures + 1),
        handler.retry_within_ms if handler else None, int(was_called),
    )  # fmt: skip


def _call_after_end(using: str, held: Any, *, raises_conflicts: bool = False) -> None:
    """Call the topic's function of after_end. An error is only logged: the attempts must end nevertheless.

    An error that breaks the connection or the transaction, which then ends no attempt, is raised.

    raises_conflicts   raise a conflict with another transaction, because the caller then tries again
    """
    if held.topic not in after_end:
        return
    connection: Any = connections[using]
    try:
        with transaction.atomic(using):
            after_end[held.topic](using, held)
    except Exception as error:
        if connection.closed_in_transaction or connection.needs_rollback or (raises_conflicts and is_retryable(error)):
            raise
        logger.exception("%s: the function to call after an attempt of job %s failed", held.topic, held.id)


def _expired_event(snapshot: JobSnapshot, job: "Job", done_ms: int, error: str) -> Event:
    dead = job.state == State.DEAD
    return Event(
        job.id, Outcome.DEAD if dead else Outcome.EXPIRED, job.attempt, snapshot.due_ms, done_ms,
        snapshot.reserved_ms, None if dead else job.due_ms, job.worker, error=error,
    )  # fmt: skip


def _notify_expired(using: str, expired: "Sequence[tuple[JobSnapshot, Job]]", code: ErrorCode) -> None:
    index = mirror.writable(using)
    index.count("expired", len(expired))
    index.settle(
        Settlement(s.id, s.topic, s.lease_ms or 0, GONE if job.state == State.DEAD else job.due_ms)
        for s, job in expired
    )
    error = error_text(code)
    for _, job in expired:
        log_and_signal(Outcome.DEAD if job.state == State.DEAD else Outcome.EXPIRED, job, error)
