"""Kafka: formats, confirmations, and the meaning of each error. The cluster is librdkafka's mock cluster."""

import gc
import json
import time
import weakref
from uuid import uuid4

import pytest
from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from confluent_kafka import KafkaError

from delaytasks import schedule
from delaytasks.exceptions import TTRExceeded
from delaytasks.forwarding import Kafka, Rejected, TargetDown, forward
from delaytasks.forwarding.targets import Failed
from delaytasks.models import Topic
from delaytasks.worker import ttr

from ..support.forks import succeeds_in_fork
from ..support.stage import outcomes, state_of
from .conftest import DUE


@pytest.fixture
def name(kafka):
    """A topic of Kafka of the test's own."""
    name = f"orders-{uuid4().hex[:8]}"
    kafka.create_topic(name)
    return name


def headers_of(found):
    return {key: value.decode() for key, value in found.headers()}


# -- the message --------------------------------------------------------------------------------


@pytest.mark.parametrize("format", ["cloudevents", "cloudevents-binary"])
def test_a_message_is_a_cloudevent(kafka, name, message, format):
    Kafka(name, key="key").deliver(message({"order": "é"}, format=format), 5)
    (found,) = kafka.messages(name, 1)
    event = from_kafka_event(KafkaMessage(dict(found.headers()), found.key(), found.value()))
    assert (event.get_id(), event.get_type(), event.get_subject()) == ("42", "order.close", "order:1042")
    assert (event.get_time(), event.get_source(), event.get_data()) == (DUE, "/delaytasks", {"order": "é"})
    assert ("ce_id" in headers_of(found)) == (format == "cloudevents-binary")
    assert found.key() == b"order:1042"


def test_a_message_may_be_the_body_alone(kafka, name, message):
    Kafka(name).deliver(message(format="json"), 5)
    (found,) = kafka.messages(name, 1)
    assert (json.loads(found.value()), found.key()) == ({"order": 1042}, None)
    assert headers_of(found) == {"content-type": "application/json", "message-id": "42"}


@pytest.mark.parametrize(("field", "key"), [("key", b"order:1042"), ("topic", b"order.close"), ("id", b"42")])
def test_the_key_is_a_field_of_the_job(kafka, name, message, field, key):
    Kafka(name, key=field).deliver(message(), 5)
    assert kafka.messages(name, 1)[0].key() == key


def test_a_due_job_is_finished_by_the_confirmation(kafka, name, stage):
    stage.registered.append("t")
    forward("t", Kafka(name, key="key"))
    job = schedule("t", key="a", delay=0, body={"n": 1})
    stage.go()
    (found,) = kafka.messages(name, 1)
    assert (state_of("a"), json.loads(found.value())["id"]) == ("finished", str(job.pk))


# -- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Rejected),
        (KafkaError.INVALID_RECORD, Rejected),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, TargetDown),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, TargetDown),
        (KafkaError.POLICY_VIOLATION, TargetDown),
        (KafkaError.THROTTLING_QUOTA_EXCEEDED, TargetDown),
        (KafkaError.UNKNOWN, Failed),
    ],
)
def test_each_error_of_a_broker_has_its_meaning(kafka, name, message, code, expected):
    target = Kafka(name)
    kafka.fail_produce(code)
    with pytest.raises(expected, match=KafkaError(code).name()):
        target.deliver(message(), 5)
    target.deliver(message(), 5)
    assert len(kafka.messages(name, 1)) == 1


