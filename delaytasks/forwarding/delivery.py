"""Deliver the due jobs of a topic to its target, and hold the topic while the target is unavailable."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from django.db import DEFAULT_DB_ALIAS, DatabaseError

from .. import clock, databases, handlers, permissions
from ..db.retries import try_twice
from ..exceptions import TTRExceeded
from ..handlers import Expired, Finished, NotBegun, Snooze
from ..models import JobEvent
from ..states import Outcome
from ..validators import to_line
from ..worker.attempt import RunningJob
from ..worker.coroutines import await_result
from . import holds
from .targets import Format, Message, Rejected, Target, TargetDown

logger = logging.getLogger("delaytasks")
MARGIN_SECONDS = 1.0  # part of the TTR that is kept to store the results of a call
ALONE_SECONDS = 5.0  # how long the messages of a refused batch are sent one by one; jobs left then are snoozed
MOVING = (Outcome.SNOOZED, Outcome.FAILED, Outcome.EXPIRED)  # attempts after which a job has another due time
# Job id -> None or Finished if the target confirmed the message; Snooze if the job is to be sent again later; Expired;
# NotBegun if it was not sent because the topic is held; otherwise the exception with which the attempt failed.
Results = dict[int, Any]


class RefusedAgain(Exception):
    """The target is unavailable for this message again, but it has taken others: the attempt fails."""


def deliver(jobs: Sequence[RunningJob], *, target: Target, format: Format, source: str) -> Results:
    """Send jobs to their target and wait for the confirmations. This is the handler of forwarded topics.

    If the target is unavailable, the topic is held, and the unconfirmed jobs are snoozed: no attempt counts as failed.
    But if it is so again for a single job while others are confirmed, that job's attempt fails and nothing is held.
    The jobs of a held topic that were not sent stay ready.
    """
    first_due_ms = _first_due_ms(jobs[0].using, jobs)
    results: Results = {job.id: Expired() for job in jobs if _is_expired(job, first_due_ms[job.id])}
    if jobs := [job for job in jobs if job.id not in results]:
        results |= _send_if_open(jobs, first_due_ms, target, format, source)
    return results


def _send_if_open(
    jobs: Sequence[RunningJob], first_due_ms: Mapping[int, int], target: Target, format: Format, source: str
) -> Results:
    """Send the jobs, unless their topic is held."""
    using, topic = jobs[0].using, jobs[0].topic
    turn = holds.turn(using, topic, jobs[0].ttr_ms)
    if turn is holds.Turn.NONE:
        return dict.fromkeys((job.id for job in jobs), NotBegun())
    results = _Call(target, jobs, first_due_ms, format, source).send(probes=turn is holds.Turn.PROBE)
    down = [error for error in results.values() if isinstance(error, TargetDown)]
    if down and turn is holds.Turn.ALL and len(jobs) == 1 and _is_refused_again(jobs[0], down[0]):
        return {jobs[0].id: RefusedAgain(down[0].reason)}
    if down:
        # The target took some messages, such as a full queue that is being emptied: start a new hold with a short wait.
        if any(map(_is_confirmed, results.values())):
            holds.release(using, topic)
        seconds = holds.hold(using, topic, down[0].reason, down[0].retry_seconds)
        return {i: _postponed(each, seconds) if isinstance(each, TargetDown) else each for i, each in results.items()}
    if any(_is_confirmed(each) or isinstance(each, Rejected) for each in results.values()):
        _end_hold(using, topic)
    elif turn is holds.Turn.PROBE:  # it failed, but not because the target is away
        holds.hold(using, topic, None, None)
    return results


def _is_refused_again(job: RunningJob, error: TargetDown) -> bool:
    """Return whether the last time that this job was sent, the target was unavailable for it, too.

    The topic is not held any more, so the target has taken other messages since then.
    """
    if job.attempt == 1 or error.retry_seconds is not None:  # the target asks every sender to wait
        return False
    events = JobEvent.objects.using(job.using).newest_of(job.id).filter(outcome__in=MOVING)
    found = try_twice(events.values_list("outcome", "reason", "error").first, job.using)
    outcome, reason, trace = found or ("", "", "")
    return bool(outcome == Outcome.SNOOZED and reason) or RefusedAgain.__name__ in trace


def _first_due_ms(using: str, jobs: Sequence[RunningJob]) -> dict[int, int]:
    """Return the due time that each job had before snoozes and retries, according to the events of its attempts."""
    due_ms = {job.id: job.due_ms for job in jobs}
    if again := [job.id for job in jobs if job.attempt > 1]:
        events = JobEvent.objects.using(using).filter(job_id__in=again, outcome__in=MOVING).order_by("-id")
        for job_id, was_due_ms, next_due_ms in events.values_list("job_id", "due_ms", "next_due_ms"):
            if next_due_ms == due_ms[job_id]:  # otherwise the job was moved after this attempt
                due_ms[job_id] = was_due_ms
    return due_ms


def _is_expired(job: RunningJob, first_due_ms: int) -> bool:
    """Return whether the job has expired while its topic was held. The claim has checked its present due time."""
    expires_ms = handlers.expires_ms(job.topic, job.expires_ms)
    if expires_ms is None or job.failures:
        return False
    return databases.now_ms(job.using) > first_due_ms + expires_ms


def message_id(job: RunningJob) -> str:
    """Return the id of the job's messages. Jobs of different databases may have the same id."""
    return str(job.id) if job.using == DEFAULT_DB_ALIAS else f"{job.using}-{job.id}"


