"""The message run_topic is sent by task name, from a thread; a broker that fails or hangs delays nobody else."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.app.task import Context
from celery.local import Proxy

from delaytasks import databases, schedule
from delaytasks.bulk import changes
from delaytasks.circuit_breaker import CircuitBreaker
from delaytasks.worker import dispatch, sender
from delaytasks.worker.leases import reserve
from delaytasks.worker.sender import BROKER_FAILURES, BROKER_PAUSE_SECONDS, Sender
from tests.support.forks import succeeds_in_fork
from tests.support.rabbitmq import RabbitServer
from tests.support.servers import RedisServer, free_port
from tests.support.silent_server import silent_server

BROKERS = ("redis", "amqp")


@pytest.fixture
def celery_app(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Celery]:
    """celery_app(url) is Celery's current app during the test."""

    def make(url: str) -> Celery:
        app = Celery(broker=url, set_as_current=False)
        for module in (dispatch, changes):
            monkeypatch.setattr(module, "current_app", Proxy(lambda: app))
        return app

    return make


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The clock of the broker's circuit breaker."""
    return Clock()


@pytest.fixture
def own_sender(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Sender:
    """This process's sender during the test."""
    made = Sender(breaker=CircuitBreaker(BROKER_FAILURES, BROKER_PAUSE_SECONDS, monotonic=clock))
    monkeypatch.setattr(dispatch, "sender", lambda: made)
    return made


@pytest.mark.parametrize("known", [True, False], ids=["known here", "unknown here"])
def test_the_message_names_its_task_the_topic_and_the_database(
    celery_app: Any, own_sender: Sender, db_clock: Any, known: bool
) -> None:
    app = celery_app("memory://")
    app.loader.import_task_module("delaytasks.tasks")
    if not known:
        app.tasks.pop(sender.RUN_TOPIC)
    assert (sender.RUN_TOPIC in app.tasks) == known
    dispatch.send_run_topic("default", "order.close", "slow")
    assert own_sender.wait_until_sent(10)  # two threads that declare a queue in memory at the same time make it twice
    with app.connection_for_read() as connection, connection.SimpleQueue("slow") as queue:
        message = queue.get(timeout=5)
        message.ack()
        assert queue.qsize() == 0
    assert message.headers["task"] == "delaytasks.run_topic"
    assert message.payload[0] == ["order.close", "default"]
    assert message.headers["expires"]
    assert message.headers["ignore_result"] is True
    assert message.headers[sender.SENT_MS] == databases.last_known_ms("default")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({sender.SENT_MS: 5}, 5), ({sender.SENT_MS: "5"}, sender.UNKNOWN_MS), ({}, sender.UNKNOWN_MS),
     (None, sender.UNKNOWN_MS)],
)  # fmt: skip
def test_a_message_without_its_time_counts_as_the_last_one(headers: dict[str, Any] | None, expected: int) -> None:
    assert sender.sent_ms(Context(headers=headers)) == expected


def test_the_time_of_a_message_is_found_beside_the_headers_of_a_tracer() -> None:
    """A tracer may add a header named "headers", which Celery then takes for all headers of the message."""
    assert sender.sent_ms(Context({sender.SENT_MS: 5, "headers": {"sentry-trace": "1"}})) == 5


