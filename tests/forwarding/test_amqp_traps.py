"""Confirmations that are late, repeated, missing or refused: only that of the message itself finishes its job.

The peer is scripted: no real broker can be made to break the rules. tests/forwarding/test_amqp.py has a RabbitMQ.
"""

import contextlib
import threading
import time

import pytest

from delaytasks import schedule
from delaytasks.exceptions import TTRExceeded
from delaytasks.forwarding import Amqp, Rejected, TargetDown, forward
from delaytasks.models import Topic
from delaytasks.worker import ttr

from ..support.forks import succeeds_in_fork
from ..support.stage import outcomes, state_of
from . import amqp_peer as steps


def ack_late(session):
    """Confirm the first message of a session 50 ms later, if the client still listens."""

    def confirm():
        with contextlib.suppress(OSError):
            steps.ack(session, 1)

    threading.Timer(0.05, confirm).start()


def keys(peer):
    return [routing_key for _, routing_key, _, _ in peer.published]


def test_a_message_is_mandatory_and_its_confirmation_delivers_it(peer, message):
    target = Amqp("orders", "due.{key}")
    for key in "ab":
        target.deliver(message(key=key), 5)
    assert [each[:3] for each in peer.published] == [("orders", "due.a", True), ("orders", "due.b", True)]
    assert peer.connections == 1


def test_a_confirmation_may_be_for_several_messages(peer, message):
    peer.script(steps.ack, steps.ack_all)
    for _ in range(2):
        Amqp("orders").deliver(message(), 5)


def test_a_repeated_confirmation_does_not_confirm_the_next_message(peer, message):
    target = Amqp("orders")
    peer.script(steps.ack_twice, steps.silent)
    target.deliver(message(), 5)
    with pytest.raises(TargetDown, match="has not confirmed"):
        target.deliver(message(), 0.2)


def test_a_late_confirmation_does_not_confirm_the_next_message(peer, message):
    target = Amqp("orders")
    peer.script(steps.silent, steps.silent)
    with pytest.raises(TargetDown, match="has not confirmed"):
        target.deliver(message(), 0.2)
    late = peer.sessions[1]
    with pytest.raises(TargetDown, match="has not confirmed"):
        ack_late(late)
        target.deliver(message(), 0.3)
    target.deliver(message(), 5)
    assert peer.connections == 3


def test_an_interrupt_of_the_ttr_leaves_no_confirmation_for_the_next_message(peer, message, ttr_state):
    target = Amqp("orders")
    peer.script(steps.silent, steps.silent)
    ttr.enforce(watchdog=False, grace_seconds=5)
    with pytest.raises(TTRExceeded), ttr.limit(200):
        target.deliver(message(), 10)
    interrupted = peer.sessions[1]
    ack_late(interrupted)
    with pytest.raises(TargetDown, match="has not confirmed"):
        target.deliver(message(), 0.3)


def test_a_returned_message_is_no_success_and_the_next_one_waits_for_its_own_confirmation(peer, message):
    target = Amqp("orders", "due.{key}")
    peer.script(steps.return_and_ack, steps.silent)
    with pytest.raises(Rejected, match="NO_ROUTE"):
        target.deliver(message(), 5)
    with pytest.raises(TargetDown, match="has not confirmed"):
        target.deliver(message(), 0.2)


@pytest.mark.parametrize("options", [{"routing_key": "due"}, {}, {"routing_key": "due.{topic}"}])
def test_a_routing_key_of_the_target_that_leads_nowhere_holds_the_topic(peer, message, options):
    """All jobs of the topic have this routing key, so none of them is the cause."""
    peer.script(steps.return_and_ack)
    with pytest.raises(TargetDown, match="NO_ROUTE"):
        Amqp("orders", **options).deliver(message(), 5)


@pytest.mark.parametrize("routing_key", ["{key}", "{topic}.{id}"])
def test_a_routing_key_of_the_job_that_leads_nowhere_is_rejected(peer, message, routing_key):
    peer.script(steps.return_and_ack)
    with pytest.raises(Rejected, match="NO_ROUTE"):
        Amqp("orders", routing_key).deliver(message(), 5)


def test_a_refused_message_holds_the_topic(peer, message):
    target = Amqp("orders")
    peer.script(steps.nack)
    with pytest.raises(TargetDown, match="nack"):
        target.deliver(message(), 5)
    target.deliver(message(), 5)


