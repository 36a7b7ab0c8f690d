"""Batches over AMQP: each message is matched with its own confirmation, in whatever order and form they come.

The scripted peer breaks rules as no broker can be made to; the tests with a RabbitMQ are below.
"""

import dataclasses
import json
import signal
import threading

import pytest

from delaytasks import schedule_many
from delaytasks.exceptions import TTRExceeded
from delaytasks.forwarding import Amqp, BatchRefused, CeleryTask, Rejected, TargetDown, forward
from delaytasks.models import Job, Topic
from delaytasks.worker import runner, ttr

from ..support.forks import succeeds_in_fork
from ..support.stage import outcomes, state_of
from . import amqp_peer as steps
from .test_celery_task import make_app


@pytest.fixture
def batch(message):
    """Return a function that makes messages with these keys, which are their ids, too."""
    return lambda keys, **options: [dataclasses.replace(message(key=key, **options), id=key) for key in keys]


class Reports(dict):
    """The report of each message by its id: "ok", or the class of the error."""

    def __call__(self, message, error):
        assert message.id not in self, "reported twice"
        self[message.id] = "ok" if error is None else type(error)


def send(target, messages, seconds=5.0):
    """Return (the reports, the error that deliver_many() has raised, or None)."""
    reports = Reports()
    try:
        target.deliver_many(messages, seconds, reports)
    except (Exception, TTRExceeded) as error:
        return reports, error
    return reports, None


def in_order(*tags):
    """Return a step that confirms these messages of the session, one by one."""

    def step(session, tag):
        for each in tags:
            steps.ack(session, each)

    return step


# -- confirmations ------------------------------------------------------------------------------


def test_a_batch_is_published_before_its_first_confirmation(peer, batch):
    peer.script(steps.silent, steps.silent, steps.silent, steps.ack_all)
    assert send(Amqp("orders"), batch("abcd")) == (dict.fromkeys("abcd", "ok"), None)
    assert (peer.connections, len(peer.published)) == (1, 4)


@pytest.mark.parametrize("tags", [(3, 1, 2), (3, 2, 1)])
def test_confirmations_come_in_any_order(peer, batch, tags):
    peer.script(steps.silent, steps.silent, in_order(*tags))
    reports, error = send(Amqp("orders"), batch("abc"))
    assert (list(reports), error) == (["abc"[tag - 1] for tag in tags], None)


def test_a_confirmation_for_several_leaves_those_that_follow_unconfirmed(peer, batch):
    peer.script(steps.silent, steps.ack_all, steps.silent)
    reports, error = send(Amqp("orders"), batch("abc"), 0.3)
    assert reports == dict.fromkeys("ab", "ok")
    assert isinstance(error, TargetDown)
    assert "has not confirmed" in str(error)


def test_a_confirmation_that_is_repeated_confirms_no_other_message(peer, batch):
    peer.script(steps.silent, in_order(1, 1, 1), steps.silent)
    reports, error = send(Amqp("orders"), batch("abc"), 0.3)
    assert (reports, type(error)) == ({"a": "ok"}, TargetDown)


def test_a_late_confirmation_of_a_batch_does_not_confirm_the_next_one(peer, batch):
    target = Amqp("orders")
    peer.script(steps.ack, *[steps.silent] * 5)
    assert send(target, batch("abc"), 0.2)[0] == {"a": "ok"}
    late = peer.sessions[1]

    def confirm():
        try:
            steps.ack_all(late, 3)
        except OSError:
            pass

    threading.Timer(0.05, confirm).start()
    reports, error = send(target, batch("bcd"), 0.3)
    assert (reports, type(error), peer.connections) == ({}, TargetDown, 2)


def test_an_interrupt_in_a_batch_keeps_what_was_confirmed_and_leaves_nothing_for_the_next(peer, batch, ttr_state):
    target = Amqp("orders")
    peer.script(steps.ack, *[steps.silent] * 2, *[steps.silent] * 3)
    ttr.enforce(watchdog=False, grace_seconds=5)
    with ttr.limit(300):
        reports, error = send(target, batch("abc"), 10)
    assert (reports, type(error)) == ({"a": "ok"}, TTRExceeded)
    assert (send(target, batch("def"), 0.2)[0], peer.connections) == ({}, 2)


def test_a_refused_message_in_a_batch_is_the_only_one_that_is_not_confirmed(peer, batch):
    peer.script(steps.ack, steps.nack, steps.silent, steps.ack_all)
    assert send(Amqp("orders"), batch("abcd")) == ({"a": "ok", "b": TargetDown, "c": "ok", "d": "ok"}, None)


def test_a_message_that_is_returned_in_a_batch_is_the_only_one_that_is_rejected(peer, batch):
    peer.script(steps.silent, steps.return_only, steps.silent, steps.ack_all)
    reports, error = send(Amqp("orders", "due.{key}"), batch("abcd"))
    assert (reports, error) == ({"a": "ok", "b": Rejected, "c": "ok", "d": "ok"}, None)


def test_a_returned_message_that_is_unknown_confirms_none(peer, batch):
    def return_unknown(session, tag):
        session.properties = b"\0\0"
        steps.return_only(session, tag)

    peer.script(steps.silent, return_unknown, steps.ack_all)
    reports, error = send(Amqp("orders", "due.{key}"), batch("abc"))
    assert (reports, type(error)) == ({}, TargetDown)


