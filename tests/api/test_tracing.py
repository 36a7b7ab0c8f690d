"""The trace of a request over HTTP goes on in the job that it schedules, on both paths."""

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.trace import StatusCode, get_current_span

from delaytasks.api.access.permissions import HasCaller
from delaytasks.models import Job

from ..support.spans import TRACEPARENT, Spans, traceparent
from .rest_client import Rest

TRACE_ID = TRACEPARENT.split("-")[1]
both_paths = pytest.mark.parametrize("_path", ["views", "fast"], indirect=True)


def trace_id(span: Any) -> str:
    return f"{span.context.trace_id:032x}"


@both_paths
def test_a_new_job_continues_the_callers_trace(rest: Rest, spans: Spans) -> None:
    made = rest.post(
        "jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 201, traceparent=TRACEPARENT,
        tracestate="vendor=1",
    )  # fmt: skip
    span = spans.one("schedule mail.send")
    assert (trace_id(span), f"{span.parent.span_id:016x}") == (TRACE_ID, TRACEPARENT.split("-")[2])
    assert span.attributes["messaging.message.id"] == str(made["id"])
    assert Job.objects.get().trace_context == f"{traceparent(span)} vendor=1"


@both_paths
def test_an_add_of_the_queue_protocol_continues_the_callers_trace(rest: Rest, spans: Spans) -> None:
    command = {"command": "add", "topic": "mail.send", "id": "a", "delay": 60, "TTR": 30, "body": {}}
    rest.post("queue/", command, traceparent=TRACEPARENT)
    span = spans.one("schedule mail.send")
    assert (trace_id(span), Job.objects.get().trace_context) == (TRACE_ID, traceparent(span))


@both_paths
def test_many_jobs_of_a_request_continue_the_callers_trace(rest: Rest, spans: Spans) -> None:
    jobs = [{"topic": "mail.send", "key": key, "delay_seconds": 60} for key in "ab"]
    rest.post("jobs/", {"jobs": jobs}, 201, traceparent=TRACEPARENT)
    span = spans.one("schedule")
    assert trace_id(span) == TRACE_ID
    assert set(Job.objects.values_list("trace_context", flat=True)) == {traceparent(span)}


@both_paths
@pytest.mark.parametrize("header", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_request_without_a_valid_header_begins_a_trace(rest: Rest, spans: Spans, header: str) -> None:
    rest.post(
        "jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 201,
        **({"traceparent": header} if header else {}),
    )  # fmt: skip
    span = spans.one("schedule mail.send")
    assert (span.parent, Job.objects.get().trace_context) == (None, traceparent(span))


@pytest.mark.parametrize("_path", ["views"], indirect=True)
def test_a_trace_is_continued_after_the_caller_is_known(rest: Rest, spans: Spans, monkeypatch: Any) -> None:
    seen, has_permission = [], HasCaller.has_permission

    def record(*arguments: Any) -> bool:
        seen.append(get_current_span().get_span_context().is_valid)
        return has_permission(*arguments)

    monkeypatch.setattr(HasCaller, "has_permission", record)
    rest.post("jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 201, traceparent=TRACEPARENT)
    assert seen == [False]
    assert trace_id(spans.one("schedule mail.send")) == TRACE_ID
    assert not get_current_span().get_span_context().is_valid


def test_a_span_of_the_web_servers_instrumentation_is_the_parent(rest: Rest, spans: Spans) -> None:
    with spans.inside("POST"):
        rest.post("jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 201, traceparent=TRACEPARENT)
    assert spans.one("schedule mail.send").parent.span_id == spans.one("POST").context.span_id


@pytest.mark.parametrize("_path", ["fast"], indirect=True)
def test_a_request_that_the_fast_path_passes_on_has_a_span_of_each(rest: Rest, spans: Spans) -> None:
    rest.make("a")
    problem = rest.post("jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 409)
    _, passed_on, refused = spans.named("schedule mail.send")
    assert problem["status"] == 409
    assert (passed_on.attributes["delaytasks.passed_on"], passed_on.status.status_code) == (True, StatusCode.UNSET)
    assert refused.status.status_code is StatusCode.ERROR


def test_a_header_is_ignored_while_tracing_is_off(rest_of: Callable[..., Rest]) -> None:
    rest = rest_of("produce", "php")
    rest.post("jobs/", {"topic": "mail.send", "key": "a", "delay_seconds": 60}, 201, traceparent=TRACEPARENT)
    assert Job.objects.get().trace_context is None
