"""CeleryTask: arguments, ids and confirmations, with Redis and RabbitMQ as brokers."""

import json
import os
import sys
from uuid import uuid4

import celery
import kombu
import pytest

from delaytasks import schedule, schedule_many
from delaytasks.forwarding import CeleryTask, Message, Rejected, TargetDown, forward
from delaytasks.forwarding.celery_task import arguments
from delaytasks.models import Job, Topic
from delaytasks.worker import runner

from ..support.installation import ROOT, Process
from ..support.servers import free_port, wait_until
from ..support.stage import outcomes, state_of
from . import amqp_peer as steps
from .conftest import DUE


def make_app(url):
    """Return an app with a queue of its own, which is not the current app."""
    app = celery.Celery("shop", broker=url, set_as_current=False)
    app.conf.update(task_default_queue=f"q-{uuid4().hex[:8]}", broker_connection_retry_on_startup=True)
    return app


@pytest.fixture
def app(redis_server):
    app = make_app(redis_server.url(1))
    yield app
    app.close()


def messages(app):
    """Return the messages of the app's default queue."""
    with app.connection_for_read() as connection:
        queue, found = kombu.Queue(app.conf.task_default_queue, channel=connection.default_channel), []
        while (message := queue.get(no_ack=True, accept=["json"])) is not None:
            found.append(message)
        return found


def calls(app):
    return [(each.headers["task"], each.headers["id"], *each.decode()[:2]) for each in messages(app)]


@pytest.mark.parametrize(
    ("body", "args", "kwargs"),
    [({"order": 1}, [], {"order": 1}), ([1, "a"], [1, "a"], {}), ([], [], {}), (None, [], {}), ({}, [], {})],
)
def test_the_body_becomes_the_arguments(app, body, args, kwargs):
    CeleryTask("shop.tasks.close", app=app).deliver(Message("42", "t", "k", body, DUE, format="json"), 5)
    assert calls(app) == [("shop.tasks.close", "42", args, kwargs)]


@pytest.mark.parametrize("body", ["text", 3, True, 0.5])
def test_a_body_that_is_no_arguments_is_rejected(body):
    with pytest.raises(Rejected, match="a Celery task takes an object, a list or null"):
        arguments(Message("42", "t", "k", body, DUE, format="json"))


@pytest.mark.parametrize("body", [{"amount": 1}, [1, 2], None])
def test_a_body_that_a_registered_task_does_not_take_is_dead_at_once(app, stage, body):
    @app.task(name="shop.tasks.close", shared=False)
    def close(order):
        pass

    stage.registered.append("t")
    forward("t", CeleryTask("shop.tasks.close", app=app))
    schedule("t", key="a", delay=0, body=body)
    schedule("t", key="b", delay=0, body={"order": 1})
    stage.go()
    assert [outcomes("a"), outcomes("b")] == [["dead"], ["finished"]]
    assert "does not fit the arguments of the Celery task: close()" in Job.objects.get(key="a").error
    assert calls(app) == [("shop.tasks.close", str(Job.objects.get(key="b").pk), [], {"order": 1})]


def refuse_large_numbers(data):
    """Serialize like msgpack, which has no numbers of more than 64 bits."""
    if str(2**64) in str(data):
        raise OverflowError("Integer value out of range")
    return json.dumps(data)


@pytest.mark.parametrize("broker", ["redis", "amqp"])
def test_a_body_that_the_serializer_refuses_is_dead_and_holds_nothing(stage, broker, redis_server, peer):
    kombu.serialization.register("narrow", refuse_large_numbers, json.loads, "application/x-narrow", "utf-8")
    app = make_app(peer.url if broker == "amqp" else redis_server.url(1))
    app.conf.task_serializer = "narrow"
    stage.registered.append("t")
    forward("t", CeleryTask("shop.tasks.close", app=app))
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0, "body": [n * 2**64]} for n in range(2))
    runner._paces["t"] = runner.Pace(size=2)
    stage.go()
    assert [outcomes("k0"), outcomes("k1")] == [["finished"], ["dead"]]
    assert "Integer value out of range" in Job.objects.get(key="k1").error


def test_a_registered_task_that_checks_no_arguments_is_given_any(app):
    @app.task(name="shop.tasks.close", shared=False, typing=False)
    def close(order):
        pass

    CeleryTask("shop.tasks.close", app=app).deliver(Message("42", "t", "k", [1, 2], DUE, format="json"), 5)
    assert calls(app) == [("shop.tasks.close", "42", [1, 2], {})]


def test_a_task_may_be_given_the_cloudevent(app, message):
    CeleryTask("shop.tasks.close", app=app).deliver(message("text"), 5)
    ((_, _, (event,), kwargs),) = calls(app)
    assert {name: event[name] for name in ("id", "type", "subject", "data", "specversion")} == {
        "id": "42", "type": "order.close", "subject": "order:1042", "data": "text", "specversion": "1.0",
    }  # fmt: skip
    assert kwargs == {}


def test_the_attributes_of_a_binary_cloudevent_are_headers(app, message):
    CeleryTask("shop.tasks.close", app=app).deliver(message(format="cloudevents-binary"), 5)
    (found,) = messages(app)
    assert (found.headers["ce-id"], found.headers["ce-type"]) == ("42", "order.close")
    assert found.decode()[1] == {"order": 1042}


