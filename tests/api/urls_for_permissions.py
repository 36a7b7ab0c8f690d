"""Minimal views that exercise the base view alone."""

from typing import Any

from django.db import InterfaceError, OperationalError
from django.http import Http404
from django.urls import path
from rest_framework import serializers
from rest_framework.response import Response

from delaytasks import exceptions
from delaytasks.api import exceptions as problems
from delaytasks.api.access.permissions import Right
from delaytasks.api.views.base import BaseView

RAISED = {
    "operational": OperationalError("server closed the connection"),
    "interface": InterfaceError("connection already closed"),
    "mirror": exceptions.MirrorDown(),
    "key-is-live": exceptions.KeyIsLive("order.close 'order:1' is live."),
    "lease-lost": exceptions.LeaseLost(),
    "naive": exceptions.NaiveDatetime("due_at has no time zone."),
    "body": exceptions.BodyTooLarge("The body has 70,000 bytes."),
    "unknown-topic": exceptions.UnknownTopic("Topic 'x' is unknown. Known here: secret.topic."),
    "404": Http404("which words nobody is told"),
    "conflict": problems.ProblemError(
        problems.problem("not-cancelled", "It is running.", extras={"result": "running"})
    ),
    "bug": ZeroDivisionError("division by zero"),
}


class Probe(BaseView):
    """GET: the caller. POST: the parsed body."""

    bulk = True

    def get(self, request: Any) -> Response:
        caller = self.caller
        return Response({"name": caller.name, "worker": caller.worker("c1"), "topics": caller.topics(self.using)})

    def post(self, request: Any) -> Response:
        return Response({"read": request.data})


class May(BaseView):
    """Require a right on a topic."""

    def get(self, request: Any, right: str, topic: str) -> Response:
        self.caller.require(tuple(Right(each) for each in right.split("+")), topic)
        return Response({})


class Pause(BaseView):
    def post(self, request: Any, topic: str) -> Response:
        self.caller.require_pause(topic)
        return Response({})


class OneJob(BaseView):
    """Return the job's id if the caller has the right on its topic."""

    def get(self, request: Any, job_id: int, right: str) -> Response:
        return Response({"id": self.job(job_id, Right(right)).pk})


class Raise(BaseView):
    def get(self, request: Any, what: str) -> Response:
        raise RAISED[what]


class JobIn(serializers.Serializer):
    due_at = serializers.DateTimeField()
    count = serializers.IntegerField(min_value=1)
    tags = serializers.ListField(child=serializers.CharField(max_length=3), default=list)

    def validate(self, attrs: Any) -> Any:
        if attrs["count"] == 13:
            raise serializers.ValidationError("Not thirteen.")
        return attrs


class Bulk(serializers.Serializer):
    jobs = JobIn(many=True)


class Validated(BaseView):
    def post(self, request: Any) -> Response:
        given = Bulk(data=request.data)
        given.is_valid(raise_exception=True)
        return Response({})


urlpatterns = [
    path("probe/", Probe.as_view()),
    path("may/<str:right>/<str:topic>/", May.as_view()),
    path("pause/<str:topic>/", Pause.as_view()),
    path("job/<int:job_id>/<str:right>/", OneJob.as_view()),
    path("raise/<str:what>/", Raise.as_view()),
    path("validated/", Validated.as_view()),
]
