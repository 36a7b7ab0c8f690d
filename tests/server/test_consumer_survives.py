"""A Consumer of the Python client goes on when the web process or the database goes away in the middle of its poll."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from delaytasks import schedule
from delaytasks.client import Client, Consumer, Job
from tests.support.installation import World
from tests.support.servers import PostgresServer, wait_until

from .conftest import EVERYTHING

pytestmark = pytest.mark.on_both
OUTAGES = 3


class Running:
    """A Consumer in a thread, with the jobs that it has handled and the error that has ended it."""

    def __init__(self, url: str, secret: str, topic: str) -> None:
        self.handled: list[str] = []
        self.error: BaseException | None = None
        self.client = Client(url, secret)
        self.consumer = Consumer(self.client, topic, self._handle, wait=20)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _handle(self, job: Job) -> None:
        self.handled.append(job.id)

    def _run(self) -> None:
        try:
            self.consumer.run()
        except BaseException as error:
            self.error = error

    def handles(self, topic: str, key: str) -> None:
        """Schedule a job, and wait until it was handled."""
        schedule(topic, key=key, delay=0)
        self.until(lambda: key in self.handled, f"{key} to be handled")

    def until(self, done: Callable[[], object], what: str) -> None:
        def is_done() -> object:
            assert self.thread.is_alive(), f"The consumer has ended: {self.error!r}"
            return done()

        wait_until(is_done, seconds=60, what=what)

    def await_poll(self) -> None:
        self.until(lambda: self.consumer._polls._waiting, "a poll")


@pytest.fixture
def running(fresh_world: World, make_token: Callable[..., str], topic: str) -> Iterator[Running]:
    secret = make_token({topic: EVERYTHING}, name="survivor")
    running = Running(f"{fresh_world.url}/api/queue/", secret, topic)
    yield running
    running.consumer.stop()
    running.thread.join(30)
    running.client.close()


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_consumer_goes_on_when_its_web_process_restarts(
    how: str, fresh_world: World, topic: str, running: Running
) -> None:
    running.handles(topic, "before")
    running.await_poll()
    getattr(fresh_world.processes[-1], how)()
    fresh_world.start_web(fresh_world.port)
    running.handles(topic, "after")


@contextmanager
def refusing_connections(server: PostgresServer, database: str) -> Iterator[None]:
    """End all connections to the database, and refuse new ones inside the block."""
    with server.connect(autocommit=True) as connection:
        connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS false')
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
        yield
        connection.execute(f'ALTER DATABASE "{database}" ALLOW_CONNECTIONS true')


@pytest.mark.only_on("postgresql")
def test_consumer_goes_on_when_the_database_goes_away(
    fresh_world: World, topic: str, running: Running, database_server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Its poll is answered with 503, and so are the next ones, whenever the database is lost or found in between."""
    database = str(connection.settings_dict["NAME"])
    for outage in range(OUTAGES):
        running.handles(topic, f"before {outage}")
        running.await_poll()
        connection.close()
        caplog.clear()
        with refusing_connections(database_server, database):
            fresh_world.redis.client().publish("delaytasks:ready:default", f"1:{topic}")  # the poll tries again
            running.until(lambda: caplog.text.count("no jobs reserved") > 1, "polls to be refused")
    running.handles(topic, "after")
