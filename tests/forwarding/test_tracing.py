"""The trace of a forwarded job: the event has the context of the scheduling, the message that of the attempt."""

import json
from uuid import uuid4

import pytest

from delaytasks import schedule
from delaytasks.forwarding import CeleryTask, Kafka, Message, Webhook, events, forward

from ..support.spans import TRACEPARENT, Spans, links, traceparent
from .conftest import DUE
from .test_celery_task import app, messages  # noqa: F401  fixture

CONTEXT = f"{TRACEPARENT} vendor=1"


def message(format: str, context: str = CONTEXT) -> Message:
    return Message("42", "t", "a", {}, DUE, format=format, trace_context=context)  # type: ignore[arg-type]


@pytest.fixture
def forwarded(stage):
    """Forward the topic "t" to a target, schedule a job and run it."""

    def run(target, **options) -> None:
        stage.registered.append("t")
        forward("t", target, **options)
        schedule("t", "a", delay=0, body={"n": 1})
        stage.go()

    return run


@pytest.fixture
def webhook(receiver):
    return Webhook(f"http://localhost:{receiver.port}/", allow_networks=["127.0.0.0/8"], allow_http=True, timeout=5)


def test_a_webhook_gets_both_contexts(forwarded, receiver, webhook, spans: Spans):
    forwarded(webhook)
    (request,) = receiver.requests
    scheduled, process = spans.one("schedule t"), spans.one("process t")
    assert request.headers["traceparent"] == traceparent(process)
    assert json.loads(request.body)["traceparent"] == traceparent(scheduled)
    assert links(process) == [traceparent(scheduled)]


def test_a_webhook_gets_no_context_without_tracing(forwarded, receiver, webhook):
    forwarded(webhook)
    (request,) = receiver.requests
    assert "traceparent" not in request.headers
    assert "traceparent" not in json.loads(request.body)


@pytest.mark.parametrize("protocol", ["http", "kafka", "rabbitmq"])
@pytest.mark.parametrize(("state", "context"), [("vendor=1", CONTEXT), (None, TRACEPARENT)])
def test_the_context_is_in_the_attributes_of_the_event_in_both_modes(protocol, state, context):
    structured = json.loads(events.encode(message("cloudevents", context), protocol).body)
    assert (structured["traceparent"], structured.get("tracestate")) == (TRACEPARENT, state)
    binary = events.encode(message("cloudevents-binary", context), protocol).headers
    (prefix,) = {name.removesuffix("specversion") for name in binary if name.endswith("specversion")}
    assert (binary[f"{prefix}traceparent"], binary.get(f"{prefix}tracestate")) == (TRACEPARENT, state)


@pytest.mark.parametrize("format", ["json", "cloudevents", "cloudevents-binary"])
@pytest.mark.parametrize("protocol", ["http", "kafka", "rabbitmq"])
def test_the_current_span_is_in_the_headers_of_each_protocol(protocol, format, spans: Spans):
    with spans.inside() as current:
        headers = events.encode(message(format), protocol).headers
    assert headers["traceparent"] == traceparent(current)


def test_a_celery_task_has_the_attempts_context_in_its_headers(forwarded, app, spans: Spans):  # noqa: F811
    forwarded(CeleryTask("shop.tasks.close", app=app))
    (sent,) = messages(app)
    assert sent.headers["traceparent"] == traceparent(spans.one("process t"))


def test_a_message_of_kafka_has_the_attempts_context_in_its_headers(forwarded, kafka, spans: Spans):
    name = f"orders-{uuid4().hex[:8]}"
    forwarded(Kafka(name))
    (found,) = kafka.messages(name, 1)
    assert dict(found.headers())["traceparent"].decode() == traceparent(spans.one("process t"))