def test_a_broker_that_blocks_publishers_holds_the_topic_at_once(peer, message):
    peer.script(steps.block)
    began = time.monotonic()
    with pytest.raises(TargetDown, match="blocks publishers"):
        Amqp("orders").deliver(message(), 10)
    assert time.monotonic() - began < 5


def test_a_connection_that_was_closed_while_idle_is_replaced_and_the_message_sent_again(peer, message):
    target = Amqp("orders")
    peer.script(steps.ack, steps.hang_up, steps.ack)
    for key in "ab":
        target.deliver(message(key=key), 5)
    assert (peer.connections, len(peer.published)) == (2, 3)


def test_a_broker_that_always_hangs_up_is_away(peer, message):
    peer.script(*[steps.hang_up] * 4)
    with pytest.raises(TargetDown):
        Amqp("orders").deliver(message(), 5)
    assert len(peer.published) == 1, "a new connection is not tried again"


@pytest.mark.parametrize(
    "method", [(10, 11), (10, 40), (20, 10), (85, 10)], ids=["start", "open", "channel", "confirm"]
)
def test_a_broker_that_stops_answering_is_away(peer, message, method, monkeypatch):
    monkeypatch.setattr("delaytasks.forwarding.publisher.CONNECT_SECONDS", 0.2)
    peer.mute.add(method)
    began = time.monotonic()
    with pytest.raises(TargetDown) as raised:
        Amqp("orders").deliver(message(), 10)
    assert time.monotonic() - began < 8
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("method", [(10, 11), (20, 10), (85, 10)], ids=["start", "channel", "confirm"])
def test_a_broker_that_stops_answering_takes_no_longer_than_the_timeout(peer, message, method):
    peer.mute.add(method)
    began = time.monotonic()
    with pytest.raises(TargetDown):
        Amqp("orders", timeout=0.4).deliver(message(), 10)
    assert time.monotonic() - began < 8


def test_a_forked_process_has_a_connection_of_its_own(peer, message):
    target = Amqp("orders")
    target.deliver(message(), 5)
    assert succeeds_in_fork(lambda: target.deliver(message(), 5))
    assert (peer.connections, len(peer.published)) == (2, 2)
    target.deliver(message(), 5)
    assert peer.connections == 2, "the parent's connection is as it was"


def test_a_topic_is_held_and_resumes_with_the_same_id(peer, stage, db_clock):
    stage.registered.append("t")
    forward("t", Amqp("orders", "{id}"))
    peer.script(steps.nack)
    job = schedule("t", key="a", delay=0)
    stage.go()
    assert "nack" in Topic.objects.get(name="t").held_why
    db_clock.advance(seconds=5)
    stage.go()
    assert (outcomes("a"), Topic.objects.get(name="t").held_since) == (["snoozed", "finished"], None)
    assert keys(peer) == [str(job.pk)] * 2


def test_a_job_whose_routing_key_is_too_long_is_dead(peer, stage):
    stage.registered.append("t")
    forward("t", Amqp("orders", "{key}"))
    schedule("t", key="é" * 200, delay=0)
    stage.go()
    assert (state_of("é" * 200), peer.published) == ("dead", [])


# -- declarations -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"exchange": None}, "exchange is None"),
        ({"exchange": "x" * 256}, "at most 255 bytes"),
        ({"routing_key": "{body}"}, r"may only have \{topic\}, \{key\} and \{id\}"),
        ({"routing_key": "{key.__class__}"}, "may only have"),
        ({"routing_key": "{key!r:>9}"}, "may only have"),
        ({"routing_key": "{key"}, "wrong placeholder"),
        ({"broker": "rabbit"}, "there is no broker 'rabbit' .* which has: amqp"),
        ({"timeout": True}, "timeout is True"),
    ],
)
def test_wrong_arguments_are_refused(peer, arguments, message):
    with pytest.raises(ValueError, match=message):
        Amqp(**{"exchange": "orders", **arguments})


@pytest.mark.parametrize("broker", ["redis://:s3cret@host", {"bootstrap.servers": "host"}])
def test_a_broker_of_another_kind_is_refused(settings, broker):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "BROKERS": {"amqp": broker}}
    with pytest.raises(ValueError, match="amqp:// or amqps://") as raised:
        Amqp("orders")
    assert "s3cret" not in str(raised.value)
