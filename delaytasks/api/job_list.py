"""Response data of jobs: one job, one job with its events, or a page of jobs."""

import json
from collections.abc import Sequence
from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from ..db import dialects, pagination
from ..db.scans import JobFilter
from ..models import Job, JobEvent
from ..states import State
from .access.permissions import Caller, Right
from .serializers.requests import PageQuerySerializer, validated
from .serializers.responses import JobSerializer, JobWithEventsSerializer

# Characters of bodies in a page, apart from the first one: 200 of the largest bodies took seconds to redact.
MAX_PAGE_BODIES = 1024 * 1024
MAX_EVENTS = 1000  # events in a response; a job that polls every ten minutes has thousands


def shown_job(
    job: Job, caller: Caller, using: str, serializer: type[serializers.Serializer] = JobSerializer, **context: Any
) -> dict[str, Any]:
    """Return the data of a job with its current state, redacted for the caller."""
    return dict(serializer(job, context={"now": dialects.database_now(using), "caller": caller, **context}).data)


def with_events(job: Job, caller: Caller, using: str) -> dict[str, Any]:
    """Return the data of a job with its newest events, oldest first."""
    newest = list(JobEvent.objects.using(using).newest_of(job.pk)[: MAX_EVENTS + 1])
    job.has_older_events = len(newest) > MAX_EVENTS  # type: ignore[attr-defined]
    job.shown_events = newest[MAX_EVENTS - 1 :: -1]  # type: ignore[attr-defined]
    return shown_job(job, caller, using, JobWithEventsSerializer)


def page(request: Request, caller: Caller, using: str) -> Response:
    """Return a page of the jobs that the caller sees. Raises ValidationError, PermissionDenied, BadCursor."""
    query = validated(PageQuerySerializer, query_of(request))
    names = query.pop("topic", None)
    for topic in names or ():
        caller.require(Right.READ, topic)
    if "state" in query:
        query["state"] = State[query["state"].upper()]
    cursor, limit, now = query.pop("cursor"), query.pop("limit"), dialects.database_now(using)
    job_filter = JobFilter(now, tuple(caller.topics(using) if names is None else names), **query)
    ids, next_cursor = pagination.find_by_topic(using, job_filter, cursor, limit)
    jobs = pagination.fetch(Job.objects.using(using), ids)
    fitting = count_fitting([job.body for job in jobs])
    if fitting < len(jobs):
        fewer = ids.index(jobs[fitting].pk)
        ids, next_cursor = pagination.find_by_topic(using, job_filter, cursor, fewer)
        jobs = pagination.fetch(Job.objects.using(using), ids)
    shown = JobSerializer(jobs, many=True, context={"now": now, "caller": caller}).data
    here = request.get_full_path()  # relative: an absolute URL would be http behind a proxy that terminates TLS
    next_url = replace_query_param(here, "cursor", next_cursor) if next_cursor else None
    return Response({"next": next_url, "results": shown})


def count_fitting(bodies: Sequence[Any]) -> int:
    """Return how many of the bodies a page may have, at least one: those of MAX_PAGE_BODIES characters together."""
    size = 0
    for number, body in enumerate(bodies):
        size += len(json.dumps(body))
        if number and size > MAX_PAGE_BODIES:
            return number
    return len(bodies)


def query_of(request: Request) -> dict[str, Any]:
    """Return the query parameters. Raises ValidationError for a repeated parameter other than topic."""
    given = dict(request.query_params.lists())
    twice = {
        name: "It is given more than once." for name, values in given.items() if len(values) > 1 and name != "topic"
    }
    if twice:
        raise serializers.ValidationError(twice)
    return {name: values if name == "topic" else values[0] for name, values in given.items()}
