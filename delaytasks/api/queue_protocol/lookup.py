"""Find the job with an id, and explain why the caller does not hold the job.

Jobs are searched only in topics that the caller sees. Other topics affect neither the response nor its duration.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ... import clock, databases
from ...models import Job, JobEvent
from ...states import Outcome, State
from ...worker import leases
from ..access import receipts, refusals
from ..access.permissions import Caller, Right

MAX_TOPICS = 5  # listed in the refusal of an ambiguous id


class Refused(Exception):
    """The current state does not allow a valid request. The response has success false and this reason as error.

    value   "value" of the response
    """

    def __init__(self, reason: str, value: Any = None) -> None:
        super().__init__(reason)
        self.value = value


@dataclass(frozen=True)
class Call:
    """A command being executed: caller, required rights (one is enough) and the fields of the request."""

    view: Any
    caller: Caller
    using: str
    rights: tuple[Right, ...]
    fields: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.fields["id"])

    def live_job(self) -> Job:
        """Return the live job with this id; if there are several, the one that the caller holds.

        Raises Refused, whose message says what happened to the job, or PermissionDenied.
        """
        job = self.find_job(self._can_end)
        if job is None:
            raise Refused(unknown_message(self.id))
        number = self.fields.get("job", job.pk)
        named = job if number == job.pk else self._candidates().filter(pk=number).first() or job
        if named.ended_at is not None:
            raise Refused(ended_message(named))
        if number != job.pk:
            raise Refused(f"{self.id!r} is now job {job.pk}, not job {number}.")
        return job

    def find_job(self, preferred: Callable[[Job], bool] = lambda job: False) -> Job | None:
        """Return the live job with this id, else the one that ended last, or None if no job has the id.

        preferred   selects the wanted job if several are live

        Raises Refused if several live jobs remain, and PermissionDenied if the caller lacks the right on the topic.
        """
        jobs = self._candidates()
        live = list(jobs.live().order_by("topic"))
        if len(live) > 1:
            live = [job for job in live if preferred(job)] or live
        if len(live) > 1:
            raise Refused(_ambiguous_message(live))
        # Order by a column without an index, so that the planner looks up the few rows of the key first.
        job = live[0] if live else jobs.filter(ended_at__isnull=False).order_by("-ended_at", "-id").first()
        if job is not None:
            self.caller.require(self.rights, job.topic)
        return job

    def _candidates(self) -> Any:
        topic = self.fields.get("topic")
        among = self.caller.topics(self.using) if topic is None else [topic]
        return Job.objects.using(self.using).filter(topic__in=among, key=self.id)

    def _can_end(self, job: Job) -> bool:
        is_held = job.state == State.RESERVED and self._has_proof(job)
        is_requested = (
            self.fields.get("job", job.pk) == job.pk and self.fields.get("attempt", job.attempt) == job.attempt
        )
        return is_held and is_requested

    def _has_proof(self, job: Job) -> bool:
        return receipts.is_proof(self.fields.get("receipt"), self.caller.name, job)

    def check_held(self, job: Job, attempt: int) -> None:
        """Check that this attempt holds the job, and that it is the account's or the request has its receipt.

        Raises LeaseLost or Refused. LeaseLost also for an attempt that begins a moment later: who would hold it then is
        unknown.
        """
        if job.state != State.RESERVED or job.attempt != attempt:
            leases.refuse(job.pk, attempt, using=self.using)
        if not self._has_proof(job):
            refusals.record_no_receipt(self.caller, job)
            if "receipt" in self.fields:
                raise Refused(
                    f"This is not the receipt of attempt {attempt} of {job.key!r}: give the one that pop returned."
                )
            raise Refused(
                f"{job.key!r} is held by another account since {utc(job.reserved_at)}, as attempt {job.attempt}. "
                "Give the attempt and the receipt that pop returned."
            )


def utc(moment: datetime | None) -> str:
    """Return a time in RFC 3339 for use in messages, or "an unknown time" for None."""
    return clock.rfc3339(moment) if moment else "an unknown time"


def unknown_message(key: str) -> str:
    return f"{key!r} is unknown: no job has this id."


def ended_message(job: Job) -> str:
    """Return a message that says how and when a job ended."""
    verbs = {State.FINISHED: "was finished at", State.CANCELLED: "was cancelled at", State.DEAD: "is dead since"}
    return f"{job.key!r} {verbs[State(job.state)]} {utc(job.ended_at)}."


def lease_lost_message(using: str, job: Job, attempt: int) -> str:
    """Return a message that says why `attempt` does not hold `job`, which was just read."""
    if job.ended_at is not None:
        return ended_message(job)
    if job.attempt == 0:
        return f"{job.key!r} has not been popped yet: it is due at {utc(job.due_at)}."
    if attempt > job.attempt:
        return f"Attempt {attempt} of {job.key!r} does not exist: the latest is {job.attempt}."
    return f"Attempt {attempt} of {job.key!r} is over: {' '.join(_describe_attempt(using, job, attempt))}."


def _describe_attempt(using: str, job: Job, attempt: int) -> Iterator[str]:
    yield _describe_end(using, job, attempt)
    if attempt < job.attempt:
        yield f"and it was popped again as attempt {job.attempt} at {utc(job.reserved_at)}"
    elif job.due_ms <= databases.now_ms(using):
        yield "and it can be popped again"
    else:
        yield f"and it can be popped again at {utc(job.due_at)}"


def _describe_end(using: str, job: Job, attempt: int) -> str:
    ttr = f"its TTR of {clock.to_seconds(job.ttr_ms)} s was over"
    if job.state == State.RESERVED and job.attempt == attempt:
        return f"{ttr} at {utc(job.lease_until)}"
    event = JobEvent.objects.using(using).newest_of(job.pk).filter(attempt=attempt).first()
    if event is None or event.outcome == Outcome.EXPIRED:
        at = f" and it was taken back at {utc(clock.from_ms(event.done_ms))}" if event else ""
        return f"{ttr}{at}"
    return f"it was released at {utc(clock.from_ms(event.done_ms))}"


def _ambiguous_message(live: list[Job]) -> str:
    topics = ", ".join(job.topic for job in live[:MAX_TOPICS]) + (", ..." if len(live) > MAX_TOPICS else "")
    return f"{live[0].key!r} is live in several topics: {topics}. Give the topic as well."
