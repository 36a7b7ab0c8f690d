"""Which job an id means to this caller, and why a job is not theirs to finish, in words for people.

An id is looked for in the topics that the caller sees and nowhere else, so what is in others
changes neither an answer nor how long it takes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from .. import clock, engine
from ..models import Job, JobEvent
from ..states import Outcome, State
from .access import Caller, Right
from .fields import rfc3339

NAMED = 5  # topics that an ambiguous id's refusal names


class Refused(Exception):
    """Not possible as things are, which is no mistake of the request: success is false, with this reason.

    value   the answer's value
    """

    def __init__(self, reason: str, value: Any = None) -> None:
        super().__init__(reason)
        self.value = value


@dataclass(frozen=True)
class Call:
    """A command on its way: who calls, what one of `rights` is needed for it, and the fields that were sent."""

    view: Any
    caller: Caller
    using: str
    rights: tuple[Right, ...]
    sent: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.sent["id"])

    def live(self) -> Job:
        """The live job of the id, as who may hold one means it.

        Raises Refused, which says what became of it; PermissionDenied.
        """
        job = self.find(self._may_hold)
        if job is None:
            raise Refused(unknown(self.id))
        if job.ended_at is not None:
            raise Refused(ended(job))
        if self.sent.get("job", job.pk) != job.pk:
            raise Refused(f"{self.id!r} is another job by now: {job.pk}, and not {self.sent['job']}, which has ended.")
        return job

    def find(self, preferred: Callable[[Job], bool] = lambda job: False) -> Job | None:
        """The live job of the id, else the one that ended last, else None.

        preferred   which one is meant if several are live and only one is so

        Raises Refused if several are live; PermissionDenied without the right on its topic.
        """
        jobs = self._named()
        live = list(jobs.live().order_by("topic"))
        if len(live) > 1:
            live = [job for job in live if preferred(job)] or live
        if len(live) > 1:
            raise Refused(_ambiguous(live))
        # By its end, of which there is no index, so that the planner finds the few rows of the key first.
        job = live[0] if live else jobs.filter(ended_at__isnull=False).order_by("-ended_at", "-id").first()
        if job is not None:
            self.caller.require(self.rights, job.topic)
        return job

    def _named(self) -> Any:
        topic = self.sent.get("topic")
        among = self.caller.topics(self.using) if topic is None else [topic]
        return Job.objects.using(self.using).filter(topic__in=among, key=self.id)

    def _may_hold(self, job: Job) -> bool:
        mine = job.state == State.RESERVED and self._is_holder(job)
        same = self.sent.get("job", job.pk) == job.pk and self.sent.get("attempt", job.attempt) == job.attempt
        return mine and same

    def _is_holder(self, job: Job) -> bool:
        return job.worker == self.caller.name or job.worker.startswith(f"{self.caller.name}/")

    def attempt_at(self, job: Job) -> int:
        """The attempt that was sent, or else the one that this account itself holds. Raises Refused."""
        if "attempt" in self.sent:
            return int(self.sent["attempt"])
        if job.state != State.RESERVED:
            raise Refused(why_lost(self.using, job, job.attempt))
        if not self._is_holder(job):
            raise Refused(
                f"{job.key!r} is held by somebody else since {utc(job.reserved_at)}, as attempt {job.attempt}: "
                "give the attempt that pop gave you."
            )
        return job.attempt


def utc(moment: datetime | None) -> str:
    """RFC 3339, for a sentence."""
    return rfc3339(moment) if moment else "a time that is not known"


def seconds(ms: int) -> int | float:
    """Seconds, without a point if they are whole."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def unknown(key: str) -> str:
    return f"{key!r} is unknown: no job has this id."


def ended(job: Job) -> str:
    """How and when a job ended."""
    how = {State.FINISHED: "was finished at", State.CANCELLED: "was cancelled at", State.DEAD: "is dead since"}
    return f"{job.key!r} {how[State(job.state)]} {utc(job.ended_at)}."


def why_lost(using: str, job: Job, attempt: int) -> str:
    """Why `attempt` does not hold the job, which is as it was read a moment ago."""
    if job.ended_at is not None:
        return ended(job)
    if job.attempt == 0:
        return f"{job.key!r} was not popped yet: it is due at {utc(job.due_at)}."
    if attempt > job.attempt:
        return f"Attempt {attempt} of {job.key!r} was never given out: the latest is {job.attempt}."
    return f"Attempt {attempt} of {job.key!r} is over: {' '.join(_how_it_went(using, job, attempt))}."


def _how_it_went(using: str, job: Job, attempt: int) -> Iterator[str]:
    yield _how_it_ended(using, job, attempt)
    if attempt < job.attempt:
        yield f"and it was popped again as attempt {job.attempt} at {utc(job.reserved_at)}"
    elif job.due_ms <= engine.now_ms(using):
        yield "and it can be popped again"
    else:
        yield f"and it can be popped again at {utc(job.due_at)}"


def _how_it_ended(using: str, job: Job, attempt: int) -> str:
    ttr = f"its TTR of {seconds(job.ttr_ms)} s was over"
    if job.state == State.RESERVED and job.attempt == attempt:
        return f"{ttr} at {utc(job.lease_until)}"
    event = JobEvent.objects.using(using).newest_of(job.pk).filter(attempt=attempt).first()
    if event is None or event.outcome == Outcome.EXPIRED:
        at = f" and it was taken back at {utc(clock.from_ms(event.done_ms))}" if event else ""
        return f"{ttr}{at}"
    return f"it was given back at {utc(clock.from_ms(event.done_ms))}"


def _ambiguous(live: list[Job]) -> str:
    topics = ", ".join(job.topic for job in live[:NAMED]) + (", ..." if len(live) > NAMED else "")
    return f"{live[0].key!r} is live in several topics: {topics}. Give the topic, too."
