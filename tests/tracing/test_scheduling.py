"""The span of a call that schedules jobs, and its context in the jobs."""

import pytest
from asgiref.sync import async_to_sync
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import SpanKind, StatusCode

from delaytasks import aschedule, schedule, schedule_many
from delaytasks.exceptions import KeyIsLive
from delaytasks.models import Job

from ..support.spans import TRACEPARENT, Spans, links, traceparent, turn_on

pytestmark = pytest.mark.on_both


def stored(key: str) -> str | None:
    return Job.objects.filter(key=key).latest("id").trace_context


def test_a_job_carries_the_context_of_the_span_of_its_scheduling(stage, spans: Spans):
    stage.recorder("t")
    with spans.inside() as checkout:
        job = schedule("t", "a", delay=60)
    span = spans.one("schedule t")
    assert stored("a") == job.trace_context == traceparent(span)
    assert (span.parent.span_id, span.kind) == (checkout.context.span_id, SpanKind.PRODUCER)
    assert dict(span.attributes) == {
        "messaging.system": "delaytasks", "messaging.operation.name": "schedule", "messaging.operation.type": "send",
        "messaging.destination.name": "t", "messaging.message.id": str(job.pk),
    }  # fmt: skip


def test_the_jobs_of_one_call_have_one_span(stage, spans: Spans):
    for topic in ("t", "u"):
        stage.recorder(topic)
    schedule_many([{"topic": topic, "key": topic, "delay": 60} for topic in ("t", "u")])
    span = spans.one("schedule")
    assert stored("t") == stored("u") == traceparent(span)
    assert span.attributes["messaging.batch.message_count"] == 2


def test_the_jobs_of_a_generator_have_the_same_span(stage, spans: Spans):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": str(n), "delay": 60} for n in range(3))
    assert set(Job.objects.values_list("trace_context", flat=True)) == {traceparent(spans.one("schedule"))}


def test_an_async_call_continues_the_trace_of_its_caller(stage, spans: Spans):
    stage.recorder("t")

    async def call() -> None:
        with spans.inside():
            await aschedule("t", "a", delay=60)

    async_to_sync(call)()  # the synchronous part uses the connection of this thread
    assert spans.one("schedule t").parent.span_id == spans.one("checkout").context.span_id


@pytest.mark.parametrize(("mode", "expected"), [("keep", 0), ("again", 0), ("replace", 1)])
def test_a_waiting_job_has_the_context_of_the_call_that_gave_its_terms(stage, spans: Spans, mode, expected):
    stage.recorder("t")
    schedule("t", "a", delay=60)
    schedule("t", "a", delay=90, on_conflict=mode)
    assert stored("a") == traceparent(spans.named("schedule t")[expected])


def test_the_next_run_of_a_running_job_has_the_context_of_its_own_scheduling(stage, spans: Spans):
    @stage.handler("t")
    def handle(job):
        if job.body:
            schedule("t", "a", delay=0, on_conflict="again")

    schedule("t", "a", delay=0, body=1)
    stage.go()
    first, second = spans.named("schedule t")
    assert [links(span) for span in spans.named("process t")] == [[traceparent(first)], [traceparent(second)]]


def test_a_refused_call_is_an_error(stage, spans: Spans):
    stage.recorder("t")
    schedule("t", "a", delay=60)
    with pytest.raises(KeyIsLive):
        schedule("t", "a", delay=60)
    span = spans.named("schedule t")[1]
    assert (span.status.status_code, span.attributes["error.type"]) == (
        StatusCode.ERROR, "delaytasks.exceptions.KeyIsLive"
    )  # fmt: skip


def test_the_state_of_the_trace_is_stored_unless_it_is_too_long(stage, spans: Spans):
    from delaytasks import tracing

    stage.recorder("t")
    for key, state in (("a", "vendor=1,other=2"), ("b", f"vendor={'x' * 255}," + f"other={'y' * 1000}")):
        with tracing.continuing({"traceparent": TRACEPARENT, "tracestate": state}):
            schedule("t", key, delay=60)
    first, second = map(traceparent, spans.named("schedule t"))
    assert (stored("a"), stored("b")) == (f"{first} vendor=1,other=2", second)


def test_nothing_is_stored_of_a_span_that_is_not_sampled(stage, settings, monkeypatch):
    stage.recorder("t")
    spans = turn_on(settings, monkeypatch, ALWAYS_OFF)
    schedule("t", "a", delay=60)
    schedule_many([{"topic": "t", "key": "b", "delay": 60}])
    assert (stored("a"), stored("b"), spans.all()) == (None, None, [])
