"""Jobs in the hands of somebody outside: taken, finished, given back, buried, touched by (id, attempt).

What a worker does inside its own process (worker.py, handling.py), for consumers that call over
HTTP. A lease that is over is over here, even if nobody has taken the job since: a consumer on
the other side of a network learns that it was too late, not that it was lucky.
"""

from datetime import datetime, timedelta
from typing import NoReturn

from . import bells, clock, conf, engine, statements, topics
from .attempt import Attempt
from .backoff import Backoff
from .claiming import take
from .conflicts import retried_once
from .endings import Verdict, conclude
from .exceptions import LeaseLost, MirrorDown
from .statements import Holding
from .states import Outcome, State

MAX_ERROR = 10_000  # characters of what a consumer says went wrong
BURIED = "Buried by its consumer."


def reserve(topic: str, count: int, *, using: str, worker: str) -> list[Attempt]:
    """Up to `count` ready jobs of a topic, oldest due first, held until their deadline; [] if none is ready.

    worker   who takes them; kept in the row and in the events

    Nothing is taken of a topic that is paused. Run slots are not asked: they are for workers, a
    consumer takes as many as it can handle.
    """
    topics.check_topic(topic)
    if bells.terms(using, topic).paused:
        return []
    most = min(count, conf.get().batch_max)
    try:
        return take(engine.places(using), topic, most, using=using, worker=worker)
    except MirrorDown:  # it counts as down now: the database answers
        return take(engine.places(using), topic, most, using=using, worker=worker)


def finish(job_id: int, attempt: int, *, using: str, by: str = "") -> None:
    """Finish a job that this attempt holds. Raises LeaseLost."""
    _end(using, _held(using, job_id, attempt, by), Outcome.FINISHED)


def bury(job_id: int, attempt: int, *, using: str, by: str = "", reason: str = "") -> None:
    """Declare a job that this attempt holds dead; staff can retry it. Raises LeaseLost."""
    _end(using, _held(using, job_id, attempt, by), Outcome.DEAD, error=reason or BURIED)


def release(
    job_id: int,
    attempt: int,
    *,
    using: str,
    by: str = "",
    delay: timedelta | float | int | None = None,
    error: str = "",
) -> State:
    """Give back a job that this attempt holds; what it is now: DELAYED, or DEAD.

    delay   timedelta or seconds until it is due again; None: at once
    error   what went wrong. Then the attempt counts as failed: without a delay the topic's backoff
            decides, and a job that has used up its max_attempts is dead

    Raises LeaseLost, BadDelay.
    """
    delay_ms = None if delay is None else topics.to_delay_ms(delay, max_seconds=conf.get().max_delay_seconds)
    held = _held(using, job_id, attempt, by)
    if not error:
        _end(using, held, Outcome.RELEASED, delay_ms)
        return State.DELAYED
    if held.failures + 1 >= topics.max_attempts(held.topic):
        _end(using, held, Outcome.DEAD, error=error)
        return State.DEAD
    _end(using, held, Outcome.FAILED, _backoff_ms(held) if delay_ms is None else delay_ms, error)
    return State.DELAYED


def touch(job_id: int, attempt: int, *, using: str) -> datetime:
    """Begin the TTR of a held job anew, from now; its new deadline. Raises LeaseLost."""
    held = _held(using, job_id, attempt, "")
    leases = retried_once(lambda: statements.renew_if_held(using, [(job_id, attempt)], in_time=True), using)
    if job_id not in leases:
        _refuse(using, job_id, attempt)
    held.renewed(leases[job_id])
    return held.deadline


def _held(using: str, job_id: int, attempt: int, by: str) -> Attempt:
    holding = statements.find_holding(using, job_id)
    if holding is None or not holding.held_by(attempt):
        _refuse(using, job_id, attempt, holding)
    found = Attempt(holding.claimed, using, holding.worker)
    found.actor = by
    return found


def _end(using: str, held: Attempt, outcome: Outcome, delay_ms: int | None = None, error: str = "") -> None:
    verdict = Verdict(held, outcome, delay_ms, error.replace("\x00", "\\x00")[:MAX_ERROR])
    try:
        retried_once(lambda: conclude(using, [verdict], in_time=True), using)
    except LeaseLost:  # between our look and the statement
        _refuse(using, held.id, held.attempt)


def _backoff_ms(held: Attempt) -> int:
    handler = topics.find(held.topic)
    return (handler.backoff if handler else Backoff()).delay_ms(held.failures + 1)


def _refuse(using: str, job_id: int, attempt: int, found: Holding | None = None) -> NoReturn:
    engine.tell(using).count("lease_lost")
    raise LeaseLost(_why(found or statements.find_holding(using, job_id), job_id, attempt))


def _why(found: Holding | None, job_id: int, attempt: int) -> str:
    if found is None:
        return f"Job {job_id} is unknown."
    job, state = f"{found.claimed.topic} {found.claimed.key!r} (job {job_id})", State(found.state)
    if state not in (State.DELAYED, State.RESERVED):
        return f"Attempt {attempt} of {job} is refused: the job is {state.word} already."
    if found.claimed.attempt != attempt:
        latest = f"its latest attempt is {found.claimed.attempt}" if found.claimed.attempt else "it was never reserved"
        return f"Attempt {attempt} of {job} is refused: {latest}."
    if state is State.RESERVED:
        until = clock.from_ms(found.claimed.lease_ms).isoformat(timespec="milliseconds")
        ttr = found.claimed.ttr_ms / 1000
        return f"Attempt {attempt} of {job} is refused: its TTR of {ttr:g} s was over at {until}; touch a job in time."
    return f"Attempt {attempt} of {job} is refused: its TTR was over, or it was given back; the job waits for its turn."
