"""Views of jobs: create, list, read, cancel, reschedule, run now, retry. Views for consumers: consumers.py."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django.http import Http404
from drf_spectacular.utils import PolymorphicProxySerializer
from rest_framework.request import Request
from rest_framework.response import Response

from ...admin_log import Action
from ...exceptions import KeyIsLive
from ...jobs import control
from ...models import Job
from ...outcomes import CancelResult
from ...states import State
from .. import job_actions, job_list, services
from ..access.permissions import Right
from ..exceptions import MEDIA_TYPE, ProblemError, problem
from ..limits import live_jobs
from ..schema import examples
from ..schema.operations import ANY_POST, ANY_REQUEST, ResponseDoc, operation
from ..serializers.requests import (
    NewJobSerializer,
    NewJobsSerializer,
    PageQuerySerializer,
    ReasonSerializer,
    RescheduleSerializer,
    validated,
)
from ..serializers.responses import (
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

JOB_NOT_FOUND = {404: "There is no job with this id, or its topic is hidden from the caller."}
ANY_JOB_POST = {**ANY_POST, **JOB_NOT_FOUND}
CHANGE = (Right.PRODUCE, Right.MANAGE)
NEW_JOBS = PolymorphicProxySerializer("NewJobOrJobs", [NewJobSerializer, NewJobsSerializer], None)
CREATED_JOBS = PolymorphicProxySerializer("MadeJobOrJobs", [MadeJobSerializer, MadeJobsSerializer], None)


class JobsView(BaseView):
    bulk = True

    @operation(
        "listJobs",
        tag="jobs",
        summary="List jobs",
        responses={200: ResponseDoc(PageSerializer, "A page of jobs.")},
        problems={
            **ANY_REQUEST,
            400: "A parameter is invalid, or the cursor belongs to a list with other filters.",
            403: "The caller has no rights on a topic in `topic`, whether it exists or not.",
        },
        parameters=[PageQuerySerializer],
        examples=[examples.response("The last page", {"next": None, "results": [examples.JOB]})],
    )
    def get(self, request: Request) -> Response:
        """List the jobs of the topics that the caller sees, in pages.

        Jobs are ordered by topic; within a topic, live states by due time, dead jobs by id, all others by key. Follow
        `next` until it is null: a short or empty page can have a next one. A job that does not change meanwhile is
        listed exactly once.
        """
        return job_list.page(request, self.caller, self.using)

    @operation(
        "createJobs",
        tag="jobs",
        summary="Create a job, or many at once",
        request=NEW_JOBS,
        responses={
            200: ResponseDoc(
                CREATED_JOBS, "Nothing was created: every job was kept, replaced or is running and runs again."
            ),
            201: ResponseDoc(CREATED_JOBS, "The job, or at least one of many, was created."),
            409: ResponseDoc(
                LiveProblemSerializer,
                "A live job has this topic and key: with `reject` in any case, with `replace` if it is reserved. "
                "Nothing was created.",
                MEDIA_TYPE,
            ),
        },
        problems={
            **ANY_POST,
            400: "The request is invalid, the topic is unknown, the due time is too far ahead, or the body is not JSON "
            "that every database can store. `errors` names up to 20 fields, in a bulk request as `jobs[3].due_at`, and "
            "there also bodies that are too large. Nothing was created.",
            413: "The request body exceeds the caller's limit, or the body of a single job exceeds the limit of jobs.",
        },
        examples=[
            examples.request("One job", examples.NEW),
            examples.request("Many jobs", examples.NEW_MANY),
            examples.response("One job", {**examples.JOB, "result": "created"}, 201),
            examples.response("Many jobs", examples.MADE_MANY, 201),
            examples.response("A kept job", {**examples.JOB, "result": "kept"}),
        ],
    )
    def post(self, request: Request) -> Response:
        """Create one job, or up to 1,000 in one transaction: all or none.

        Creating is idempotent: there is at most one live job per topic and key, and `on_conflict` selects what happens
        to an existing one. Requires the right to produce on each topic. With `reject` the right to submit is enough; a
        caller without another right on the topic only learns that the key of a live job is taken.
        """
        many = isinstance(request.data, Mapping) and "jobs" in request.data
        if many:
            return services.create_many(request.data, self.caller, self.using)
        request.require_single()
        response = services.create(request.data, self.caller, self.using)
        if response.status_code == 201:
            response["Location"] = self.path_of("job", job_id=response.data["id"])
        return response


class JobView(BaseView):
    @operation(
        "readJob",
        tag="jobs",
        summary="Read a job",
        responses={200: ResponseDoc(JobWithEventsSerializer, "The job and its events.")},
        problems={**ANY_REQUEST, **JOB_NOT_FOUND},
        examples=[
            examples.response("A job", {**examples.JOB, "events": [examples.EVENT], "has_older_events": False}),
        ],
    )
    def get(self, request: Request, job_id: int) -> Response:
        """Return a job, live or ended, with its newest 1,000 events, oldest first."""
        return Response(job_list.with_events(self.job(job_id), self.caller, self.using))


class CancelView(BaseView):
    @operation(
        "cancelJob",
        tag="jobs",
        summary="Cancel a job",
        request=ReasonSerializer,
        responses={
            200: ResponseDoc(CancelledSerializer, "The job is cancelled, now or earlier, and will not run."),
            409: ResponseDoc(
                NotCancelledProblemSerializer, "The job is reserved and keeps running, or it has ended.", MEDIA_TYPE
            ),
        },
        problems=ANY_JOB_POST,
        examples=[
            examples.request("With a reason", {"reason": "They paid by phone."}),
            examples.response("Cancelled", {"result": "cancelled"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Cancel a job. Of a reserved job, only the next run that `again` has stored is cancelled; the answer is 409.

        Requires the right to produce or to manage.
        """
        job = self.job(job_id, CHANGE)
        result = job_actions.cancel(job, self.caller, self.using, validated(ReasonSerializer, request.data)["reason"])
        if result is CancelResult.UNKNOWN:
            raise Http404
        if result is not CancelResult.CANCELLED:
            extras = {"result": result.value}
            raise ProblemError(problem("not-cancelled", _NOT_CANCELLED[result], extras=extras))
        return Response({"result": result.value})


