"""A Celery worker survives the loss of its broker and reconnects within seconds."""

from types import SimpleNamespace

import kombu
import kombu.utils.functional
import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool
from kombu.asynchronous import Hub

from delaytasks.celery.bootsteps import processes
from delaytasks.celery.consumer import Consumer, set_consumer, watch_again
from delaytasks.celery.prefetch import disable_prefetch
from project.celery import app


def test_a_worker_tries_to_reconnect_every_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(kombu.utils.functional, "sleep", slept.append)
    consumer = Consumer.__new__(Consumer)
    consumer.app, consumer.first_connection_attempt, consumer.broker_connection_retry_attempt = app, False, 0
    errors = iter([ConnectionRefusedError()] * 5)
    with kombu.Connection("redis://127.0.0.1:1") as broker:

        def connect() -> str:
            for error in errors:
                raise error
            return "connected"

        monkeypatch.setattr(broker, "_connection_factory", connect)
        consumer.ensure_connected(broker)
    assert sum(slept) == 1 + 3 * 4


def test_a_worker_that_reconnects_watches_a_process_again_that_has_ended_but_has_no_exit_status_yet() -> None:
    pool = TaskPool(1, app=app, threads=False, initargs=(app, "test"))
    pool.start()
    try:
        (process,) = processes(pool)
        hub = Hub()
        pool.register_with_event_loop(hub)
        pool._pool._untrack_child_process(process, hub)  # when its end is seen
        watch_again(pool)
        reconnected = Hub()
        pool.register_with_event_loop(reconnected)
        assert process._sentinel_poll in reconnected.readers
    finally:
        pool.terminate()


def test_a_projects_own_consumer_is_kept() -> None:
    worker = SimpleNamespace(consumer_cls="shop.celery:Consumer")
    set_consumer(worker)
    assert worker.consumer_cls == "shop.celery:Consumer"


@pytest.mark.parametrize(
    ("url", "retries", "channel", "expected"),
    [
        ("redis://127.0.0.1:1/0", 100, None, (None, True)),
        ("sentinel://127.0.0.1:1", 7, None, (7, True)),
        ("amqp://127.0.0.1:1", 100, False, (None, False)),
    ],
)
def test_reconnecting_has_no_limit_by_default_and_channel_errors_are_retried_with_redis_only(
    url: str, retries: int, channel: bool | None, expected: tuple[int | None, bool]
) -> None:
    conf = SimpleNamespace(
        broker_url=url, broker_read_url=None, broker_connection_max_retries=retries, broker_channel_error_retry=channel
    )
    worker = SimpleNamespace(consumer_cls="celery.worker.consumer:Consumer", app=SimpleNamespace(conf=conf))
    set_consumer(worker)
    assert worker.consumer_cls is Consumer
    assert (conf.broker_connection_max_retries, conf.broker_channel_error_retry) == expected


def celery_app(url: str | list[str], **settings: object) -> Celery:
    """A Celery app with these settings in an object, as in Django's settings."""
    app = Celery(set_as_current=False)
    project = SimpleNamespace(CELERY_BROKER_URL=url, **{f"CELERY_{name}": value for name, value in settings.items()})
    app.config_from_object(project, namespace="CELERY")
    return app


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (celery_app("redis://127.0.0.1:1/0"), True),
        (celery_app("sentinel://127.0.0.1:1"), True),
        (celery_app(["redis://127.0.0.1:1/0", "redis://127.0.0.1:2/0"]), True),
        (celery_app("amqp://127.0.0.1:1"), False),
        (celery_app("redis://127.0.0.1:1/0", WORKER_DISABLE_PREFETCH=False), False),
        (celery_app("redis://127.0.0.1:1/0", WORKER_CONCURRENCY=2), True),
    ],
    ids=["redis", "sentinel", "two-addresses", "rabbitmq", "the-project-says-no", "another-setting"],
)
def test_prefetching_is_disabled_where_the_broker_allows_it_and_the_project_has_not_decided(
    app: Celery, expected: bool
) -> None:
    disable_prefetch(app)
    assert app.conf.worker_disable_prefetch is expected


def test_an_option_that_the_project_sets_on_the_app_is_kept() -> None:
    for is_configured in (False, True):
        app = celery_app("redis://127.0.0.1:1/0")
        if is_configured:
            assert app.conf.worker_disable_prefetch is False, "Celery's default"
        app.conf.worker_disable_prefetch = False
        disable_prefetch(app)
        assert app.conf.worker_disable_prefetch is False