def test_a_broker_that_is_down_is_logged_and_tried_again_after_two_seconds(
    celery_app: Any, own_sender: Sender, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    celery_app(f"redis://127.0.0.1:{free_port()}/0")
    with caplog.at_level(logging.WARNING, logger="delaytasks"):
        for _ in range(3):
            dispatch.send_run_topic("default", "order.close", None)
            assert own_sender.wait_until_sent(10)
        assert caplog.text.count("topic order.close was not sent to a worker") == 1
        clock.now = 2.0
        dispatch.send_run_topic("default", "order.close", None)
        assert own_sender.wait_until_sent(10)
    assert caplog.text.count("topic order.close was not sent to a worker") == 2


@pytest.fixture(params=BROKERS)
def silent_broker(request: pytest.FixtureRequest, celery_app: Any, own_sender: Sender) -> Iterator[str]:
    """A broker that accepts connections and never answers."""
    with silent_server() as port:
        url = f"{request.param}://127.0.0.1:{port}//"
        celery_app(url)
        yield url
    assert own_sender.wait_until_sent(10), "the closed connections end the attempt"


def test_a_silent_broker_stops_neither_promotion_nor_guard_nor_consumers(
    stage, monkeypatch: pytest.MonkeyPatch, silent_broker: str, own_sender: Sender
) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_SECONDS", 60)
    mover = dispatch.new_mover("default")
    for topic in ("t", "u"):
        stage.handler(topic)(print)
    began = time.monotonic()
    for topic in ("t", "u"):
        schedule(topic, key="a", delay=0)
        mover.move_due()
        stage.guard()
        assert [job.topic for job in reserve(topic, 1, using="default", worker="consumer")] == [topic]
    assert time.monotonic() - began < 30  # the attempt to send takes longer: it is still under way
    assert not own_sender.wait_until_sent(0), "the first message is still being sent"


def test_a_message_to_a_silent_broker_is_given_up_after_a_few_seconds(
    celery_app: Any, own_sender: Sender, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_SECONDS", 0.2)
    for broker in BROKERS:
        with silent_server() as port:
            celery_app(f"{broker}://127.0.0.1:{port}//")
            own_sender._breaker.reset()
            dispatch.send_run_topic("default", broker, None)
            assert own_sender.wait_until_sent(10), broker
        assert f"topic {broker} was not sent to a worker" in caplog.text


def test_a_message_to_a_rabbitmq_that_hangs_later_is_given_up_after_a_few_seconds(
    rabbit_server: RabbitServer, celery_app: Any, own_sender: Sender, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(sender, "TIMEOUT_SECONDS", 1)
    app = celery_app(rabbit_server.url())
    dispatch.send_run_topic("default", "order.close", "t")
    assert own_sender.wait_until_sent(10)
    assert not caplog.records
    assert rabbit_server.process is not None
    os.killpg(rabbit_server.process.pid, signal.SIGSTOP)
    try:
        dispatch.send_run_topic("default", "order.close", "u")  # waits until the queue is declared
        assert own_sender.wait_until_sent(10)
    finally:
        os.killpg(rabbit_server.process.pid, signal.SIGCONT)
    assert "topic order.close was not sent to a worker" in caplog.text
    app.close()


@pytest.mark.parametrize("broker", BROKERS)
def test_a_bulk_change_does_not_wait_for_a_silent_broker(
    celery_app: Any, broker: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "TIMEOUT_SECONDS", 0.2)
    with silent_server() as port:
        celery_app(f"{broker}://127.0.0.1:{port}//")
        began = time.monotonic()
        changes.send(7, "default")
    assert time.monotonic() - began < 10
    assert "bulk change 7 was not sent to a worker" in caplog.text


def test_a_connection_that_the_broker_has_closed_is_replaced_without_a_pause(
    redis_server: RedisServer, celery_app: Any, own_sender: Sender, caplog: pytest.LogCaptureFixture
) -> None:
    app = celery_app(redis_server.url(9))
    with redis_server.client(9) as client:
        for topic in ("t", "u"):
            dispatch.send_run_topic("default", topic, "closed")
            assert own_sender.wait_until_sent(10)
            client.client_kill_filter(skipme=True)
        assert client.llen("closed") == 2
        client.flushdb()
    assert "was not sent" not in caplog.text
    app.close()


def test_a_topic_waits_once_however_often_it_is_dispatched(celery_app: Any) -> None:
    app = celery_app("memory://")
    begun, go_on, sent = threading.Event(), threading.Event(), []

    def slow(message: sender.Message) -> None:
        sent.append(message.topic)
        begun.set()
        assert go_on.wait(10)

    own = Sender(slow)

    own.submit(sender.Message(app, "default", "t", None))
    assert begun.wait(10)
    for topic in ("u", "t", "u", "u"):
        own.submit(sender.Message(app, "default", topic, None))
    go_on.set()
    assert own.wait_until_sent(10)
    assert sent == ["t", "u", "t"]


def test_an_unforeseen_error_does_not_end_the_thread(celery_app: Any, caplog: pytest.LogCaptureFixture) -> None:
    app, sent = celery_app("memory://"), []

    def fail_once(message: sender.Message) -> None:
        sent.append(message.topic)
        if len(sent) == 1:
            raise RuntimeError("no such queue")

    own = Sender(fail_once)
    for topic in ("t", "u"):
        own.submit(sender.Message(app, "default", topic, None))
    assert own.wait_until_sent(10)
    assert sent == ["t", "u"]
    assert "topic t could not be sent to a worker" in caplog.text


def test_a_message_that_nobody_answers_is_sent_again_later_and_later(celery_app: Any) -> None:
    message, at, done = sender.Message(celery_app("memory://"), "default", "t", None), [], threading.Event()

    def is_unanswered(_: sender.Message) -> bool:
        if len(at) == 3:
            done.set()
        return len(at) < 3

    Sender(lambda _: at.append(time.monotonic()), is_unanswered=is_unanswered).submit(message)
    assert done.wait(10)
    first, second, third = at
    assert second - first >= 0.1
    assert third - second >= 0.2


def test_a_message_is_not_sent_again_for_ever(celery_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "RESEND_MS", 1)
    monkeypatch.setattr(sender, "MAX_RESEND_MS", 4)
    message, count, last = sender.Message(celery_app("memory://"), "default", "t", None), [0], threading.Event()

    def send(_: sender.Message) -> None:
        count[0] += 1
        if count[0] == 4:
            last.set()

    own = Sender(send, is_unanswered=lambda _: True)
    own.submit(message)
    assert last.wait(10)
    assert own.wait_until_sent(10)
    assert own._sent == {}


def test_a_check_that_fails_does_not_end_the_thread(celery_app: Any) -> None:
    app, sent, failed = celery_app("memory://"), [], threading.Event()

    def fail(_: sender.Message) -> bool:
        failed.set()
        raise RuntimeError("no Redis")

    own = Sender(lambda message: sent.append(message.topic), is_unanswered=fail)
    own.submit(sender.Message(app, "default", "t", None))
    assert failed.wait(10)
    own.submit(sender.Message(app, "default", "u", None))
    assert own.wait_until_sent(10)
    assert sent == ["t", "u"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_message_that_cannot_be_sent_is_reported_and_the_thread_goes_on(celery_app: Any, fails: bool) -> None:
    app, dropped = celery_app("memory://"), []
    sent: list[str] = []

    def send(message: sender.Message) -> None:
        if message.topic == "t":
            raise OSError("the broker is away")
        sent.append(message.topic)

    def report(message: sender.Message) -> None:
        dropped.append(message.topic)
        if fails:
            raise RuntimeError("no Redis")

    own = Sender(send, CircuitBreaker(sender.BROKER_FAILURES, 0.0), dropped=report)
    own.submit(sender.Message(app, "default", "t", None))
    own.submit(sender.Message(app, "default", "u", None))
    assert own.wait_until_sent(10)
    assert (dropped, sent) == (["t"], ["u"])


def test_a_message_that_cannot_be_sent_again_is_reported_too(celery_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "RESEND_MS", 1)
    monkeypatch.setattr(sender, "MAX_RESEND_MS", 1)
    message, times, dropped = sender.Message(celery_app("memory://"), "default", "t", None), [0], threading.Event()

    def send(_: sender.Message) -> None:
        times[0] += 1
        if times[0] == 2:
            raise OSError("the broker is away")

    own = Sender(send, is_unanswered=lambda _: True, dropped=lambda _: dropped.set())
    own.submit(message)
    assert dropped.wait(10)


def test_a_topic_whose_message_cannot_be_sent_is_forgotten(celery_app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    celery_app("memory://")
    forgotten: list[str] = []
    monkeypatch.setattr(sender.BrokerLink, "send", Mock(side_effect=OSError("the broker is away")))
    monkeypatch.setattr(dispatch, "forget", lambda message: forgotten.append(message.topic))
    failing = dispatch.sender.__wrapped__()
    monkeypatch.setattr(dispatch, "sender", lambda: failing)
    dispatch.send_run_topic("default", "order.close", None)
    assert failing.wait_until_sent(10)
    assert forgotten == ["order.close"]


def test_a_forked_process_has_a_sender_of_its_own() -> None:
    """The thread of its parent's one does not run there, and its connection to the broker is the parent's."""
    parents = dispatch.sender()
    assert succeeds_in_fork(lambda: dispatch.sender() is not parents)
