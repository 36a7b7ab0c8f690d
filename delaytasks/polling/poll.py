"""poll(): a handler that is called again after a list of delays, until its question is settled or a deadline passes.

The job's row counts the polls. Only an answered poll increments the count, in the statement that ends the attempt: a
crash, a failed attempt or a change of the due time skips no delay.
"""

import functools
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack

from django.db import DatabaseError, InterfaceError, connections, transaction

from .. import clock, handlers
from ..exceptions import BadDelay, LeaseLost
from ..handlers import HandlerOptions, Polled, Skip, Snooze
from ..jobs.handles import Handle
from ..outcomes import ErrorCode
from ..states import Outcome
from ..worker.attempt import RunningJob
from ..worker.completion import Completion
from ..worker.coroutines import await_result
from ..worker.executor import NEVER_RAN
from .durations import Duration, to_duration

if TYPE_CHECKING:
    from ..models import Job

logger = logging.getLogger("delaytasks")
Function = TypeVar("Function", bound=Callable[[RunningJob], object])
OnGiveUp = Callable[[RunningJob], object | Coroutine[Any, Any, object]]
SHORTEST_REPEATED = timedelta(milliseconds=100)


def poll(
    topic: str,
    *,
    every: Sequence[Duration],
    until: Duration,
    on_give_up: OnGiveUp | None = None,
    **options: Unpack[HandlerOptions],
) -> Callable[[Function], Handle[Function]]:
    """Register the decorated function as the handler of `topic`, to be called until its question is settled.

        @poll("refund.check", every=["2m", "10m", "10m", "1h", "6h"], until=timedelta(days=3), on_give_up=to_a_person)
        def check_refund(job: RunningJob) -> bool:
            return bank.is_settled(job.body["refund"])

        # The first poll; every[0] is the delay after it.
        check_refund.schedule(refund, delay=60, body={"refund": refund.pk})

    every       delays between the polls: text such as "90s" or "1h30m", timedelta, or seconds. The last one
                repeats
    until       the deadline: a duration as in `every`, from the time at which the job was scheduled or last
                replaced, or from the time of a schedule's run. The last poll is at the deadline
    on_give_up  callable(RunningJob), called if the last poll fails or does not settle the question. The job is then
                finished with the error code "gave_up", in the same transaction. If the callable raises, nothing is
                committed, and the attempt fails. None: the job is dead instead

    The function returns a true value when the question is settled, and a false value to be called again. It may
    also return Snooze(delay), to be called again after that delay, or Skip. The function and on_give_up may be
    coroutine functions. The other options are those of handler(), without batch.

    `job.polls` counts the polls that returned a false value. After a failed attempt or a crash, the poll is retried
    by the topic's backoff, but not after the deadline; this does not move on to the next delay. Each answered poll
    resets `failures` to 0: the job is dead after max_attempts failures without an answer between them.

    Raises BadDelay, and the exceptions of handler().
    """
    if "batch" in options:
        raise ValueError(f"poll({topic!r}): batch is not possible, because each job has its own delays and deadline.")
    handlers.check_options("poll()", options, HandlerOptions)
    handlers.check_callback(topic, "on_give_up", on_give_up)
    ladder = Ladder.parse(every, until)

    def register(function: Function) -> Handle[Function]:
        plain = function.function if isinstance(function, Handle) else function
        handlers.check_parameters(topic, plain, "job")
        handlers.handler(topic, **options)(Poll(topic, plain, ladder, on_give_up))
        return Handle(topic, plain)

    return register