def test_a_queue_may_be_named(app, message):
    name = f"q-{uuid4().hex[:8]}"
    CeleryTask("shop.tasks.close", app=app, queue=name).deliver(message(), 5)
    assert messages(app) == []
    app.conf.task_default_queue = name
    assert len(messages(app)) == 1


@pytest.fixture
def closed(app, tmp_path):
    """Start a worker of the app in a process of its own. Return a function that reads what its task recorded."""
    file = tmp_path / "closed"
    env = {
        **os.environ, "SHOP_BROKER": app.conf.broker_url, "SHOP_QUEUE": app.conf.task_default_queue,
        "SHOP_CLOSED": str(file), "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-m", "celery", "-A", "tests.forwarding.shop_worker", "worker", "--pool=solo"]
    process = Process("shop", command, tmp_path, env)
    yield lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    process.terminate(10)


def test_a_worker_runs_the_task_once_for_each_due_job(app, stage, closed):
    stage.registered.append("t")
    forward("t", CeleryTask("shop.tasks.close", app=app))
    job = schedule("t", key="a", delay=0, body={"order": 1042})
    stage.go()
    assert state_of("a") == "finished"
    CeleryTask("shop.tasks.close", app=app).deliver(Message("43", "t", "b", [7], DUE, format="json"), 5)
    wait_until(lambda: len(closed()) >= 2, seconds=60, what="the tasks to run")
    assert closed() == [[str(job.pk), 1042], ["43", 7]]


def test_eager_apps_run_the_task_here(app, message):
    app.conf.task_always_eager = True
    orders = []

    @app.task(name="shop.tasks.close", shared=False)
    def close(order):
        orders.append(order)

    CeleryTask("shop.tasks.close", app=app).deliver(message(format="json"), 5)
    assert orders == [1042]


# -- confirmations ------------------------------------------------------------------------------


def test_a_rabbitmq_confirms_the_message(rabbit, message):
    app = make_app(rabbit.url())
    CeleryTask("shop.tasks.close", app=app).deliver(message(format="json"), 5)
    assert calls(app) == [("shop.tasks.close", "42", [], {"order": 1042})]


def test_a_message_that_is_not_confirmed_holds_the_topic(peer, message):
    target = CeleryTask("shop.tasks.close", app=make_app(peer.url))
    target.deliver(message(format="json"), 5)
    peer.script(steps.ack_twice, steps.silent)
    target.deliver(message(format="json"), 5)
    with pytest.raises(TargetDown, match=r"Celery's broker: .* has not confirmed") as raised:
        target.deliver(message(format="json"), 0.2)
    assert "s3cret" not in str(raised.value)


def test_a_refused_message_holds_the_topic(peer, message):
    peer.script(steps.nack)
    with pytest.raises(TargetDown, match="nack"):
        CeleryTask("shop.tasks.close", app=make_app(peer.url)).deliver(message(format="json"), 5)


@pytest.mark.parametrize("scheme", ["amqp", "redis"])
def test_a_broker_that_is_away_holds_the_topic_until_it_is_back(stage, scheme, redis_server):
    stage.registered.append("t")
    app = make_app(f"{scheme}://127.0.0.1:{free_port()}/1")
    forward("t", CeleryTask("shop.tasks.close", app=app))
    schedule("t", key="a", delay=0)
    stage.go()
    assert "Celery's broker: " in Topic.objects.get(name="t").held_why
    assert outcomes("a") == ["snoozed"]


def test_a_redis_that_was_restarted_between_two_messages_is_not_away(app, redis_server, message):
    target = CeleryTask("shop.tasks.close", app=app)
    target.deliver(message(format="json"), 5)
    redis_server.restart()
    target.deliver(message(format="json"), 5)
    assert len(messages(app)) == 1


def test_a_redis_that_refuses_the_sender_holds_the_topic(app, redis_server, message):
    client = redis_server.client()
    client.config_set("requirepass", "s3cret")
    try:
        with pytest.raises(TargetDown, match=r"Celery's broker: .*uthentication"):
            CeleryTask("shop.tasks.close", app=make_app(redis_server.url(1))).deliver(message(format="json"), 5)
    finally:
        client.config_set("requirepass", "")
        client.close()


def test_a_redis_that_is_full_holds_the_topic(app, redis_server, message):
    client = redis_server.client()
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(TargetDown, match=r"Celery's broker: .*maxmemory"):
            CeleryTask("shop.tasks.close", app=app).deliver(message(format="json"), 5)
    finally:
        client.config_set("maxmemory", 0)
        client.close()
    CeleryTask("shop.tasks.close", app=app).deliver(message(format="json"), 5)
    assert len(messages(app)) == 1


# -- declarations -------------------------------------------------------------------------------


def test_the_format_of_a_celery_task_is_json_unless_it_is_named(app, stage):
    stage.registered += ["t", "u"]
    forward("t", CeleryTask("shop.tasks.close", app=app))
    forward("u", CeleryTask("shop.tasks.close", app=app), format="cloudevents")
    for topic in "tu":
        schedule(topic, key=topic, delay=0, body=[1])
    stage.go()
    found = sorted((len(args), args[0] == 1) for _, _, args, _ in calls(app))
    assert found == [(1, False), (1, True)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": ""}, "name is ''"),
        ({"name": None}, "name is None"),
        ({"queue": ""}, "queue is ''"),
        ({"timeout": "5"}, "timeout is '5'"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        CeleryTask(**{"name": "shop.tasks.close", **arguments})
