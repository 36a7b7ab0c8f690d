"""A RabbitMQ is killed between a message and its confirmation. Where there is none, the summary says so."""

import json
import signal
from collections import Counter

import pytest

from delaytasks import schedule_many
from delaytasks.forwarding import Amqp, forward
from delaytasks.models import Job, Topic
from delaytasks.states import State
from delaytasks.worker import runner

from .amqp_proxy import KillingProxy

JOBS = 20


@pytest.fixture
def proxy(rabbit, settings):
    """A proxy in front of the RabbitMQ, in BROKERS as "amqp"."""
    proxy = KillingProxy(rabbit.port, lambda: rabbit.stop(signal.SIGKILL))
    settings.DELAYTASKS = {
        **settings.DELAYTASKS, "BROKERS": {"amqp": f"amqp://guest:guest@127.0.0.1:{proxy.port}//"},
    }  # fmt: skip
    yield proxy
    proxy.close()


def finished():
    return {str(pk) for pk in Job.objects.filter(state=State.FINISHED).values_list("pk", flat=True)}


def due(prefix):
    schedule_many({"topic": "t", "key": f"{prefix}{n}", "delay": 0, "body": {"n": n}} for n in range(JOBS))
    runner._paces["t"] = runner.Pace(size=JOBS)


@pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
@pytest.mark.parametrize("kill_before", ["the confirmation", "it arrives"])
def test_a_broker_that_is_killed_before_its_confirmation_loses_no_job_and_doubles_no_id(
    stage, rabbit, proxy, settled_queue, db_clock, kill_before
):
    stage.registered.append("t")
    forward("t", Amqp(settled_queue.name, "due.{key}"))
    due("before")
    stage.go()
    confirmed = finished()
    assert len(confirmed) == JOBS
    proxy.messages, proxy.kill_before = JOBS, kill_before
    due("after")
    stage.go()
    assert proxy.killed.wait(30)
    assert finished() == confirmed, "nothing that was not confirmed is finished"
    assert Topic.objects.get(name="t").held_since is not None
    proxy.kill_before = "nothing"
    rabbit.start()
    for _ in range(3):  # the probe, and the others when their time comes
        db_clock.advance(seconds=10)
        stage.go()
    assert len(finished()) == 2 * JOBS
    assert set(Job.objects.values_list("failures", flat=True)) == {0}
    received = [(json.loads(found.body), found.properties["message_id"]) for found in settled_queue.messages()]
    assert {event["id"] for event, _ in received} == {message_id for _, message_id in received} == finished()
    told = {(message_id, event["subject"], event["data"]["n"]) for event, message_id in received}
    assert len(told) == 2 * JOBS, "a message that came twice says the same under the same id"
    twice = {message_id for message_id, count in Counter(message_id for _, message_id in received).items() if count > 1}
    assert not twice & confirmed, "what was confirmed is not sent again"
    if kill_before == "it arrives":
        assert twice, "the broker had stored what it confirmed"
