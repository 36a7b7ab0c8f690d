"""A Celery worker whose broker went away finds it again soon."""

from types import SimpleNamespace

import kombu
import kombu.utils.functional
import pytest

from delaytasks.reconnecting import Consumer, choose
from project.celery import app


def test_a_worker_looks_for_its_broker_every_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(kombu.utils.functional, "sleep", slept.append)
    consumer = Consumer.__new__(Consumer)
    consumer.app, consumer.first_connection_attempt, consumer.broker_connection_retry_attempt = app, False, 0
    answers = iter([ConnectionRefusedError()] * 5)
    with kombu.Connection("redis://127.0.0.1:1") as broker:

        def connect() -> str:
            for error in answers:
                raise error
            return "connected"

        monkeypatch.setattr(broker, "_connection_factory", connect)
        consumer.ensure_connected(broker)
    assert sum(slept) == 1 + 3 * 4


def test_a_consumer_that_a_project_chose_itself_is_left_as_it_is() -> None:
    worker = SimpleNamespace(consumer_cls="shop.celery:Consumer")
    choose(worker)
    assert worker.consumer_cls == "shop.celery:Consumer"


@pytest.mark.parametrize(
    ("url", "retries", "channel", "expected"),
    [
        ("redis://127.0.0.1:1/0", 100, None, (None, True)),
        ("sentinel://127.0.0.1:1", 7, None, (7, True)),
        ("amqp://127.0.0.1:1", 100, False, (None, False)),
    ],
)
def test_an_outage_is_waited_out_and_only_redis_may_refuse_an_acknowledgement(
    url: str, retries: int, channel: bool | None, expected: tuple[int | None, bool]
) -> None:
    conf = SimpleNamespace(
        broker_url=url, broker_read_url=None, broker_connection_max_retries=retries, broker_channel_error_retry=channel
    )
    worker = SimpleNamespace(consumer_cls="celery.worker.consumer:Consumer", app=SimpleNamespace(conf=conf))
    choose(worker)
    assert worker.consumer_cls is Consumer
    assert (conf.broker_connection_max_retries, conf.broker_channel_error_retry) == expected
