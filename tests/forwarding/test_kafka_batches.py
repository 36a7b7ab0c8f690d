"""Batches to Kafka: each message has its own answer; what a broker refuses together is sent alone."""

import dataclasses
import json
import threading
import time
from uuid import uuid4

import pytest
from confluent_kafka import KafkaError

from delaytasks import schedule_many
from delaytasks.exceptions import TTRExceeded
from delaytasks.forwarding import BatchRefused, Kafka, Rejected, TargetDown, forward
from delaytasks.forwarding import kafka as module
from delaytasks.models import Job, Topic
from delaytasks.worker import runner, ttr

from ..support.forks import succeeds_in_fork
from ..support.stage import outcomes
from .test_amqp_batches import batch, send  # noqa: F401  fixture


@pytest.fixture
def name():
    """A topic of Kafka of the test's own."""
    return f"orders-{uuid4().hex[:8]}"


def subjects(found):
    return sorted(json.loads(each.value())["subject"] for each in found)


def due(stage, target, bodies):
    stage.registered.append("t")
    forward("t", target)
    schedule_many({"topic": "t", "key": key, "delay": 0, "body": body} for key, body in bodies.items())
    runner._paces["t"] = runner.Pace(size=len(bodies))


def test_a_batch_waits_for_its_confirmations_together(kafka, name, batch):  # noqa: F811
    target, keys = Kafka(name, key="key"), [f"k{n}" for n in range(50)]
    send(target, batch(["warm"]))
    kafka.set_round_trip(200)
    began = time.monotonic()
    assert send(target, batch(keys), 10) == (dict.fromkeys(keys, "ok"), None)
    assert 0.2 <= time.monotonic() - began < 5, "not 200 ms for each"
    kafka.set_round_trip(0)
    assert subjects(kafka.messages(name, 51)) == sorted([*keys, "warm"])


def test_a_message_that_the_client_refuses_is_rejected_and_the_others_are_sent(kafka, name, batch, settings):  # noqa: F811
    settings.DELAYTASKS["BROKERS"]["kafka"]["message.max.bytes"] = 2000
    messages = batch("abc")
    messages[1] = dataclasses.replace(messages[1], body="x" * 3000)
    assert send(Kafka(name), messages) == ({"a": "ok", "b": Rejected, "c": "ok"}, None)
    assert subjects(kafka.messages(name, 2)) == ["a", "c"]


@pytest.mark.parametrize("code", [KafkaError.INVALID_RECORD, KafkaError.UNKNOWN, KafkaError.MSG_SIZE_TOO_LARGE])
def test_a_refused_request_charges_none_of_its_messages(kafka, name, batch, code):  # noqa: F811
    kafka.fail_produce(code)
    reports, error = send(Kafka(name, key="topic"), batch("abcdef"))
    assert isinstance(error, BatchRefused)
    assert set(reports.values()) <= {"ok"}
    assert len(reports) < 6


def test_the_messages_of_a_refused_request_are_sent_alone(kafka, name, stage):
    kafka.fail_produce(KafkaError.INVALID_RECORD)
    due(stage, Kafka(name, key="topic"), {f"k{n}": {} for n in range(8)})
    stage.go()
    assert [outcomes(f"k{n}") for n in range(8)] == [["finished"]] * 8
    found = kafka.messages(name, 8)
    assert {json.loads(each.value())["id"] for each in found} == {str(job.pk) for job in Job.objects.all()}


