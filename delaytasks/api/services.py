"""POST /jobs/: create one job, or up to 1,000 in one transaction. Idempotent by topic and key through on_conflict."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import transaction
from rest_framework import serializers
from rest_framework.response import Response

from .. import handlers
from ..admin_log import Action
from ..db import transitions
from ..db.retries import retry_conflicts
from ..db.transitions import produced_by
from ..exceptions import BadBody, BadDelay, BadInput, BadTTR, KeyIsLive, Reserved
from ..jobs import inputs, schedule
from ..models import Job, JobEvent, Topic
from ..states import Outcome, State
from . import exceptions
from .access.permissions import Caller
from .exceptions import NO_TOPIC, Problem, ProblemError
from .job_list import shown_job
from .limits import live_jobs
from .serializers.requests import MAX_ERRORS, NewJobSerializer, NewJobsSerializer, NewJobTermsSerializer, validated
from .serializers.responses import MadeJobSerializer

Pair = tuple[str, str]
KEY_IS_TAKEN = "A live job has this key: use another one."


def schedule_arguments(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of schedule() for a job in a request."""
    return {
        "topic": data["topic"],
        "key": data["key"],
        "due_at": data.get("due_at"),
        "delay": data.get("delay_seconds"),
        "body": data.get("body"),
        "ttr": data.get("ttr_seconds"),
        "expires": data.get("expires_seconds"),
        "priority": data["priority"],
    }


# -- one ----------------------------------------------------------------------------------------


def create(data: Any, caller: Caller, using: str) -> Response:
    """Create one job. Raises the engine's exceptions.

    Instead of KeyIsLive, it raises a ProblemError with the id of the live job.
    """
    data = validated(NewJobSerializer, data)
    terms, mode = schedule_arguments(data), data["on_conflict"]
    caller.require_create(terms["topic"], mode)
    require_reason_to_replace(caller, terms["topic"], mode)
    make = partial(schedule.schedule, **terms, on_conflict=mode, using=using, by=caller.signature)
    try:
        job = make_and_log(make, caller, mode, using, (terms["topic"], terms["key"]))
    except KeyIsLive as error:
        raise key_is_live_problem(error, caller, using, terms["topic"], terms["key"]) from error
    result = result_of(job, mode)
    data = shown_job(job, caller, using, MadeJobSerializer, result=result)
    return Response(data, status=201 if job.is_new else 200)


def result_of(job: Job, mode: str) -> str:
    """Return what a request with this on_conflict has done: "created", "kept", "replaced" or "again"."""
    if job.is_new or job.runs_again:
        return "created" if job.is_new else "again"
    return "replaced" if mode == "replace" else "kept"


def require_reason_to_replace(caller: Caller, topic: str, mode: str) -> None:
    """Raise ValidationError if replacing a job of this topic requires a reason: the request cannot contain one."""
    if mode == "replace":
        caller.require_reason(topic, "", "on_conflict")


def make_and_log(make: Callable[[], Job], caller: Caller, mode: str, using: str, pair: Pair) -> Job:
    """Call make() and return its job. If the caller is staff, log the job unless it was kept unchanged.

    Raises ProblemError if the caller has too many live jobs and the pair (topic, key) is not live.
    """

    def do_and_log() -> Job:
        with produced_by(caller.producer):
            job = make()
        scheduled = job.is_new or job.runs_again
        if scheduled or mode == "replace":
            caller.log([job], Action.SCHEDULED if scheduled else Action.REPLACED, added=job.is_new)
        return job

    with live_jobs.reserve_room(caller, 1, using, count_new=lambda: _count_new(using, [pair])):
        return caller.run_logged(do_and_log, using)


def _count_new(using: str, pairs: Iterable[Pair]) -> int:
    """Return how many of these pairs (topic, key) are not live."""
    asked = sorted(set(pairs))
    return len(asked) - len(transitions.find_live(using, asked))


def shown_error(error: Exception, caller: Caller, topics: Iterable[str]) -> Exception:
    """Return the error, without its text if that could describe a job that the caller may not see."""
    seen = all(caller.sees(topic) for topic in topics)
    return KeyIsLive(KEY_IS_TAKEN) if isinstance(error, KeyIsLive) and not seen else error


def key_is_live_problem(error: Exception, caller: Caller, using: str, topic: str, key: str) -> ProblemError:
    """Return the error for KeyIsLive, with the id of the live job if it still exists and the caller may see it."""
    pairs = [(topic, key)] if caller.sees(topic) else []
    live = transitions.find_live(using, pairs).get((topic, key)) if pairs else None
    problem = exceptions.classify(shown_error(error, caller, [topic]))
    assert problem is not None
    return ProblemError(problem._replace(extras={"job_id": live.id} if live else {}))


# -- many ---------------------------------------------------------------------------------------


class FieldErrors:
    """Errors of a bulk request, by job; at most 20 are kept."""

    def __init__(self) -> None:
        self.errors: list[dict[str, Any]] = []

    @property
    def full(self) -> bool:
        return len(self.errors) >= MAX_ERRORS

    def add(self, position: int, field: str, detail: str, **more: Any) -> None:
        if not self.full:
            path = f"jobs[{position}].{field}" if field else f"jobs[{position}]"
            self.errors.append({"field": path, "detail": detail, **more})

    def raise_if_any(self) -> None:
        """Raise ValidationError if there are errors."""
        if self.errors:
            raise serializers.ValidationError({each["field"]: each["detail"] for each in self.errors})


