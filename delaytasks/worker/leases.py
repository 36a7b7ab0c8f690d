"""Reserve jobs for consumers over HTTP, and finish, release, bury and touch them by id and attempt.

Workers do the same in worker/runner.py and worker/executor.py. The functions of this module also refuse an attempt
whose lease has ended but whose job has not been taken back, so that a consumer always learns that it was too late.
"""

from datetime import datetime, timedelta
from typing import NoReturn

from .. import clock, conf, handlers, mirror, topics, validators
from ..backoff import DEFAULT_BACKOFF
from ..db import transitions
from ..db.retries import retry_conflicts
from ..db.transitions import AttemptRow
from ..exceptions import LeaseLost
from ..outcomes import ErrorCode
from ..states import Outcome, State
from .attempt import RunningJob
from .claim import take
from .completion import Completion, complete

MAX_ERROR = 10_000  # characters of a consumer's error text


def reserve(topic: str, count: int, *, using: str, worker: str) -> list[RunningJob]:
    """Reserve up to `count` ready jobs of a topic, in order of priority and age. Return [] if none is ready.

    worker   the consumer's name; stored in the row and in the events

    Jobs of a paused topic are not reserved. Run slots limit workers only, not consumers, which take as many
    jobs as they can handle.
    """
    validators.check_topic(topic)
    if topics.topic_settings(using, topic).paused:
        return []
    limit = min(count, conf.get().batch_max)
    return mirror.read(using, lambda index: take(index, topic, limit, using=using, worker=worker))


def finish(job_id: int, attempt: int, *, using: str, by: str = "") -> None:
    """Finish a job that this attempt holds. Raises LeaseLost."""
    _end(using, _held(using, job_id, attempt, by), Outcome.FINISHED)


def bury(job_id: int, attempt: int, *, using: str, by: str = "", reason: str = "") -> None:
    """Mark a job that this attempt holds as dead; staff can retry it. Raises LeaseLost."""
    _end(using, _held(using, job_id, attempt, by), Outcome.DEAD, error=_clean(reason) or ErrorCode.BURIED)


def release(
    job_id: int,
    attempt: int,
    *,
    using: str,
    by: str = "",
    delay: timedelta | float | int | None = None,
    error: str = "",
) -> State:
    """Give back a job that this attempt holds. Return its new state, DELAYED or DEAD.

    delay   timedelta or seconds until the job is due again; None: at once, or after the topic's backoff if `error` is
            given
    error   why the attempt failed; after max_attempts failures the job is dead. "": the attempt did not fail

    Raises LeaseLost, BadDelay.
    """
    delay_ms = None if delay is None else validators.to_delay_ms(delay, max_seconds=conf.get().max_delay_seconds)
    error = _clean(error)
    held = _held(using, job_id, attempt, by)
    if not error:
        _end(using, held, Outcome.RELEASED, delay_ms)
        return State.DELAYED
    if held.failures + 1 >= handlers.max_attempts(held.topic):
        _end(using, held, Outcome.DEAD, error=error)
        return State.DEAD
    _end(using, held, Outcome.FAILED, _backoff_ms(held) if delay_ms is None else delay_ms, error)
    return State.DELAYED


def touch(job_id: int, attempt: int, *, using: str) -> datetime:
    """Restart the TTR of a job that this attempt holds. Return the new deadline. Raises LeaseLost."""
    held = _held(using, job_id, attempt, "")
    leases = retry_conflicts(lambda: transitions.renew_if_held(using, [(job_id, attempt)], in_time=True), using)
    if job_id not in leases:
        refuse(job_id, attempt, using=using)
    held.renewed(leases[job_id])
    return held.deadline


def refuse(job_id: int, attempt: int, *, using: str, row: AttemptRow | None = None) -> NoReturn:
    """Count a lost lease, and raise LeaseLost with the reason.

    row   the job as it was read; None: it is read again
    """
    mirror.writable(using).count("lease_lost")
    raise LeaseLost(_refusal(row or transitions.find_attempt(using, job_id), job_id, attempt))


def _held(using: str, job_id: int, attempt: int, by: str) -> RunningJob:
    row = transitions.find_attempt(using, job_id)
    if row is None or not row.held_by(attempt):
        refuse(job_id, attempt, using=using, row=row)
    return RunningJob(row.claimed, using, row.worker, by)


def _end(using: str, held: RunningJob, outcome: Outcome, delay_ms: int | None = None, error: str = "") -> None:
    completion = Completion(held, outcome, delay_ms, error)
    try:
        retry_conflicts(lambda: complete(using, [completion], in_time=True), using)
    except LeaseLost:  # the lease was lost between _held() and complete()
        refuse(held.id, held.attempt, using=using)


def _clean(error: str) -> str:
    """Return a consumer's text without NULs, which PostgreSQL refuses, cut to 10,000 characters."""
    return error.replace("\x00", "\\x00")[:MAX_ERROR]


def _backoff_ms(held: RunningJob) -> int:
    handler = handlers.find(held.topic)
    return (handler.backoff if handler else DEFAULT_BACKOFF).delay_ms(held.failures + 1)


def _refusal(row: AttemptRow | None, job_id: int, attempt: int) -> str:
    if row is None:
        return f"Job {job_id} is unknown."
    job, state = f"{row.claimed.topic} {row.claimed.key!r} (job {job_id})", State(row.state)
    if state not in (State.DELAYED, State.RESERVED):
        return f"Attempt {attempt} of {job} is refused: the job is {state.word} already."
    if row.claimed.attempt != attempt:
        latest = f"its latest attempt is {row.claimed.attempt}" if row.claimed.attempt else "it was never reserved"
        return f"Attempt {attempt} of {job} is refused: {latest}."
    if state is State.RESERVED:
        until = clock.rfc3339_of(row.claimed.lease_ms)
        ttr = row.claimed.ttr_ms / 1000
        return f"Attempt {attempt} of {job} is refused: its TTR of {ttr:g} s ended at {until}. Touch jobs in time."
    return (
        f"Attempt {attempt} of {job} is refused: its TTR ended, or the job was released. It waits to be reserved again."
    )
