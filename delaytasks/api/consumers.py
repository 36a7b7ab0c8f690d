"""What a consumer does: reserve jobs, and end, keep or give back what it holds. (id, attempt) is the fence."""

from collections.abc import Sequence
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from .. import consuming
from ..attempt import Attempt
from ..states import State
from . import examples
from .access import Right
from .answers import AttemptSerializer, EndedSerializer, ReservedSerializer, TouchedSerializer
from .base import BaseView
from .jobs import ON_A_JOB
from .openapi import ANY_POST, Answer, operation
from .polling import LongPoll
from .serializers import BurySerializer, HeldSerializer, ReleaseSerializer, ReserveSerializer, checked
from .topics import NOT_KNOWN, check_known

LOST = {
    409: "The attempt holds the job no longer: its TTR is over, it was ended, or the job was reserved again. "
    "What it did is to be undone or left to the attempt that came after it."
}
THE_ATTEMPT = examples.request("The attempt", {"attempt": 1})


class ReserveView(LongPoll):
    @operation(
        "reserveJobs",
        tag="consumers",
        summary="Take jobs that are ready",
        request=ReserveSerializer,
        answers={200: Answer(ReservedSerializer, "What was reserved; an empty list if nothing became ready in time.")},
        problems={**ANY_POST, **NOT_KNOWN},
        examples=[
            examples.request("Up to ten, and wait", {"count": 10, "wait_seconds": 30, "consumer": "mail-2"}),
            examples.answer("One was ready", {"jobs": [examples.ATTEMPT]}),
            examples.answer("None was", {"jobs": []}),
        ],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Take up to `count` ready jobs of a topic, oldest due first.

        They are the caller's until their deadline: finish each before, or touch it, or it is taken back and given to
        another. With `wait_seconds` the answer comes as soon as a job is ready. Nothing is given of a topic that is
        paused. Needs the right to consume.
        """
        self.caller.require(Right.CONSUME, topic)
        wish = checked(ReserveSerializer, request.data)
        check_known(topic, self.using)
        return self.poll(topic, **wish, show=_shown, empty={"jobs": []})


def _shown(held: Sequence[Attempt]) -> Any:
    return {"jobs": AttemptSerializer(held, many=True).data}


class FinishView(BaseView):
    @operation(
        "finishJob",
        tag="consumers",
        summary="Finish a job",
        request=HeldSerializer,
        answers={200: Answer(EndedSerializer, "The job is finished.")},
        problems={**ON_A_JOB, **LOST},
        examples=[THE_ATTEMPT, examples.answer("Finished", {"state": "finished"})],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Say that the job's work is done. Needs the right to consume."""
        job = self.job(job_id, Right.CONSUME)
        given = checked(HeldSerializer, request.data)
        consuming.finish(job.pk, given["attempt"], using=self.using, by=self.caller.signature)
        return Response({"state": State.FINISHED.word})


class ReleaseView(BaseView):
    @operation(
        "releaseJob",
        tag="consumers",
        summary="Give a job back",
        request=ReleaseSerializer,
        answers={200: Answer(EndedSerializer, "The job is delayed again, or dead.")},
        problems={**ON_A_JOB, **LOST},
        examples=[
            examples.request("Ask again in ten minutes", {"attempt": 1, "delay_seconds": 600}),
            examples.request("It failed", {"attempt": 1, "error": "The bank answered 502."}),
            examples.answer("Delayed", {"state": "delayed"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Give a job back, for now or for later.

        With an `error` the attempt has failed: without `delay_seconds` the topic's backoff decides when it is due
        again, and a job whose attempts are used up is dead. Without one it costs nothing. Needs the right to consume.
        """
        job = self.job(job_id, Right.CONSUME)
        given = checked(ReleaseSerializer, request.data)
        state = consuming.release(
            job.pk, given["attempt"], using=self.using, by=self.caller.signature,
            delay=given.get("delay_seconds"), error=given["error"],
        )  # fmt: skip
        return Response({"state": state.word})


class BuryView(BaseView):
    @operation(
        "buryJob",
        tag="consumers",
        summary="Declare a job dead",
        request=BurySerializer,
        answers={200: Answer(EndedSerializer, "The job is dead.")},
        problems={**ON_A_JOB, **LOST},
        examples=[
            examples.request("Without hope", {"attempt": 1, "reason": "There is no order 1042."}),
            examples.answer("Dead", {"state": "dead"}),
        ],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Say that trying again is no use: the job is dead until somebody retries it. Needs the right to consume."""
        job = self.job(job_id, Right.CONSUME)
        given = checked(BurySerializer, request.data)
        consuming.bury(job.pk, given["attempt"], using=self.using, by=self.caller.signature, reason=given["reason"])
        return Response({"state": State.DEAD.word})


class TouchView(BaseView):
    @operation(
        "touchJob",
        tag="consumers",
        summary="Keep a job for longer",
        request=HeldSerializer,
        answers={200: Answer(TouchedSerializer, "The new deadline.")},
        problems={**ON_A_JOB, **LOST},
        examples=[THE_ATTEMPT, examples.answer("Until then", {"deadline": examples.ATTEMPT["deadline"]})],
    )
    def post(self, request: Request, job_id: int) -> Response:
        """Begin the job's TTR anew, from now. Needs the right to consume."""
        job = self.job(job_id, Right.CONSUME)
        given = checked(HeldSerializer, request.data)
        deadline = consuming.touch(job.pk, given["attempt"], using=self.using)
        return Response(TouchedSerializer({"deadline": deadline}).data)
