"""A worker in a process that lives on, as Celery's fixture `celery_worker` starts it in a project's tests."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import signals
from celery.contrib.testing.worker import start_worker
from django.db import connections
from django.db.backends.signals import connection_created

from delaytasks import schedule
from delaytasks.celery import bootsteps, shutdown
from delaytasks.celery import connections as connecting
from delaytasks.maintenance import liveness
from delaytasks.models import Job, Worker
from delaytasks.states import State
from delaytasks.worker import process_name, ttr
from project.celery import app
from tests.support.servers import wait_until
from tests.support.stage import outcomes

QUEUE = "of-an-embedded-worker"  # no other test's messages


@pytest.fixture
def _own_worker() -> Iterator[None]:
    """Let a worker of the test configure no logging, and reset what it changes in this process."""

    def leave(**_: Any) -> None:
        """Celery configures logging only if nobody listens."""

    signals.setup_logging.connect(leave)
    yield
    signals.setup_logging.disconnect(leave)
    shutdown.reset()


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """The database connections opened in the test, of all threads."""
    wrappers: list[Any] = []

    def collect(**created: Any) -> None:
        wrappers.append(created["connection"])

    connection_created.connect(collect)
    yield wrappers
    connection_created.disconnect(collect)


pytestmark = [
    pytest.mark.usefixtures("_own_worker"),
    pytest.mark.only_on("postgresql"),  # whose sessions keep the test database from being dropped
    pytest.mark.parametrize("due_index", ["mirror"], indirect=True),
]


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_a_worker_that_has_stopped_leaves_nothing_in_its_process(stage, opened, pool) -> None:
    stage.handler("t", queue=QUEUE)(lambda job: job.touch())
    before = set(threading.enumerate())
    with start_worker(app, pool=pool, queues=[QUEUE], perform_ping_check=False):
        assert process_name.worker_name() is not None
        schedule("t", "a", delay=0)
        wait_until(Job.objects.filter(state=State.FINISHED).exists, seconds=20, what="the job to finish")
        wait_until(Worker.objects.exists, seconds=20, what="the first beat")
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert not {name for name in left if name.startswith("delaytasks-") and name != "delaytasks-sender"}
    assert [each for each in opened if each.connection is not None and each is not connections["default"]] == []
    assert not Worker.objects.exists()
    assert process_name.worker_name() is None
    assert liveness.touches == {}
    assert not ttr._enforced
    assert not connection_created.disconnect(dispatch_uid=connecting._MEASURE)


def test_a_worker_whose_thread_still_runs_a_job_lives_until_the_job_ends(stage, monkeypatch) -> None:
    """After a cold shutdown, Python waits for the threads of the pool."""
    monkeypatch.setattr(bootsteps, "STOP_SECONDS", 0.1)
    begun, resume = threading.Event(), threading.Event()

    def work(job: Any) -> None:
        begun.set()
        resume.wait(60)

    stage.handler("t", queue=QUEUE)(work)
    try:
        with start_worker(app, pool="threads", queues=[QUEUE], perform_ping_check=False):
            schedule("t", "a", delay=0)
            assert begun.wait(20)
        assert Worker.objects.exists()
    finally:
        resume.set()
    wait_until(lambda: not Worker.objects.exists(), seconds=20, what="the end of the heartbeat")
    assert outcomes("a") == ["finished"]
