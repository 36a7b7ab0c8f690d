"""Jobs: create, list, read; cancel, reschedule, run now, retry. What consumers do with them is in consumers.py."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework.request import Request
from rest_framework.response import Response

from .. import changing
from ..changing import CancelResult
from ..exceptions import KeyIsLive
from ..models import Job
from . import acting, creating, examples, reading
from .access import Right
from .answers import (
    CancelledSerializer,
    JobSerializer,
    JobWithEventsSerializer,
    LiveProblemSerializer,
    MadeJobSerializer,
    MadeJobsSerializer,
    NotCancelledProblemSerializer,
    PageSerializer,
)
from .base import BaseView
from .openapi import ANY_POST, ANY_REQUEST, Answer, operation
from .problems import MEDIA_TYPE, conflict
from .serializers import (
    NewJobSerializer,
    NewJobsSerializer,
    PageQuerySerializer,
    ReasonSerializer,
    RescheduleSerializer,
    checked,
)

NOT_SEEN = {404: "No job has this id, or it is one of a topic that the caller does not see."}
ON_A_JOB = {**ANY_POST, **NOT_SEEN}
CHANGE = (Right.PRODUCE, Right.MANAGE)
NEW = PolymorphicProxySerializer("NewJobOrJobs", [NewJobSerializer, NewJobsSerializer], None)
MADE = PolymorphicProxySerializer("MadeJobOrJobs", [MadeJobSerializer, MadeJobsSerializer], None)


class JobsView(BaseView):
    @operation(
        "listJobs",
        tag="jobs",
        summary="List jobs",
        answers={200: Answer(PageSerializer, "A page of jobs.")},
        problems={
            **ANY_REQUEST,
            400: "A parameter is not as described here, or the cursor is of a list with other filters.",
            403: "Nothing is granted to the caller on a topic that `topic` names, whether it exists or not.",
        },
        parameters=[PageQuerySerializer],
        examples=[examples.answer("The last page", {"next": None, "results": [examples.JOB]})],
    )
    def get(self, request: Request) -> Response:
        """The jobs of the topics that the caller sees, a page at a time.

        Ordered by topic; inside a topic live states by due time, dead ones by id, everything else by key. Follow
        `next` until it is null: a page may be short, even empty, and have a next one. A job that does not change
        meanwhile is seen exactly once.
        """
        return reading.page(request, self.caller, self.using)

    @operation(
        "createJobs",
        tag="jobs",
        summary="Create a job, or many at once",
        request=NEW,
        answers={
            200: Answer(MADE, "Nothing was created: every job was kept or replaced."),
            201: Answer(MADE, "The job, or at least one of many, was created."),
            409: Answer(
                LiveProblemSerializer,
                "A live job has the topic and key and `on_conflict` is `reject`, or it is `replace` and the job is "
                "reserved. Nothing was created.",
                MEDIA_TYPE,
            ),
        },
        problems={
            **ANY_POST,
            400: "The request is not as described here, the topic is not known, the due time is too far ahead, or "
            "the body is not JSON that every database can keep; `errors` names the fields, in a bulk as "
            "`jobs[3].due_at`, up to 20 of them. Nothing was created.",
            413: "The request's body is larger than the caller may send, or a job's body larger than a job's may be.",
        },
        examples=[
            examples.request("One job", examples.NEW),
            examples.request("Many jobs", examples.NEW_MANY),
            examples.answer("One job", {**examples.JOB, "result": "created"}, 201),
            examples.answer("Many jobs", examples.MADE_MANY, 201),
            examples.answer("A kept job", {**examples.JOB, "result": "kept"}),
        ],
    )
    def post(self, request: Request) -> Response:
        """Make one job, or up to 1,000 in one transaction: all of them or none.

        At most one live job has a topic and a key, so the same request may be sent again: `on_conflict` says what
        becomes of a job that is there already. Needs the right to produce, on each topic.
        """
        many = isinstance(request.data, Mapping) and "jobs" in request.data
        return (creating.create_many if many else creating.create)(request.data, self.caller, self.using)


class JobView(BaseView):
    @operation(
        "readJob",
        tag="jobs",
        summary="Read a job",
        answers={200: Answer(JobWithEventsSerializer, "The job, and what happened to it.")},
        problems={**ANY_REQUEST, **NOT_SEEN},
        examples=[
            examples.answer("A job", {**examples.JOB, "events": [examples.EVENT], "has_older_events": False}),
        ],
    )
    def get(self, request: Request, job_id: int) -> Response:
        """A job, live or ended, with its events, oldest first. Of more than 1,000 events the newest are shown."""
        return Response(reading.with_events(self.job(job_id), self.caller, self.using))


class CancelView(BaseView):
    @operation(
        "cancelJob",
        tag="jobs",
        summary="Cancel a job",
        request=ReasonSerializer,
        answers={
            200: Answer(CancelledSerializer, "The job will not run; also if it had been cancelled before."),
            409: Answer(
                NotCancelledProblemSerializer, "The job is reserved and was not disturbed, or it has ended.", MEDIA_TYPE
            ),
        },
        problems=ON_A_JOB,
        examples=[
            examples.request("Why", {"reason": "They paid by phone."}),
            examples.answer("Cancelled", {"result": "cancelled"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Call a job off. The answer is the truth at that moment. Needs the right to produce or to manage."""
        job = self.job(job_id, CHANGE)
        result = acting.cancel(job, self.caller, self.using, checked(ReasonSerializer, request.data)["reason"])
        if result is CancelResult.UNKNOWN:
            raise Http404
        if result is not CancelResult.CANCELLED:
            raise conflict("not-cancelled", "The job was not cancelled.", _NOT_CANCELLED[result], result=result.value)
        return Response({"result": result.value})