def _end_hold(using: str, topic: str) -> None:
    """End the topic's hold, if it has one. A database error is logged: raised, it would send the messages again."""
    try:
        holds.release(using, topic)
    except DatabaseError as error:
        logger.warning("topic %s: its hold was not ended, the next confirmed message ends it: %r", topic, error)


def _is_confirmed(result: Any) -> bool:
    return result is None or isinstance(result, Finished)


def _postponed(error: TargetDown, seconds: float) -> Snooze:
    return Snooze(seconds, to_line(error.reason))


class _Call:
    """Send the messages of several jobs as a batch; if the batch is refused, one by one. Keep the result of each."""

    def __init__(
        self, target: Target, jobs: Sequence[RunningJob], first_due_ms: Mapping[int, int], format: Format, source: str
    ) -> None:
        self.target, self.jobs = target, jobs
        hides_body = permissions.topic_rules(jobs[0].using, jobs[0].topic).hides_bodies
        self.messages = [
            Message(
                message_id(job), job.topic, job.key, job.body, clock.from_ms(first_due_ms[job.id]), source, format,
                job.trace_context or "", hides_body,
            )
            for job in jobs
        ]  # fmt: skip
        self.results: dict[str, Any] = {}  # by the message's id

    def send(self, *, probes: bool) -> Results:
        """Return the result of each job. Raises TimeoutError if the TTR of one of them is over already.

        probes   True: send the first message alone, and the others only if the target is available
        """
        if self._seconds() <= 0:
            ended = min(self.jobs, key=lambda job: job.lease_ms)
            raise TimeoutError(f"The TTR of {ended!r} was over before it was sent.")
        rest: Any = None
        for part in [self.messages[:1], self.messages[1:]] if probes else [self.messages]:
            if isinstance(rest, TargetDown):  # the probe's: the other messages are not sent
                self.results |= dict.fromkeys((message.id for message in part), NotBegun())
            elif part and rest is None:
                rest = self._send(part)
        return {job.id: self.results.get(message_id(job), rest) for job in self.jobs}

    def _send(self, messages: Sequence[Message]) -> Any:
        """Send messages. Return None; or, if sending must stop, the result for all messages that have none yet."""
        seconds = self._seconds()
        if seconds <= 0:
            return Snooze(0)
        error = self._try(messages, max(seconds - MARGIN_SECONDS, seconds / 2))
        if isinstance(error, TargetDown | TTRExceeded):
            return error
        left = [message for message in messages if message.id not in self.results]
        if left and len(messages) > 1:  # even if one is left: the error may be that of another message of the batch
            return self._send_alone(left)
        for message in left:
            self.results[message.id] = error or RuntimeError(f"{self.target!r} has not reported a result.")
        return next((each for each in self.results.values() if isinstance(each, TargetDown)), None)

    def _send_alone(self, messages: Sequence[Message]) -> Any:
        """Send messages one by one. Return what _send() returns."""
        until = time.monotonic() + min(ALONE_SECONDS, self._seconds() - MARGIN_SECONDS)
        for message in messages:
            rest = self._send([message])
            if rest is None and time.monotonic() > until:
                rest = Snooze(0)
            if rest is not None:
                return rest
        return None

    def _try(self, messages: Sequence[Message], seconds: float) -> BaseException | None:
        """Send messages and keep the results that the target reports. Return the error that it raises, or None."""
        deliver_many = getattr(self.target, "deliver_many", None)
        try:
            if deliver_many is not None:
                await_result(deliver_many(messages, seconds, self._keep))
                return None
            for message in messages:
                answer = await_result(self.target.deliver(message, seconds))
                if isinstance(answer, Exception):
                    raise answer
                self.results[message.id] = Finished(to_line(answer)) if answer and isinstance(answer, str) else None
        except Rejected as error:
            return Rejected(str(error))  # a copy without traceback: staff are shown only the target's answer
        except (Exception, TTRExceeded) as error:
            return error
        return None

    def _keep(self, message: Message, error: Exception | None) -> None:
        self.results[message.id] = error

    def _seconds(self) -> float:
        """Return the seconds until the earliest lease of these jobs ends."""
        return (min(job.lease_ms for job in self.jobs) - databases.now_ms(self.jobs[0].using)) / 1000