@dataclass(frozen=True)
class Ladder:
    """The delays between the polls of a job, and the time after which it gives up."""

    rungs: tuple[timedelta, ...]
    until: timedelta

    @classmethod
    def parse(cls, every: Sequence[Duration], until: Duration) -> "Ladder":
        """Return the ladder of these delays and this deadline. Raises BadDelay."""
        if isinstance(every, str) or not isinstance(every, Sequence) or not every:
            raise BadDelay(f"every is {every!r:.100}: give a list of delays, such as ['2m', '10m', '1h'].")
        rungs = tuple(to_duration(rung, what=f"every[{number}]") for number, rung in enumerate(every))
        if rungs[-1] < SHORTEST_REPEATED:
            raise BadDelay(
                f"every[{len(rungs) - 1}] is {every[-1]!r:.100}: the last delay repeats, so give 0.1 s or more."
            )
        deadline = to_duration(until, what="until")
        if not deadline:
            raise BadDelay("until is 0: give the time after which the poll gives up.")
        return cls(rungs, deadline)

    def delay(self, polls: int) -> timedelta:
        """Return the delay after this poll, counted from 0. The last delay repeats."""
        return self.rungs[min(polls, len(self.rungs) - 1)]

    def deadline_ms(self, scheduled_ms: int) -> int:
        """Return when a job that was scheduled at this time gives up; both in ms since 1970."""
        return scheduled_ms + self.until // timedelta(milliseconds=1)


class Poll(Generic[Function]):
    """The handler of a polling topic: calls the decorated function, and schedules the next poll or gives up."""

    def __init__(self, topic: str, function: Function, ladder: Ladder, on_give_up: OnGiveUp | None) -> None:
        functools.update_wrapper(self, function)
        self.topic, self.function, self.ladder, self.on_give_up = topic, function, ladder, on_give_up
        self.retry_within_ms = ladder.deadline_ms(0)
        self.__code__ = getattr(function, "__code__", None)  # handlers.add() recognizes the function by it

    def __call__(self, job: RunningJob) -> Any:
        deadline_ms = self.ladder.deadline_ms(job.scheduled_ms)
        if job.reserved_ms >= deadline_ms:
            return self._ask_last(job)
        job.until_ms = deadline_ms
        result = self._ask(job)
        if isinstance(result, (Skip, *NEVER_RAN)):
            return result
        if _is_settled(job, result):
            return None
        if isinstance(result, Snooze):
            return Polled(result.delay, result.reason)
        return Polled(self.ladder.delay(job.polls))

    def _ask(self, job: RunningJob) -> object:
        """Call the function and return its result. Raises an exception that it returns."""
        result: object = await_result(self.function(job))
        if isinstance(result, Exception):
            raise result
        return result

    def _ask_last(self, job: RunningJob) -> Any:
        """Poll at the deadline, and give up unless the answer is true. Rolls back the writes of a poll that raises."""
        inside = connections[job.using].in_atomic_block
        try:
            with transaction.atomic(job.using) if inside else nullcontext():
                result = self._ask(job)
        except (LeaseLost, DatabaseError, InterfaceError):  # _give_up() would fail, too
            raise
        except Exception as error:
            if _has_ended(job):
                raise
            logger.warning("%s %s: the last poll failed", job.topic, job.key, exc_info=True)
            return self._give_up(job, type(error).__name__)
        if isinstance(result, (Skip, *NEVER_RAN)):
            return result
        return None if _is_settled(job, result) else self._give_up(job)

    def _give_up(self, job: RunningJob, reason: str = "") -> None:
        outcome = Outcome.DEAD if self.on_give_up is None else Outcome.FINISHED
        with job.ending(Completion(job, outcome, error=ErrorCode.GAVE_UP, reason=reason)):
            if self.on_give_up is not None:
                await_result(self.on_give_up(job))


def _is_settled(job: RunningJob, result: object) -> bool:
    """Return whether the poll is over: the result is true and not a Snooze, or the function has ended the job."""
    return (bool(result) and not isinstance(result, Snooze)) or _has_ended(job)


def _has_ended(job: RunningJob) -> bool:
    return job.ended and not job.still_held()


def find_poll(topic: str) -> Poll[Any] | None:
    """Return the polling handler of a topic in this process, or None."""
    handler = handlers.find(topic)
    return handler.function if handler is not None and isinstance(handler.function, Poll) else None


def deadline_of(job: "Job") -> datetime | None:
    """Return when a job gives up, or None if its topic has no polling ladder here."""
    found = find_poll(job.topic)
    if found is None:
        return None
    return clock.from_ms(found.ladder.deadline_ms(clock.to_ms(max(job.replaced_at or job.created_at, job.created_at))))
