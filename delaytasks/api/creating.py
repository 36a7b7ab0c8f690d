"""POST /jobs/: one job, or up to 1,000 of them, all or none; idempotent by topic and key through on_conflict."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction
from django.urls import reverse
from rest_framework import serializers
from rest_framework.response import Response

from .. import promises, scheduling, statements, topics
from ..conflicts import retried_once
from ..exceptions import BadBody, BadDelay, BadInput, BadTTR, KeyIsLive, Reserved
from ..models import Job, JobEvent, Topic
from ..states import Outcome, State
from . import problems
from .access import Caller, Right
from .answers import MadeJobSerializer
from .problems import NO_TOPIC, Problem, ProblemError
from .reading import shown_job
from .serializers import NAMED, NewJobSerializer, NewJobsSerializer, NewJobTermsSerializer, checked

Pair = tuple[str, str]
RESULTS = {"keep": "kept", "replace": "replaced"}


def _terms(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of schedule() for what a request says of a job."""
    return {
        "topic": given["topic"],
        "key": given["key"],
        "due_at": given.get("due_at"),
        "delay": given.get("delay_seconds"),
        "body": given.get("body"),
        "ttr": given.get("ttr_seconds"),
    }


# -- one ----------------------------------------------------------------------------------------


def create(data: Any, caller: Caller, using: str) -> Response:
    """Make one job. Raises what the engine raises; KeyIsLive with the job that is in the way."""
    given = checked(NewJobSerializer, data)
    terms, mode = _terms(given), given["on_conflict"]
    caller.require(Right.PRODUCE, terms["topic"])
    check_replacing(caller, terms["topic"], mode)
    make = partial(scheduling.schedule, **terms, on_conflict=mode, using=using, by=caller.signature)
    try:
        job = logged(make, caller, mode, using)
    except KeyIsLive as error:
        raise in_the_way(error, using, terms["topic"], terms["key"]) from error
    result = "created" if job.is_new else RESULTS[mode]
    data = shown_job(job, caller, using, MadeJobSerializer, result=result)
    if not job.is_new:
        return Response(data)
    address = reverse("delaytasks_api:job", kwargs={"job_id": job.pk})
    return Response(data, status=201, headers={"Location": address})


def check_replacing(caller: Caller, topic: str, mode: str) -> None:
    """Nothing, unless a reason for replacing a job is asked for, which nobody can give here. Raises ValidationError."""
    if mode == "replace":
        caller.require_reason(topic, "", "on_conflict")


def logged(make: Callable[[], Job], caller: Caller, mode: str, using: str) -> Job:
    """make(), and for staff the log's entry of it. A job that was kept was not changed."""

    def whole() -> Job:
        job = make()
        if job.is_new or mode == "replace":
            caller.log([job], "Scheduled" if job.is_new else "Replaced", added=job.is_new)
        return job

    return caller.logged(whole, using)


def in_the_way(error: Exception, using: str, topic: str, key: str) -> ProblemError:
    """The refusal, with the live job that has the key, if it is still there."""
    live = statements.find_live(using, [(topic, key)]).get((topic, key))
    problem = problems.classify(error)
    assert problem is not None
    return ProblemError(problem._replace(extras={"job_id": live.id} if live else {}))


# -- many ---------------------------------------------------------------------------------------