_NOT_CANCELLED = {
    CancelResult.RUNNING: "It is reserved: whoever holds it is at work and was not disturbed.",
    CancelResult.ALREADY_FINISHED: "It ended before: it is finished, or dead.",
}


class ChangeView(BaseView):
    """A change that answers with the job as it is then."""

    def change(self, job: Job, given: Mapping[str, Any], what: str, do: Callable[..., Job]) -> Response:
        changed = acting.change(job, self.caller, self.using, what, given["reason"], do)
        return Response(reading.shown_job(changed, self.caller, self.using))


class RescheduleView(ChangeView):
    @operation(
        "rescheduleJob",
        tag="jobs",
        summary="Move a job to another due time",
        request=RescheduleSerializer,
        answers={200: Answer(JobSerializer, "The job as it is now.")},
        problems={**ON_A_JOB, 409: "The job is reserved, or it has ended."},
        examples=[
            examples.request("Ten minutes from now", {"delay_seconds": 600}),
            examples.request("At a time", {"due_at": "2031-05-01T11:30:00.250+02:00"}),
            examples.answer("The job", examples.JOB),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Move a live job that is not reserved, earlier or later. Needs the right to produce or to manage."""
        job = self.job(job_id, CHANGE)
        when = checked(RescheduleSerializer, request.data)
        terms: dict[str, Any] = {"due_at": when.get("due_at"), "delay": when.get("delay_seconds")}
        return self.change(job, when, "Rescheduled", partial(changing.reschedule_job, job.pk, **terms))


class RunNowView(ChangeView):
    @operation(
        "runJobNow",
        tag="jobs",
        summary="Make a job due now",
        request=ReasonSerializer,
        answers={200: Answer(JobSerializer, "The job as it is now.")},
        problems={**ON_A_JOB, 409: "The job is reserved, or it has ended."},
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Make a live job due now. One that is due already keeps its place. Needs the right to manage."""
        job = self.job(job_id, Right.MANAGE)
        why = checked(ReasonSerializer, request.data)
        return self.change(job, why, "Made ready", partial(changing.run_job_now, job.pk))


class RetryView(ChangeView):
    @operation(
        "retryJob",
        tag="jobs",
        summary="Make a dead job ready again",
        request=ReasonSerializer,
        answers={
            200: Answer(JobSerializer, "The job as it is now."),
            409: Answer(
                LiveProblemSerializer, "The job is not dead, or another live job has its key by now.", MEDIA_TYPE
            ),
        },
        problems=ON_A_JOB,
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Give a dead job as many attempts again as its topic allows, from now on. Needs the right to manage."""
        job = self.job(job_id, Right.MANAGE)
        why = checked(ReasonSerializer, request.data)
        try:
            return self.change(job, why, "Retried", partial(changing.retry_dead, job_id=job.pk))
        except KeyIsLive as error:
            raise creating.in_the_way(error, self.using, job.topic, job.key) from error


class NowhereView(BaseView):
    """Any other address below the API's: the same 404 as for a job that is not there, and not Django's page."""

    schema = None  # type: ignore[assignment]  # not in the document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        raise Http404
