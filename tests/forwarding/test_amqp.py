"""Amqp with a RabbitMQ: formats, routing, and what the broker refuses. Where there is none, the summary says so."""

import json
import signal
import threading
from uuid import uuid4

import kombu
import pytest
from cloudevents.core.bindings.rabbitmq import RabbitMQMessage, from_rabbitmq_event

from delaytasks.forwarding import Amqp, Rejected, TargetDown

from .conftest import DUE


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-binary"])
def test_a_message_is_a_cloudevent(queue, message, format):
    Amqp(queue.name, "due.{topic}").deliver(message({"order": "é"}, format=format), 5)
    (found,) = queue.messages()
    event = from_rabbitmq_event(RabbitMQMessage(found.headers, found.content_type, found.body.encode()))
    assert (event.get_id(), event.get_type(), event.get_subject()) == ("42", "order.close", "order:1042")
    assert (event.get_time(), event.get_source(), event.get_data()) == (DUE, "/delaytasks", {"order": "é"})
    assert ("ce-id" in found.headers) == (format == "cloudevents-binary")


def test_a_message_is_persistent_and_has_the_id_of_the_job(queue, message):
    Amqp(queue.name, "due.x").deliver(message(format="json"), 5)
    (found,) = queue.messages()
    properties = found.properties
    assert (properties["message_id"], properties["type"], properties["delivery_mode"]) == ("42", "order.close", 2)
    assert (json.loads(found.body), found.delivery_info["routing_key"]) == ({"order": 1042}, "due.x")


def test_the_default_exchange_leads_to_a_queue_by_its_name(queue, message):
    Amqp("", queue.name).deliver(message(), 5)
    assert len(queue.messages()) == 1


def test_a_key_that_leads_to_no_queue_is_rejected_and_the_next_message_is_sent(queue, message):
    target = Amqp(queue.name, "{key}")
    with pytest.raises(Rejected, match=r"No queue of exchange .* takes routing key 'elsewhere'"):
        target.deliver(message(key="elsewhere"), 5)
    target.deliver(message(key="due.x"), 5)
    assert len(queue.messages()) == 1


def test_an_exchange_without_a_queue_for_the_target_holds_the_topic(queue, message):
    with pytest.raises(TargetDown, match="No queue"):
        Amqp(queue.name, "elsewhere").deliver(message(), 5)


def test_an_exchange_that_does_not_exist_holds_the_topic(queue, message):
    with pytest.raises(TargetDown, match="NOT_FOUND"):
        Amqp("no-such-exchange", "x").deliver(message(), 5)
    Amqp(queue.name, "due.x").deliver(message(), 5)


def test_a_message_that_is_too_large_is_rejected(queue, message):
    with pytest.raises(Rejected, match="message size"):
        Amqp(queue.name, "due.x").deliver(message("x" * 200_000), 5)
    Amqp(queue.name, "due.x").deliver(message(), 5)


def test_a_queue_that_is_full_holds_the_topic(rabbit, message):
    name = f"q-{uuid4().hex[:8]}"
    with kombu.Connection(rabbit.url()) as connection:
        connection.channel().queue_declare(
            name, durable=True, auto_delete=False, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
        )
    Amqp("", name).deliver(message(), 5)
    with pytest.raises(TargetDown, match="nack"):
        Amqp("", name).deliver(message(), 5)


@pytest.mark.parametrize(
    ("url", "text"),
    [("amqp://guest:s3cret@{host}//", "AccessRefused"), ("amqp://guest:guest@{host}/other", "NotAllowed")],
)
def test_a_broker_that_refuses_the_sender_holds_the_topic(rabbit, message, settings, url, text):
    broker = url.format(host=f"127.0.0.1:{rabbit.port}")
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"amqp": {"url": broker}}}
    with pytest.raises(TargetDown, match=text) as raised:
        Amqp("orders").deliver(message(), 5)
    assert "s3cret" not in str(raised.value)


def test_a_killed_broker_loses_no_message_that_it_has_confirmed(rabbit, settled_queue, message):
    target, confirmed = Amqp(settled_queue.name, "due.{key}"), []
    killing = threading.Timer(0.3, rabbit.stop, (signal.SIGKILL,))
    killing.start()
    with pytest.raises(TargetDown, match="amqp: "):
        for number in range(1_000_000):
            target.deliver(message(key=str(number)), 5)
            confirmed.append(str(number))
    killing.join()
    rabbit.start()
    target.deliver(message(key="last"), 5)
    received = [json.loads(found.body)["subject"] for found in settled_queue.messages()]
    assert confirmed
    assert set(confirmed) | {"last"} <= set(received)
    assert len(received) <= len(confirmed) + 2, "one that was published and not confirmed may be there"


def test_the_channel_goes_on_after_a_returned_message(rabbit, queue, message):
    target = Amqp(queue.name, "{key}")
    for key in ("elsewhere", "due.x") * 3:
        try:
            target.deliver(message(key=key), 5)
        except Rejected:
            assert key == "elsewhere"
    assert len(queue.messages()) == 3