class Mistakes:
    """What is wrong with the jobs of a bulk, job by job; the first 20 are kept."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    @property
    def enough(self) -> bool:
        return len(self.found) >= NAMED

    def add(self, position: int, field: str, detail: str, **more: Any) -> None:
        if not self.enough:
            path = f"jobs[{position}].{field}" if field else f"jobs[{position}]"
            self.found.append({"field": path, "detail": detail, **more})

    def refuse(self) -> None:
        """Raises ValidationError if there are any."""
        if self.found:
            raise serializers.ValidationError({each["field"]: each["detail"] for each in self.found})


def create_many(data: Any, caller: Caller, using: str) -> Response:
    """Make many jobs in one transaction. Raises ValidationError, which names the fields of up to 20 bad ones."""
    given = checked(NewJobsSerializer, data)
    mode, jobs = given["on_conflict"], _checked_jobs(given["jobs"])
    for topic in dict.fromkeys(job["topic"] for job in jobs):
        caller.require(Right.PRODUCE, topic)
        check_replacing(caller, topic, mode)
    _check_known(jobs, using)
    try:
        done, live = retried_once(lambda: _schedule(jobs, mode, using, caller), using)
    except (KeyIsLive, Reserved) as error:
        raise _conflicts(error, jobs, mode, using) from error
    named = [{"id": live[pair].id, "topic": pair[0], "key": pair[1]} for pair in map(_pair, jobs)]
    return Response(done._asdict() | {"jobs": named}, status=201 if done.created else 200)


def _pair(job: Mapping[str, Any]) -> Pair:
    return job["topic"], job["key"]


def _checked_jobs(items: Sequence[Any]) -> list[dict[str, Any]]:
    """The arguments of schedule() for each; the same serializer looks at one after the other."""
    serializer, mistakes, jobs = NewJobTermsSerializer(), Mistakes(), []
    for position, item in enumerate(items):
        try:
            terms = _terms(serializer.run_validation(item))
            promises.to_new_job(**terms)
        except serializers.ValidationError as error:
            for field, detail in problems.flat(error.detail):
                mistakes.add(position, field, detail)
        except BadInput as error:
            mistakes.add(position, _field_of(error, item), str(error))
        else:
            jobs.append(terms)
        if mistakes.enough:
            break
    mistakes.refuse()
    return jobs


def _field_of(error: BadInput, item: Mapping[str, Any]) -> str:
    if isinstance(error, BadBody):
        return "body"
    if isinstance(error, BadTTR):
        return "ttr_seconds"
    return ("due_at" if "due_at" in item else "delay_seconds") if isinstance(error, BadDelay) else ""


def _check_known(jobs: Sequence[Mapping[str, Any]], using: str) -> None:
    """Raises ValidationError that names the jobs whose topic nobody knows. Only what is granted is asked here."""
    names = {job["topic"] for job in jobs} - set(topics.known())
    if names:
        names -= set(Topic.objects.using(using).filter(name__in=names).values_list("name", flat=True))
    mistakes = Mistakes()
    for position, job in enumerate(jobs):
        if job["topic"] in names:
            mistakes.add(position, "topic", NO_TOPIC)
    mistakes.refuse()


def _schedule(
    jobs: Sequence[Mapping[str, Any]], mode: Any, using: str, caller: Caller
) -> tuple[scheduling.Scheduled, dict[Pair, statements.Live]]:
    """What schedule_many() did, and the jobs: all of them are live until this commits."""
    with transaction.atomic(using):
        before = _latest_event(using) if caller.is_person else 0
        done = scheduling.schedule_many(jobs, on_conflict=mode, using=using, by=caller.signature)
        live = statements.find_live(using, list(map(_pair, jobs)))
        if caller.is_person:
            _log_many([found.id for found in live.values()], before, caller, using)
        return done, live


def _latest_event(using: str) -> int:
    return JobEvent.objects.using(using).order_by("-id").values_list("id", flat=True).first() or 0


def _log_many(ids: Sequence[int], before: int, caller: Caller, using: str) -> None:
    """By the events that came with it: what was kept has none."""
    events = JobEvent.objects.using(using).filter(pk__gt=before, job_id__in=ids, actor=caller.signature)
    made = dict(events.values_list("job_id", "outcome"))
    jobs = Job.objects.using(using).defer("body", "error").filter(pk__in=made).order_by("pk")
    for outcome, what in ((Outcome.SCHEDULED, "Scheduled"), (Outcome.RESCHEDULED, "Replaced")):
        chosen = [job for job in jobs if made[job.pk] == outcome]
        caller.log(chosen, what, added=outcome is Outcome.SCHEDULED)


def _conflicts(error: Exception, jobs: Sequence[Mapping[str, Any]], mode: str, using: str) -> ProblemError:
    """The refusal of a bulk, with each job that is in the way, as far as they still are."""
    live = statements.find_live(using, list(map(_pair, jobs)))
    first: dict[Pair, int] = {}
    conflicts = Mistakes()
    for position, pair in enumerate(map(_pair, jobs)):
        other = first.setdefault(pair, position)
        if other != position and mode == "reject":
            conflicts.add(position, "key", f"It is that of jobs[{other}] again.")
        elif pair in live and (mode == "reject" or live[pair].state == State.RESERVED):
            what = "live already" if mode == "reject" else "reserved: its handler is running"
            conflicts.add(position, "key", f"Job {live[pair].id} is {what}.", job_id=live[pair].id)
    problem = problems.classify(error)
    assert isinstance(problem, Problem)
    return ProblemError(problem._replace(extras={"errors": conflicts.found} if conflicts.found else {}))