def test_a_broker_that_refuses_the_sender_sends_back_what_it_has_not_confirmed(kafka, name, stage, db_clock):
    kafka.fail_produce(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    due(stage, Kafka(name, key="topic"), {f"k{n}": {} for n in range(8)})
    stage.go()
    ends = [outcomes(f"k{n}") for n in range(8)]
    assert ["snoozed"] in ends
    assert all(each in (["snoozed"], ["finished"]) for each in ends)
    assert "TOPIC_AUTHORIZATION_FAILED" in Topic.objects.get(name="t").held_why
    db_clock.advance(seconds=5)
    stage.go()
    assert all(outcomes(f"k{n}")[-1] == "finished" for n in range(8))
    assert set(Job.objects.values_list("failures", flat=True)) == {0}


def test_a_batch_to_brokers_that_are_away_holds_the_topic_and_none_is_sent_later(kafka, name, batch):  # noqa: F811
    target = Kafka(name)
    send(target, batch(["first"]))
    kafka.set_down(down=True)
    began = time.monotonic()
    reports, error = send(target, batch("abc"), 10)
    assert (reports, type(error)) == ({}, TargetDown)
    assert time.monotonic() - began < 5
    kafka.set_down(down=False)
    send(target, batch(["last"]), 10)
    assert subjects(kafka.messages(name, 5, seconds=1)) == ["first", "last"]


def test_an_interrupt_purges_what_was_not_sent_of_the_batch(kafka, name, batch, ttr_state):  # noqa: F811
    target = Kafka(name)
    send(target, batch(["first"]))
    kafka.set_down(down=True)
    ttr.enforce(watchdog=False, grace_seconds=5)
    with ttr.limit(500):
        reports, error = send(target, batch("abc"), 10)
    assert (reports, type(error)) == ({}, TTRExceeded)
    kafka.set_down(down=False)
    send(target, batch(["last"]), 10)
    assert subjects(kafka.messages(name, 5, seconds=1)) == ["first", "last"]


def test_what_is_confirmed_before_an_interrupt_is_reported(kafka, name, batch, ttr_state, monkeypatch):  # noqa: F811
    reported = threading.Event()
    produce = module.Producer._produce

    def slow(self, topic, record, pending, deadline):
        """Wait for the first message's answer before the second is produced, and let that be slow."""
        if pending.waiting:
            while pending.waiting:
                self._poll(pending, deadline)
            reported.set()
            kafka.set_round_trip(20_000)
        produce(self, topic, record, pending, deadline)

    monkeypatch.setattr(module.Producer, "_produce", slow)
    ttr.enforce(watchdog=False, grace_seconds=5)
    with ttr.limit(3000):
        reports, error = send(Kafka(name), batch("ab"), 10)
    assert reported.is_set()
    assert (reports, type(error)) == ({"a": "ok"}, TTRExceeded)


def test_a_queue_that_is_full_takes_the_rest_when_some_are_confirmed(kafka, name, batch, settings):  # noqa: F811
    settings.DELAYTASKS["BROKERS"]["kafka"]["queue.buffering.max.messages"] = 3
    keys = [f"k{n}" for n in range(20)]
    assert send(Kafka(name), batch(keys)) == (dict.fromkeys(keys, "ok"), None)


def test_a_message_that_the_broker_refuses_removes_none_of_another_thread(kafka, name, batch, monkeypatch):  # noqa: F811
    target, other = Kafka(name), Kafka(f"{name}-other")
    for each in (target, other):
        send(each, batch(["first"]), 10)
    answers, on_its_way = [], threading.Event()
    thread = threading.Thread(target=lambda: answers.append(send(other, batch(["good"]), 10)))
    produce, answer = module.Producer._produce, module._Batch.answer

    def note(self, topic, *args):
        produce(self, topic, *args)
        if topic == f"{name}-other":
            on_its_way.set()

    def answer_late(self, record, refusal):
        if refusal is not None and not on_its_way.is_set():
            kafka.set_round_trip(1000)
            thread.start()
            assert on_its_way.wait(10)
        answer(self, record, refusal)

    monkeypatch.setattr(module.Producer, "_produce", note)
    monkeypatch.setattr(module._Batch, "answer", answer_late)
    kafka.fail_produce(KafkaError.MSG_SIZE_TOO_LARGE)
    reports, _ = send(target, batch(["bad"]), 10)
    thread.join(20)
    kafka.set_round_trip(0)
    assert (reports, answers) == ({"bad": Rejected}, [({"good": "ok"}, None)])


def test_a_forked_process_sends_batches_with_a_producer_of_its_own(kafka, name, batch):  # noqa: F811
    target = Kafka(name)
    send(target, batch("ab"))
    assert succeeds_in_fork(lambda: send(target, batch("cd"), 10) == (dict.fromkeys("cd", "ok"), None))
    assert send(target, batch("ef"))[1] is None
    assert subjects(kafka.messages(name, 6)) == list("abcdef")