def test_a_connection_that_breaks_in_a_batch_is_replaced_and_only_the_rest_is_sent_again(peer, batch):
    target = Amqp("orders", "{key}")
    peer.script(steps.ack, steps.ack, steps.silent, steps.hang_up)
    target.deliver(batch("w")[0], 5)
    assert send(target, batch("abc")) == (dict.fromkeys("abc", "ok"), None)
    assert peer.connections == 2
    assert [key for _, key, _, _ in peer.published] == ["w", "a", "b", "c", "b", "c"]


def test_a_broker_that_blocks_publishers_in_a_batch_sends_back_the_rest(peer, batch):
    peer.script(steps.ack, steps.block)
    reports, error = send(Amqp("orders"), batch("abc"))
    assert reports.keys() <= {"a"}
    assert (type(error), "blocks publishers" in str(error)) == (TargetDown, True)


def test_a_message_that_cannot_be_encoded_does_not_keep_the_others_from_being_sent(peer, batch):
    messages = batch("abc")
    messages[1] = dataclasses.replace(messages[1], body="\ud800", format="json")
    reports, error = send(Amqp("orders", "{key}"), [*messages, *batch(["é" * 200])])
    assert reports == {"a": "ok", "b": UnicodeEncodeError, "c": "ok", "é" * 200: Rejected}
    assert error is None


def test_a_forked_process_sends_batches_over_a_connection_of_its_own(peer, batch):
    target = Amqp("orders")
    send(target, batch("abc"))
    assert succeeds_in_fork(lambda: send(target, batch("def")) == (dict.fromkeys("def", "ok"), None))
    assert send(target, batch("ghi"))[1] is None
    assert (peer.connections, len(peer.published)) == (2, 9)


def test_celery_tasks_are_sent_as_a_batch_over_the_same_way(peer, batch):
    target = CeleryTask("shop.tasks.close", app=make_app(peer.url))
    target.deliver(batch("w", format="json")[0], 5)  # declares the queue
    peer.script(steps.silent, steps.nack, steps.silent, steps.ack_all)
    messages = batch("abcd", format="json")
    messages.append(dataclasses.replace(messages[0], id="e", body="no arguments"))
    reports, error = send(target, messages)
    assert reports == {"a": "ok", "b": TargetDown, "c": "ok", "d": "ok", "e": Rejected}
    assert error is None


# -- due jobs and a RabbitMQ --------------------------------------------------------------------


def due(stage, target, bodies):
    stage.registered.append("t")
    forward("t", target, format="json")
    schedule_many({"topic": "t", "key": key, "delay": 0, "body": body} for key, body in bodies.items())
    runner._paces["t"] = runner.Pace(size=len(bodies))


def test_due_jobs_are_sent_together_and_the_unroutable_one_is_dead(rabbit, queue, stage):
    keys = [f"due.{n}" for n in range(20)]
    due(stage, Amqp(queue.name, "{key}"), dict.fromkeys([*keys[:10], "elsewhere", *keys[10:]]))
    stage.go()
    assert (outcomes("elsewhere"), {state_of(key) for key in keys}) == (["dead"], {"finished"})
    assert "NO_ROUTE" in Job.objects.get(key="elsewhere").error
    assert sorted(found.delivery_info["routing_key"] for found in queue.messages()) == sorted(keys)


def test_a_message_that_makes_the_broker_close_the_channel_is_dead_alone(rabbit, queue, stage, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "MAX_BODY_BYTES": 300_000}
    bodies = {f"k{n}": "x" * (200_000 if n == 3 else 10) for n in range(8)}
    due(stage, Amqp(queue.name, "due.{key}"), bodies)
    stage.go()
    assert [outcomes(key) for key in bodies] == [["dead" if key == "k3" else "finished"] for key in bodies]
    assert "message size" in Job.objects.get(key="k3").error
    assert not Topic.objects.filter(held_since__isnull=False)
    received = {found.properties["message_id"] for found in queue.messages()}
    assert received == {str(job.pk) for job in Job.objects.exclude(key="k3")}


def test_messages_that_are_refused_together_are_named_by_the_target(rabbit, queue, batch):
    messages = batch("abc")
    messages[1] = dataclasses.replace(messages[1], body="x" * 200_000)
    reports, error = send(Amqp(queue.name, "due.x"), messages)
    assert isinstance(error, BatchRefused)
    assert "b" not in reports


def test_an_exchange_that_does_not_exist_sends_back_all_and_holds_the_topic(rabbit, stage):
    due(stage, Amqp("no-such-exchange", "x"), {f"k{n}": {} for n in range(5)})
    stage.go()
    assert [outcomes(f"k{n}") for n in range(5)] == [["snoozed"]] * 5
    assert "NOT_FOUND" in Topic.objects.get(name="t").held_why
    assert set(Job.objects.values_list("failures", flat=True)) == {0}


def test_batches_to_a_killed_broker_lose_nothing_that_it_has_confirmed(rabbit, settled_queue, batch):
    target, confirmed, sent = Amqp(settled_queue.name, "due.{key}"), set(), 0
    killing = threading.Timer(0.5, rabbit.stop, (signal.SIGKILL,))
    error = None
    while error is None:
        reports, error = send(target, batch([str(n) for n in range(sent, sent + 100)]))
        if not confirmed:
            killing.start()
        confirmed |= reports.keys()
        sent += 100
    killing.join()
    assert isinstance(error, TargetDown)
    rabbit.start()
    assert send(target, batch(["last"])) == ({"last": "ok"}, None)
    received = {json.loads(found.body)["id"] for found in settled_queue.messages()}
    assert confirmed
    assert confirmed | {"last"} <= received
    assert len(received - confirmed) <= 101, "of the last batch, those that were published and not confirmed"