def create_many(data: Any, caller: Caller, using: str) -> Response:
    """Create many jobs in one transaction. Raises ValidationError with up to 20 invalid fields."""
    data = validated(NewJobsSerializer, data)
    mode, jobs = data["on_conflict"], _checked_jobs(data["jobs"])
    for topic in dict.fromkeys(job["topic"] for job in jobs):
        caller.require_create(topic, mode)
        require_reason_to_replace(caller, topic, mode)
    _check_known(jobs, using)
    try:
        with live_jobs.reserve_room(caller, len(jobs), using, count_new=lambda: _count_new(using, map(_pair, jobs))):
            done = retry_conflicts(lambda: _schedule(jobs, mode, using, caller), using)
    except (KeyIsLive, Reserved) as error:
        raise _conflicts(error, jobs, mode, caller, using) from error
    named = [
        {"id": job_id, "topic": job["topic"], "key": job["key"]} for job_id, job in zip(done.job_ids, jobs, strict=True)
    ]
    return Response(done._asdict() | {"again": done.again, "jobs": named}, status=201 if done.created else 200)


def _pair(job: Mapping[str, Any]) -> Pair:
    return job["topic"], job["key"]


def _checked_jobs(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the arguments of schedule() for each job. One serializer instance validates them all."""
    serializer, errors, jobs = NewJobTermsSerializer(), FieldErrors(), []
    for position, item in enumerate(items):
        try:
            terms = schedule_arguments(serializer.run_validation(item))
            inputs.to_new_job(**terms)
        except serializers.ValidationError as error:
            for field, detail in exceptions.flatten(error.detail):
                errors.add(position, field, detail)
        except BadInput as error:
            errors.add(position, _field_of(error, item), str(error))
        else:
            jobs.append(terms)
        if errors.full:
            break
    errors.raise_if_any()
    return jobs


def _field_of(error: BadInput, item: Mapping[str, Any]) -> str:
    if isinstance(error, BadBody):
        return "body"
    if isinstance(error, BadTTR):
        return "ttr_seconds"
    return ("due_at" if "due_at" in item else "delay_seconds") if isinstance(error, BadDelay) else ""


def _check_known(jobs: Sequence[Mapping[str, Any]], using: str) -> None:
    """Raise ValidationError for unknown topics. Check permissions first: the error reveals which topics exist."""
    names = {job["topic"] for job in jobs} - set(handlers.known())
    if names:
        names -= set(Topic.objects.using(using).filter(name__in=names).values_list("name", flat=True))
    errors = FieldErrors()
    for position, job in enumerate(jobs):
        if job["topic"] in names:
            errors.add(position, "topic", NO_TOPIC)
    errors.raise_if_any()


def _schedule(jobs: Sequence[Mapping[str, Any]], mode: Any, using: str, caller: Caller) -> schedule.Scheduled:
    """Schedule the jobs. Return the counts and the ids; a kept job may end at any time."""
    with transaction.atomic(using):
        last_event_id = _latest_event_id(using) if caller.is_person else 0
        with produced_by(caller.producer):
            done = schedule.schedule_many(jobs, on_conflict=mode, using=using, by=caller.signature)
        if caller.is_person:
            _log_many(done.job_ids, last_event_id, caller, using)
        return done


def _latest_event_id(using: str) -> int:
    return JobEvent.objects.using(using).order_by("-id").values_list("id", flat=True).first() or 0


def _log_many(ids: Sequence[int], last_event_id: int, caller: Caller, using: str) -> None:
    """Log created and replaced jobs. They are found by their events after `last_event_id`: kept jobs have none."""
    events = JobEvent.objects.using(using).filter(pk__gt=last_event_id, job_id__in=ids, actor=caller.signature)
    outcomes = dict(events.values_list("job_id", "outcome"))
    jobs = Job.objects.using(using).defer("body", "error").filter(pk__in=outcomes).order_by("pk")
    for outcome, action in ((Outcome.SCHEDULED, Action.SCHEDULED), (Outcome.RESCHEDULED, Action.REPLACED)):
        chosen = [job for job in jobs if outcomes[job.pk] == outcome]
        caller.log(chosen, action, added=outcome is Outcome.SCHEDULED)


def _conflicts(
    error: Exception, jobs: Sequence[Mapping[str, Any]], mode: str, caller: Caller, using: str
) -> ProblemError:
    """Return the error for a bulk request, with the conflicting live jobs that still exist."""
    live = transitions.find_live(using, list(map(_pair, jobs)))
    first: dict[Pair, int] = {}
    conflicts = FieldErrors()
    for position, pair in enumerate(map(_pair, jobs)):
        other = first.setdefault(pair, position)
        if other != position and mode == "reject":
            conflicts.add(position, "key", f"Same topic and key as jobs[{other}].")
        elif pair in live and not caller.sees(pair[0]):
            conflicts.add(position, "key", KEY_IS_TAKEN)
        elif pair in live and (mode == "reject" or live[pair].state == State.RESERVED):
            state = "live already" if mode == "reject" else "reserved: its handler is running"
            conflicts.add(position, "key", f"Job {live[pair].id} is {state}.", job_id=live[pair].id)
    problem = exceptions.classify(shown_error(error, caller, {job["topic"] for job in jobs}))
    assert isinstance(problem, Problem)
    return ProblemError(problem._replace(extras={"errors": conflicts.errors} if conflicts.errors else {}))
