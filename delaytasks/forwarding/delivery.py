"""Deliver the due jobs of a topic to its target, and hold the topic while the target is away."""

import time
from collections.abc import Sequence
from typing import Any

from .. import databases, permissions
from ..exceptions import TTRExceeded
from ..handlers import Finished, Snooze
from ..validators import to_line
from ..worker.attempt import RunningJob
from . import holds
from .targets import Format, Message, Rejected, Target, TargetDown

MARGIN_SECONDS = 1.0  # of the TTR, left to store the result of a call
ALONE_SECONDS = 5.0  # for how long the messages of a refused batch are sent one by one; the rest goes back
# Job id -> None or Finished if the target confirmed the message; Snooze if the job is to be sent again later;
# otherwise the exception with which the attempt failed.
Results = dict[int, Any]


def deliver(jobs: Sequence[RunningJob], *, target: Target, format: Format, source: str) -> Results:
    """Send jobs to their target and wait for the confirmations. This is the handler of a topic that is forwarded.

    A target that is away holds the topic: the jobs that it has not confirmed go back without a failure.
    """
    using, topic = jobs[0].using, jobs[0].topic
    wait = holds.wait_seconds(using, topic, jobs[0].ttr_ms)
    if wait:
        return dict.fromkeys((job.id for job in jobs), Snooze(wait))
    results = _Call(target, jobs, format, source).send(probes=wait == 0)
    down = [error for error in results.values() if isinstance(error, TargetDown)]
    if down:
        if any(map(_is_confirmed, results.values())):  # a queue that was full takes some: the hold begins anew
            holds.release(using, topic)
        seconds = holds.hold(using, topic, down[0].reason, down[0].retry_seconds)
        return {i: _postponed(each, seconds) if isinstance(each, TargetDown) else each for i, each in results.items()}
    if any(_is_confirmed(each) or isinstance(each, Rejected) for each in results.values()):
        holds.release(using, topic)
    return results


def _is_confirmed(result: Any) -> bool:
    return result is None or isinstance(result, Finished)


def _postponed(error: TargetDown, seconds: float) -> Snooze:
    return Snooze(seconds, to_line(error.reason))


class _Call:
    """Sends the messages of jobs together; if they are refused together, one by one. Keeps the result of each."""

    def __init__(self, target: Target, jobs: Sequence[RunningJob], format: Format, source: str) -> None:
        self.target, self.jobs = target, jobs
        hides_body = permissions.topic_rules(jobs[0].using, jobs[0].topic).hides_bodies
        self.messages = [
            Message(
                str(job.id), job.topic, job.key, job.body, job.due_at, source, format, job.trace_context or "",
                hides_body,
            )
            for job in jobs
        ]  # fmt: skip
        self.results: dict[str, Any] = {}  # by the message's id

    def send(self, *, probes: bool) -> Results:
        """Return the result of each job. Raises TimeoutError if the TTR of one of them is over already.

        probes   the first message is sent before the others, to find out whether the target is back
        """
        if self._seconds() <= 0:
            raise TimeoutError(f"The TTR of {self.jobs[0]!r} was over before it was sent.")
        rest: Any = None
        for part in [self.messages[:1], self.messages[1:]] if probes else [self.messages]:
            if part and rest is None:
                rest = self._send(part)
        return {job.id: self.results.get(str(job.id), rest) for job in self.jobs}

    def _send(self, messages: Sequence[Message]) -> Any:
        """Send messages. Return None, or why no more can be sent: the result of those that have none of their own."""
        seconds = self._seconds()
        if seconds <= 0:
            return Snooze(0)
        error = self._try(messages, max(seconds - MARGIN_SECONDS, seconds / 2))
        if isinstance(error, TargetDown | TTRExceeded):
            return error
        left = [message for message in messages if message.id not in self.results]
        if left and len(messages) > 1:  # also one: it was not sent alone, so the error may not be its own
            return self._send_alone(left)
        for message in left:
            self.results[message.id] = error or RuntimeError(f"{self.target!r} has not reported a result.")
        return next((each for each in self.results.values() if isinstance(each, TargetDown)), None)

    def _send_alone(self, messages: Sequence[Message]) -> Any:
        """Send messages one by one, as _send()."""
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
                deliver_many(messages, seconds, self._keep)
                return None
            for message in messages:
                answer = self.target.deliver(message, seconds)
                self.results[message.id] = Finished(to_line(answer)) if answer and isinstance(answer, str) else None
        except Rejected as error:
            return Rejected(str(error))  # without traceback: staff read what the target answered
        except (Exception, TTRExceeded) as error:
            return error
        return None

    def _keep(self, message: Message, error: Exception | None) -> None:
        self.results[message.id] = error

    def _seconds(self) -> float:
        """Return the time until the first TTR of these jobs is over."""
        return (min(job.lease_ms for job in self.jobs) - databases.now_ms(self.jobs[0].using)) / 1000
