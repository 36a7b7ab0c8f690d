"""Jobs as answers show them: one, one with its events, a page of them."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from .. import dialect, listing
from ..models import Job, JobEvent
from ..states import State
from .access import Caller, Right
from .answers import JobSerializer, JobWithEventsSerializer
from .serializers import PageQuerySerializer, checked

MAX_EVENTS = 1000  # a job that asks a bank every ten minutes has thousands


def shown_job(
    job: Job, caller: Caller, using: str, serializer: type[serializers.Serializer] = JobSerializer, **context: Any
) -> dict[str, Any]:
    """The job's data as the caller may see it, its state as of now."""
    return dict(serializer(job, context={"now": dialect.database_now(using), "caller": caller, **context}).data)


def with_events(job: Job, caller: Caller, using: str) -> dict[str, Any]:
    """The job's data and its newest events, oldest first."""
    newest = list(JobEvent.objects.using(using).newest_of(job.pk)[: MAX_EVENTS + 1])
    job.has_older_events = len(newest) > MAX_EVENTS  # type: ignore[attr-defined]
    job.shown_events = newest[MAX_EVENTS - 1 :: -1]  # type: ignore[attr-defined]
    return shown_job(job, caller, using, JobWithEventsSerializer)


def page(request: Request, caller: Caller, using: str) -> Response:
    """A page of the jobs that the caller sees. Raises ValidationError, PermissionDenied, BadCursor."""
    query = checked(PageQuerySerializer, _query(request))
    names = query.pop("topic", None)
    for topic in names or ():
        caller.require(Right.READ, topic)
    if "state" in query:
        query["state"] = State[query["state"].upper()]
    found = listing.page(using, caller.topics(using) if names is None else names, **query)
    shown = JobSerializer(found.jobs, many=True, context={"now": dialect.database_now(using), "caller": caller}).data
    here = request.get_full_path()  # relative: behind a proxy that ends TLS and does not say so it would be http
    return Response({"next": replace_query_param(here, "cursor", found.next) if found.next else None, "results": shown})


def _query(request: Request) -> dict[str, Any]:
    """The query's parameters. Raises ValidationError for one that is given twice and may not be."""
    given = dict(request.query_params.lists())
    twice = {
        name: "It is given more than once." for name, values in given.items() if len(values) > 1 and name != "topic"
    }
    if twice:
        raise serializers.ValidationError(twice)
    return {name: values if name == "topic" else values[0] for name, values in given.items()}
