"""What is sent is the event of the scenarios of the CloudEvents conformance tests, and is read as they expect.

A job of the topic `type` with the key "order:1" is sent, so the event has a subject in addition. There are features for
HTTP and Kafka; RabbitMQ's binding names the attributes as that of HTTP does.
"""

import json
from datetime import datetime
from uuid import uuid4

import kombu
import pytest
from cloudevents.core.bindings import http, rabbitmq
from cloudevents.core.bindings import kafka as kafka_binding

from delaytasks.forwarding import Amqp, Kafka, Message, Webhook

from ..support.cloudevents_cases import BINARY_TYPES, DATA, EVENT, STRUCTURED_TYPES

TRACING = ("traceparent", "tracestate")  # extensions of a job that was scheduled in a span
SUBJECT = {"subject": "order:1"}
BODY = json.dumps(DATA, separators=(",", ":")).encode()


def message(format):
    return Message(
        EVENT["id"], EVENT["type"], SUBJECT["subject"], DATA, datetime.fromisoformat(EVENT["time"]),
        source=EVENT["source"], format=format,
    )  # fmt: skip


@pytest.fixture
def by_kafka(kafka):
    """Send a message. Return its content type, its other headers, its body, and the event that the library reads."""

    def send(format):
        name = f"orders-{uuid4().hex[:8]}"
        kafka.create_topic(name)
        Kafka(name).deliver(message(format), 5)
        (found,) = kafka.messages(name, 1)
        headers = {key: value.decode() for key, value in found.headers()}
        event = kafka_binding.from_kafka_event(kafka_binding.KafkaMessage(dict(found.headers()), None, found.value()))
        return headers.pop("content-type"), headers, found.value(), event

    return send


@pytest.fixture
def by_http(receiver):
    def send(format):
        url = f"http://localhost:{receiver.port}/someresource"
        Webhook(url, allow_http=True, allow_networks=["127.0.0.0/8"]).deliver(message(format), 5)
        (request,) = receiver.requests
        headers = dict(request.headers)
        event = http.from_http_event(http.HTTPMessage(headers, request.body))
        return headers.pop("content-type"), headers, request.body, event

    return send


@pytest.fixture
def by_amqp(rabbit):
    def send(format):
        queue = f"q-{uuid4().hex[:8]}"
        with kombu.Connection(rabbit.url()) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, auto_delete=False)
            Amqp("", queue).deliver(message(format), 5)
            found = channel.message_to_python(channel.basic_get(queue, no_ack=True))
        body = found.body.encode()
        event = rabbitmq.from_rabbitmq_event(rabbitmq.RabbitMQMessage(found.headers, found.content_type, body))
        return found.content_type, found.headers, body, event

    return send


@pytest.fixture(params=["kafka", "http", "amqp"])
def protocol(request):
    return request.param


@pytest.fixture
def send(request, protocol):
    return request.getfixturevalue(f"by_{protocol}")


def check_event(event):
    attributes = event.get_attributes()
    expected = {**EVENT, **SUBJECT, "time": datetime.fromisoformat(EVENT["time"]), "datacontenttype": BINARY_TYPES[0]}
    assert ({name: attributes[name] for name in attributes if name not in TRACING}, event.get_data()) == (
        expected, DATA
    )  # fmt: skip


def test_binary_mode(send, protocol):
    content_type, headers, body, event = send("cloudevents-binary")
    prefix = "ce_" if protocol == "kafka" else "ce-"
    assert content_type == BINARY_TYPES[0]
    assert {name: text for name, text in headers.items() if name.startswith("ce")} == {
        f"{prefix}{name}": text for name, text in {**EVENT, **SUBJECT}.items()
    }
    assert body == BODY
    check_event(event)


def test_structured_mode(send):
    content_type, headers, body, event = send("cloudevents")
    assert content_type == STRUCTURED_TYPES[0]
    assert not [name for name in headers if name.startswith("ce")]
    assert json.loads(body) == {**EVENT, **SUBJECT, "datacontenttype": BINARY_TYPES[0], "data": DATA}
    check_event(event)