def test_a_topic_that_does_not_exist_is_a_target_that_is_gone(kafka, name, message):
    kafka.fail_topic(name, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(TargetDown, match="UNKNOWN_TOPIC"):
        Kafka(name, timeout=1).deliver(message(), 5)
    kafka.fail_topic(name, 0)
    Kafka(name).deliver(message(), 5)


def test_a_broker_that_restarted_between_two_messages_is_not_away(kafka, name, message):
    target = Kafka(name)
    target.deliver(message(), 5)
    for down in (True, False):
        kafka.set_down(down=down)
    target.deliver(message(), 5)


def test_a_message_that_is_too_large_is_rejected_and_others_are_sent(kafka, name, message, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"]["message.max.bytes"] = 2000
    target = Kafka(name)
    with pytest.raises(Rejected, match="MSG_SIZE_TOO_LARGE"):
        target.deliver(message("x" * 3000), 5)
    target.deliver(message("x"), 5)


def test_nobody_listening_is_noticed_at_once_and_nothing_is_sent_later(kafka, name, message):
    target = Kafka(name)
    target.deliver(message(key="first"), 5)
    kafka.set_down(down=True)
    began = time.monotonic()
    with pytest.raises(TargetDown, match="kafka: _"):
        target.deliver(message(key="second"), 10)
    assert time.monotonic() - began < 5
    kafka.set_down(down=False)
    target.deliver(message(key="third"), 10)
    found = kafka.messages(name, 3, seconds=1)
    assert sorted(json.loads(each.value())["subject"] for each in found) == ["first", "third"]


def test_a_confirmation_that_is_not_there_in_time_holds_the_topic(kafka, name, message):
    target = Kafka(name)
    target.deliver(message(), 5)
    kafka.set_round_trip(10_000)
    began = time.monotonic()
    with pytest.raises(TargetDown, match="TIMED_OUT"):
        target.deliver(message(), 0.3)
    assert time.monotonic() - began < 8


def test_acks_of_the_options_has_no_effect(kafka, name, message, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"] |= {"acks": 0, "message.timeout.ms": 10**9}
    target = Kafka(name)
    target.deliver(message(), 5)
    kafka.set_round_trip(400)
    began = time.monotonic()
    target.deliver(message(), 5)
    assert time.monotonic() - began > 0.3, "it waited for the confirmation"


def test_wrong_options_hold_the_topic_and_are_named(kafka, name, message, settings):
    settings.DELAYTASKS["BROKERS"]["kafka"]["no.such.option"] = 1
    with pytest.raises(TargetDown, match=r"no\.such\.option"):
        Kafka(name).deliver(message(), 5)


def test_a_message_that_the_ttr_interrupts_is_not_sent_later(kafka, name, message, ttr_state):
    target = Kafka(name)
    target.deliver(message(key="first"), 5)
    kafka.set_round_trip(20_000)
    ttr.enforce(watchdog=False, grace_seconds=5)
    with pytest.raises(TTRExceeded), ttr.limit(300):
        target.deliver(message(key="first"), 10)  # on its way: the broker has it
    kafka.set_down(down=True)
    with pytest.raises((TTRExceeded, TargetDown)), ttr.limit(1000):  # long enough to be waiting for the broker
        target.deliver(message(key="second"), 10)
    kafka.set_round_trip(0)
    kafka.set_down(down=False)
    target.deliver(message(key="third"), 10)
    subjects = [json.loads(each.value())["subject"] for each in kafka.messages(name, 4, seconds=1)]
    assert "second" not in subjects


def test_a_producer_that_was_given_up_is_gone_with_its_threads(kafka, name, message):
    target = Kafka(name)
    producer = weakref.ref(target._producer(5.0))
    kafka.fail_produce(KafkaError.INVALID_RECORD)
    gc.disable()
    try:
        with pytest.raises(Rejected):
            target.deliver(message(), 5.0)
        assert producer() is None
    finally:
        gc.enable()


def test_a_forked_process_has_a_producer_of_its_own(kafka, name, message):
    target = Kafka(name)
    target.deliver(message(key="parent"), 5)
    assert succeeds_in_fork(lambda: target.deliver(message(key="child"), 5))
    target.deliver(message(key="parent"), 5)
    subjects = [json.loads(each.value())["subject"] for each in kafka.messages(name, 3)]
    assert sorted(subjects) == ["child", "parent", "parent"]


def test_a_topic_is_held_while_its_broker_is_away_and_resumes_by_itself(kafka, name, stage, db_clock):
    stage.registered.append("t")
    forward("t", Kafka(name))
    kafka.set_down(down=True)
    schedule("t", key="a", delay=0)
    stage.go()
    assert "kafka: _" in Topic.objects.get(name="t").held_why
    kafka.set_down(down=False)
    db_clock.advance(seconds=5)
    stage.go()
    assert (outcomes("a"), Topic.objects.get(name="t").held_since) == (["snoozed", "finished"], None)


def test_a_job_that_is_refused_for_its_content_is_dead_and_holds_nothing(kafka, name, stage):
    stage.registered.append("t")
    forward("t", Kafka(name))
    kafka.fail_produce(KafkaError.INVALID_RECORD)
    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), Topic.objects.filter(held_since__isnull=False).count()) == ("dead", 0)


# -- declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topic": ""}, "topic is ''"),
        ({"topic": "x" * 250}, "at most 249 bytes"),
        ({"key": "body"}, "key is 'body'; use 'key', 'topic', 'id' or None"),
        ({"broker": "kafak"}, r"there is no broker 'kafak' in DELAYTASKS\[\"BROKERS\"\], which has: kafka"),
        ({"timeout": 0}, "timeout is 0"),
    ],
)
def test_wrong_arguments_are_refused(kafka, arguments, message):
    with pytest.raises(ValueError, match=message):
        Kafka(**{"topic": "orders", **arguments})


def test_options_without_servers_are_refused(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"kafka": "amqp://guest:s3cret@host"}}
    with pytest.raises(ValueError, match=r"bootstrap\.servers") as raised:
        Kafka("orders")
    assert "s3cret" not in str(raised.value)
