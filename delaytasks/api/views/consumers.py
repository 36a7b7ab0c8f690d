"""Views for consumers: reserve, finish, release, touch and bury jobs. (id, attempt) is the fencing token."""

from collections.abc import Sequence
from typing import Any

from django.core.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response

from ...models import Job
from ...states import State
from ...worker import leases
from ...worker.attempt import RunningJob
from ..access import receipts, refusals
from ..access.permissions import Right
from ..long_poll import LongPoll
from ..schema import examples
from ..schema.operations import ANY_POST, ResponseDoc, operation
from ..serializers.requests import BurySerializer, HeldSerializer, ReleaseSerializer, ReserveSerializer, validated
from ..serializers.responses import AttemptSerializer, EndedSerializer, ReservedSerializer, TouchedSerializer
from .base import BaseView
from .jobs import ANY_JOB_POST
from .topics import UNKNOWN_TOPIC, check_known

LEASE_LOST = {
    409: "The attempt no longer holds the job: its TTR is over, it was ended, or the job was reserved again. "
    "Undo its effects, or leave the job to the later attempt."
}
THE_ATTEMPT = examples.request("The attempt", {"attempt": 1})


class ReserveView(LongPoll):
    @operation(
        "reserveJobs",
        tag="consumers",
        summary="Reserve ready jobs",
        request=ReserveSerializer,
        responses={
            200: ResponseDoc(ReservedSerializer, "The reserved jobs; an empty list if none became ready in time.")
        },
        problems={**ANY_POST, **UNKNOWN_TOPIC},
        examples=[
            examples.request("Wait for up to ten jobs", {"count": 10, "wait_seconds": 30, "consumer": "mail-2"}),
            examples.response("One job was ready", {"jobs": [examples.ATTEMPT]}),
            examples.response("No job was ready", {"jobs": []}),
        ],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Reserve up to `count` ready jobs of a topic, in order of priority and age.

        The caller holds them until their deadline. Finish or touch each job before that; otherwise it is taken back
        and can be reserved by others. With `wait_seconds` the response comes as soon as a job is ready. A paused topic
        gives out no jobs. Requires the right to consume.
        """
        self.caller.require(Right.CONSUME, topic)
        options = validated(ReserveSerializer, request.data)
        check_known(topic, self.using)
        return self.poll(topic, **options, show=_response_data, empty={"jobs": []})


class AttemptView(BaseView):
    """Base of views that end or extend an attempt."""

    def held(self, job_id: int, serializer: type[HeldSerializer]) -> tuple[Job, dict[str, Any]]:
        """Return the job and the validated request.

        Raises LeaseLost if the attempt does not hold the job, also if it begins a moment later: who would hold it then
        is unknown. Raises PermissionDenied if another account holds the attempt and the request does not have its
        receipt, or if the receipt is wrong.
        """
        job = self.job(job_id, Right.CONSUME)
        data = validated(serializer, self.request.data)
        if job.state != State.RESERVED or job.attempt != data["attempt"]:
            leases.refuse(job.pk, data["attempt"], using=self.using)
        if not receipts.is_proof(data.get("receipt"), self.caller.name, job):
            refusals.record_no_receipt(self.caller, job)
            if "receipt" in data:
                wrong = f"This is not the receipt of attempt {job.attempt}: give the one of its reservation."
                raise PermissionDenied(wrong)
            raise PermissionDenied("Another account holds this attempt: give the receipt of its reservation.")
        return job, data


def _response_data(jobs: Sequence[RunningJob]) -> Any:
    return {"jobs": AttemptSerializer(jobs, many=True).data}


class FinishView(AttemptView):
    @operation(
        "finishJob",
        tag="consumers",
        summary="Finish a job",
        request=HeldSerializer,
        responses={200: ResponseDoc(EndedSerializer, "The job is finished.")},
        problems={**ANY_JOB_POST, **LEASE_LOST},
        examples=[THE_ATTEMPT, examples.response("Finished", {"state": "finished"})],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Mark the job as finished. Requires the right to consume."""
        job, data = self.held(job_id, HeldSerializer)
        leases.finish(job.pk, data["attempt"], using=self.using, by=self.caller.signature)
        return Response({"state": State.FINISHED.word})


class ReleaseView(AttemptView):
    @operation(
        "releaseJob",
        tag="consumers",
        summary="Release a job",
        request=ReleaseSerializer,
        responses={200: ResponseDoc(EndedSerializer, "The job is delayed again, or dead.")},
        problems={**ANY_JOB_POST, **LEASE_LOST},
        examples=[
            examples.request("Run again in ten minutes", {"attempt": 1, "delay_seconds": 600}),
            examples.request("It failed", {"attempt": 1, "error": "The bank answered 502."}),
            examples.response("Delayed", {"state": "delayed"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Release a job, due at once or later.

        With an `error` the attempt counts as failed: without `delay_seconds` the topic's backoff sets the next due
        time, and a job without attempts left is dead. Without an `error` no failure is counted. Requires the right to
        consume.
        """
        job, data = self.held(job_id, ReleaseSerializer)
        state = leases.release(
            job.pk, data["attempt"], using=self.using, by=self.caller.signature,
            delay=data.get("delay_seconds"), error=data["error"],
        )  # fmt: skip
        return Response({"state": state.word})


class BuryView(AttemptView):
    @operation(
        "buryJob",
        tag="consumers",
        summary="Bury a job",
        request=BurySerializer,
        responses={200: ResponseDoc(EndedSerializer, "The job is dead.")},
        problems={**ANY_JOB_POST, **LEASE_LOST},
        examples=[
            examples.request("No retry", {"attempt": 1, "reason": "There is no order 1042."}),
            examples.response("Dead", {"state": "dead"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Mark the job as dead: it is not tried again until it is retried by hand. Requires the right to consume."""
        job, data = self.held(job_id, BurySerializer)
        leases.bury(job.pk, data["attempt"], using=self.using, by=self.caller.signature, reason=data["reason"])
        return Response({"state": State.DEAD.word})


class TouchView(AttemptView):
    @operation(
        "touchJob",
        tag="consumers",
        summary="Extend a lease",
        request=HeldSerializer,
        responses={200: ResponseDoc(TouchedSerializer, "The new deadline.")},
        problems={**ANY_JOB_POST, **LEASE_LOST},
        examples=[THE_ATTEMPT, examples.response("The new deadline", {"deadline": examples.ATTEMPT["deadline"]})],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Restart the job's TTR from now. Requires the right to consume."""
        job, data = self.held(job_id, HeldSerializer)
        deadline = leases.touch(job.pk, data["attempt"], using=self.using)
        return Response(TouchedSerializer({"deadline": deadline}).data)
