"""How an attempt ends: finished, asked again later, retried, given back, dead or expired.

Each ending is one guarded statement together with its events, in the caller's transaction if
there is one. The mirror, the signals and the log hear of it on commit.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple, Protocol, TypeVar

from django.db import connections, transaction

from . import engine, signals, statements, topics
from .exceptions import LeaseLost
from .interrupted import forget_broken
from .leftovers import guarded
from .models import Job
from .places import GONE, Settlement
from .statements import Ending, Event
from .states import Outcome, State
from .watching import Standing

logger = logging.getLogger("delaytasks")
EXPIRED = "Its TTR was over and nobody had finished it."
_SIGNALS = {
    Outcome.FINISHED: signals.job_finished,
    Outcome.SNOOZED: signals.job_snoozed,
    Outcome.FAILED: signals.job_failed,
    Outcome.EXPIRED: signals.job_failed,
    Outcome.DEAD: signals.job_dead,
}
Answer = TypeVar("Answer")
_STATES = {Outcome.FINISHED: State.FINISHED, Outcome.DEAD: State.DEAD}


class Held(Protocol):
    """What an ending needs to know of the attempt that it ends."""

    id: int
    topic: str
    key: str
    attempt: int
    due_ms: int
    reserved_ms: int
    entry_ms: int  # where the mirror's entry is
    worker: str
    actor: str  # who ends it, when that is not the worker


class Verdict(NamedTuple):
    held: Any  # Held
    outcome: Outcome
    delay_ms: int | None = None  # for what goes on; None keeps the due time
    error: str = ""  # the whole traceback, shortened; the job keeps its last line


def last_line(error: str) -> str:
    lines = error.strip().splitlines() if error else []
    return lines[-1][:1000] if lines else ""


class Told(list[tuple[Verdict, int]]):
    """How attempts ended, each with the due time in ms that its job has now; told to the rest once it is committed."""

    committed = False
    on_commit: Callable[[], Any] = staticmethod(lambda: None)  # called before the callbacks of others


@contextmanager
def one_commit(using: str, gone: list[Any] | None = None) -> Iterator[Told]:
    """A transaction whose commit ends attempts: pass what it yields to conclude().

    gone   collects the attempts whose jobs have ended, for the caller to call remove() soon: an entry that is
           left over costs a refused claim, if that

    What is told on commit is registered first: a callback of somebody else's that raises keeps
    later ones from being called. An error that comes out with .committed set is such a callback's.
    """
    told = Told()

    def after_commit() -> None:
        told.committed = True
        tell(using, told, gone)
        told.on_commit()

    with transaction.atomic(using):
        transaction.on_commit(after_commit, using=using, robust=True)
        yield told


def conclude(
    using: str,
    verdicts: Sequence[Verdict],
    told: Told | None = None,
    *,
    in_time: bool = False,
    relaxed: bool = False,
) -> None:
    """End these attempts, all or none. Raises LeaseLost if one of them is no longer held; nothing is written then.

    told      what one_commit() yielded, where the caller is inside it; None: it is told on commit from here
    in_time   a lease that is over no longer holds, even if nobody has taken the job back
    relaxed   PostgreSQL: the commit does not wait for the disk
    """
    if verdicts:
        _without_wreckers(using, lambda skip: _conclude(using, verdicts, told, in_time, relaxed, skip))


def _conclude(
    using: str, verdicts: Sequence[Verdict], told: Told | None, in_time: bool, relaxed: bool, skip: Collection[int]
) -> None:
    # All or none with the caller's transaction, without a savepoint: that is two round trips less.
    with transaction.atomic(using, savepoint=False) if told is None else nullcontext():
        ended = statements.end_if_held(using, [_ending(v) for v in verdicts], in_time=in_time, relaxed=relaxed)
        if len(ended) < len(verdicts):
            lost = next(v.held for v in verdicts if v.held.id not in ended)
            raise LeaseLost(
                f"Attempt {lost.attempt} of {lost.topic} {lost.key} (id {lost.id}) is refused: its TTR passed and it "
                "was taken back, or somebody else ended it."
            )
        for verdict in verdicts:
            if verdict.outcome is Outcome.DEAD and verdict.held.id not in skip:
                _call_on_dead(using, verdict.held)
        outcome = [(v, ended[v.held.id][0]) for v in verdicts]
        if told is not None:
            told.extend(outcome)
        else:
            transaction.on_commit(lambda: tell(using, outcome), using=using, robust=True)


def _ending(verdict: Verdict) -> Ending:
    held: Held = verdict.held
    failed = verdict.outcome in (Outcome.FAILED, Outcome.DEAD)
    state = _STATES.get(verdict.outcome, State.DELAYED)
    return Ending(
        held.id, held.attempt, int(state), verdict.delay_ms, int(failed), last_line(verdict.error),
        verdict.outcome, held.due_ms, held.reserved_ms, held.worker, held.actor, verdict.error,
    )  # fmt: skip


def tell(using: str, ended: Sequence[tuple[Verdict, int]], gone: list[Any] | None = None) -> None:
    """Tell the mirror, the log and the signals how attempts ended. After the commit. gone as above."""
    going_on = [
        Settlement(v.held.id, v.held.topic, v.held.entry_ms, due_ms) for v, due_ms in ended if v.outcome not in _STATES
    ]
    over = [v.held for v, _ in ended if v.outcome in _STATES]
    if going_on:
        engine.tell(using).settle(going_on)
    if gone is not None:
        gone += over
    elif over:
        remove(using, over)
    for verdict, _ in ended:
        announce(verdict.outcome, verdict.held, last_line(verdict.error))


def remove(using: str, over: Iterable[Held]) -> None:
    """Take the jobs of attempts that ended out of the mirror."""
    engine.tell(using).settle(Settlement(held.id, held.topic, held.entry_ms, GONE) for held in over)


def announce(outcome: Outcome, job: Any, error: str = "") -> None:
    """Log an outcome with topic, key, id and attempt, and send its signal."""
    level = logging.WARNING if error else logging.DEBUG
    if logger.isEnabledFor(level):
        known = {"topic": job.topic, "key": job.key, "id": job.id, "attempt": job.attempt}
        said = "".join(f" {name}={value!r}" for name, value in known.items())
        logger.log(level, "%s%s%s", outcome.value, said, f" error={error!r}" if error else "", extra={"job": known})
    signal = _SIGNALS.get(outcome)
    if signal is not None and signal.receivers:
        extra = {"error": error} if error else {}
        signal.send_robust(sender=job.topic, job=job, **extra)


class _Wrecked(Exception):
    """An on_dead took the transaction with it in which its job was to die."""

    def __init__(self, job_id: int) -> None:
        super().__init__(job_id)
        self.job_id = job_id


def _without_wreckers(using: str, bury: Callable[[Collection[int]], Answer]) -> Answer:
    """bury(ids of jobs whose on_dead is not called), again for each on_dead that wrecks it: the job dies, and others.

    Inside somebody's transaction that one is lost as a whole; _Wrecked is raised.
    """
    inside, skip = connections[using].in_atomic_block, set[int]()
    while True:
        try:
            return bury(skip)
        except _Wrecked as wrecked:
            if inside:
                raise
            forget_broken()
            skip.add(wrecked.job_id)


def _call_on_dead(using: str, job: Any) -> None:
    """Whatever it raises: what is to end this process would end each that tries to bury the job."""
    handler = topics.find(job.topic)
    if handler is None or handler.on_dead is None:
        return
    connection = connections[using]
    try:
        with transaction.atomic(using), guarded(handler.ttr_ms):
            handler.on_dead(job)
    except BaseException:
        logger.exception("on_dead of %s failed; the job %s is dead all the same", job.topic, job.id)
    if connection.closed_in_transaction or connection.needs_rollback:
        raise _Wrecked(job.id)


def expire(using: str, over: Iterable[Standing]) -> int:
    """Take back what outlived its TTR: ready again, or dead; how many were.

    Whether it has used up its attempts is not judged for a topic that is unknown here: who knows
    it buries it when it takes it next.
    """
    by_id = {s.id: s for s in over}
    if not by_id:
        return 0
    return _without_wreckers(using, lambda skip: _expire(using, by_id, skip))


def _expire(using: str, by_id: dict[int, Standing], skip: Collection[int]) -> int:
    leases = [(s.id, s.attempt, topics.judged_max_attempts(s.topic)) for s in by_id.values()]
    with transaction.atomic(using):
        taken = statements.expire(using, leases, EXPIRED)
        jobs = Job.objects.using(using).in_bulk(list(taken)) if taken else {}
        statements.record(using, [_expired_event(by_id[i], jobs[i], done_ms) for i, (_, done_ms) in taken.items()])
        for job in jobs.values():
            if job.state == State.DEAD and job.id not in skip:
                _call_on_dead(using, job)
        told = [(by_id[i], jobs[i]) for i in taken]
        transaction.on_commit(lambda: _tell_expired(using, told), using=using, robust=True)
    return len(taken)


def _expired_event(standing: Standing, job: Job, done_ms: int) -> Event:
    dead = job.state == State.DEAD
    return Event(
        job.id, Outcome.DEAD if dead else Outcome.EXPIRED, job.attempt, standing.due_ms, done_ms,
        standing.reserved_ms, None if dead else standing.due_ms, job.worker, error=EXPIRED,
    )  # fmt: skip


def _tell_expired(using: str, taken: Sequence[tuple[Standing, Job]]) -> None:
    places = engine.tell(using)
    places.count("expired", len(taken))
    places.settle(
        Settlement(s.id, s.topic, s.lease_ms or 0, GONE if job.state == State.DEAD else s.due_ms) for s, job in taken
    )
    for _, job in taken:
        announce(Outcome.DEAD if job.state == State.DEAD else Outcome.EXPIRED, job, EXPIRED)