_NOT_CANCELLED = {
    CancelResult.RUNNING: "It is reserved: its attempt is running and was not stopped.",
    CancelResult.ALREADY_FINISHED: "It has already finished.",
}


class ChangeView(BaseView):
    """Base of views that change a job and return it."""

    def change(self, job: Job, data: Mapping[str, Any], action: Action, do: Callable[..., Job]) -> Response:
        changed = job_actions.change(job, self.caller, self.using, action, data["reason"], do)
        return Response(job_list.shown_job(changed, self.caller, self.using))


class RescheduleView(ChangeView):
    @operation(
        "rescheduleJob",
        tag="jobs",
        summary="Reschedule a job",
        request=RescheduleSerializer,
        responses={200: ResponseDoc(JobSerializer, "The changed job.")},
        problems={**ANY_JOB_POST, 409: "The job is reserved, or it has ended."},
        examples=[
            examples.request("Ten minutes from now", {"delay_seconds": 600}),
            examples.request("At a time", {"due_at": "2031-05-01T11:30:00.250+02:00"}),
            examples.response("The job", examples.JOB),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Move a live job that is not reserved to an earlier or later due time.

        Requires the right to produce or to manage.
        """
        job = self.job(job_id, CHANGE)
        data = validated(RescheduleSerializer, request.data)
        terms: dict[str, Any] = {"due_at": data.get("due_at"), "delay": data.get("delay_seconds")}
        return self.change(job, data, Action.RESCHEDULED, partial(control.reschedule_job, job.pk, **terms))


class RunNowView(ChangeView):
    @operation(
        "runJobNow",
        tag="jobs",
        summary="Make a job due now",
        request=ReasonSerializer,
        responses={200: ResponseDoc(JobSerializer, "The changed job.")},
        problems={**ANY_JOB_POST, 409: "The job is reserved, or it has ended."},
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Make a live job due now. A job that is due already keeps its due time. Requires the right to manage."""
        job = self.job(job_id, Right.MANAGE)
        data = validated(ReasonSerializer, request.data)
        return self.change(job, data, Action.MADE_READY, partial(control.run_job_now, job.pk))


class RetryView(ChangeView):
    @operation(
        "retryJob",
        tag="jobs",
        summary="Make a dead job ready again",
        request=ReasonSerializer,
        responses={
            200: ResponseDoc(JobSerializer, "The changed job."),
            409: ResponseDoc(
                LiveProblemSerializer, "The job is not dead, or another live job has its key now.", MEDIA_TYPE
            ),
        },
        problems=ANY_JOB_POST,
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Make a dead job ready again, with failures reset to 0. Requires the right to manage."""
        job = self.job(job_id, Right.MANAGE)
        data = validated(ReasonSerializer, request.data)
        number = 1 if job.state == State.DEAD and job.producer == self.caller.producer else 0
        try:
            with live_jobs.reserve_room(self.caller, number, self.using):
                return self.change(job, data, Action.RETRIED, partial(control.retry_dead, job_id=job.pk))
        except KeyIsLive as error:
            raise services.key_is_live_problem(error, self.caller, self.using, job.topic, job.key) from error


class NotFoundView(BaseView):
    """Answer unknown URLs below the API with the same 404 as a missing job, instead of Django's page."""

    schema = None  # type: ignore[assignment]  # excluded from the OpenAPI document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        if not request.path.endswith("/"):
            raise ProblemError(problem("not-found", "The paths of this API end with a slash."))
        raise Http404
