"""The mover thread between its passes: the guard once a tick, the heartbeat for beat, and messages that wake it."""

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections
from django.db.backends.signals import connection_created

from delaytasks import mirror
from delaytasks.celery import beat, bootsteps, mover_thread, shutdown
from delaytasks.celery.bootsteps import MoverStep
from delaytasks.celery.mover_thread import MoverThread
from delaytasks.maintenance import guard
from delaytasks.models import MirrorMark
from tests.support.forks import record_blocks
from tests.support.servers import wait_until
from tests.support.silent_server import silent_server

TICK_MS = 1000


class Harness:
    """A mover thread that is not started, its clock, and what it called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.guards: list[float] = []
        self.heartbeats: list[Any] = []
        self.guard_seconds = 0.0
        self.guard_fails = False
        self.thread = MoverThread("default")
        self.thread._mover = SimpleNamespace(move_due=lambda: self.rest_ms)  # type: ignore[assignment]
        self.rest_ms = TICK_MS
        index = SimpleNamespace(record_mover_heartbeat=lambda *args: self.heartbeats.append(args))
        monkeypatch.setattr(mover_thread, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(guard, "guard", self.guard)
        monkeypatch.setattr(mirror, "connect", lambda using: index)

    def guard(self, using: str) -> None:
        self.guards.append(self.now)
        self.now += self.guard_seconds
        if self.guard_fails:
            raise RuntimeError("the guard failed")


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> Harness:
    return Harness(monkeypatch)


def test_the_guard_runs_once_a_tick_however_many_passes_there_are(harness: Harness) -> None:
    harness.rest_ms = 10
    for _ in range(201):
        harness.thread._pass()
        harness.now += 0.010
    assert len(harness.guards) == 3


def test_a_rest_ends_when_the_next_guard_is_due(harness: Harness) -> None:
    assert harness.thread._pass() == TICK_MS
    harness.now += 0.625
    assert harness.thread._pass() == 375
    harness.now += 0.375
    harness.thread._pass()
    assert harness.guards == [100.0, 101.0]


def test_the_duration_of_a_guard_is_part_of_its_tick(harness: Harness) -> None:
    harness.guard_seconds = 0.25
    assert harness.thread._pass() == 750
    harness.now += 0.75
    harness.guard_seconds = 1.5
    assert harness.thread._pass() == 0


def test_each_guard_records_a_heartbeat_that_is_valid_for_more_than_a_tick(harness: Harness) -> None:
    harness.thread._pass()
    assert harness.heartbeats == [(beat.handlers_digest(), 1500)]


def test_after_a_failed_guard_the_thread_records_no_heartbeat_and_continues(harness: Harness, caplog) -> None:
    harness.guard_fails = True
    assert harness.thread._pass() == TICK_MS
    assert "a pass failed" in caplog.text
    assert harness.heartbeats == []


def test_a_message_that_is_not_utf8_does_not_end_the_thread(
    stage, with_redis, redis_server, monkeypatch, caplog
) -> None:
    channel = mirror.connect().keys.channel  # type: ignore[union-attr]
    passes = threading.Semaphore(0)

    def count(thread: MoverThread) -> float:
        passes.release()
        return 60_000.0

    monkeypatch.setattr(MoverThread, "_pass", count)
    thread = MoverThread("default")
    thread.start()
    try:
        assert passes.acquire(timeout=10)
        with redis_server.client() as client:
            wait_until(lambda: client.pubsub_numsub(channel)[0][1], seconds=10, what="the subscription")
            while not passes.acquire(blocking=False):  # the first wait() only subscribes
                client.publish(channel, b"0")
            client.publish(channel, b"\xff\xfe")
        assert passes.acquire(timeout=10), "the message wakes the thread like any other"
        assert thread.is_alive()
    finally:
        thread.stop()
        thread.join(10)
    assert not thread.is_alive()
    assert "waiting for messages failed" not in caplog.text


def test_an_unforeseen_error_of_the_listener_does_not_end_the_thread(harness: Harness, monkeypatch, caplog) -> None:
    closed: list[bool] = []

    def fail(ms: int) -> None:
        raise ValueError("unreadable")

    listener = SimpleNamespace(wait=fail, close=lambda: closed.append(True))
    index = SimpleNamespace(down=False, listen=lambda: listener)
    monkeypatch.setattr(mirror, "connect", lambda using: index)
    harness.thread._rest(1)
    assert closed == [True]
    assert "waiting for messages failed" in caplog.text


@pytest.fixture
def _time_is_measured_as_before() -> Iterator[None]:
    """The step lets the process measure the database's time after each new connection."""
    yield
    connection_created.disconnect(dispatch_uid="delaytasks.measure_time_anew")


@pytest.fixture
def step() -> Iterator[MoverStep]:
    yield MoverStep(None)
    shutdown.reset()  # this process goes on


@pytest.mark.usefixtures("_time_is_measured_as_before")
def test_a_database_that_does_not_answer_delays_no_other(step: MoverStep, stage, settings, monkeypatch) -> None:
    MirrorMark.objects.all().delete()
    guard._heartbeats.clear()
    with silent_server() as port:
        silent = {**connections.settings["default"], "ENGINE": "django.db.backends.postgresql", "OPTIONS": {},
                  "HOST": "127.0.0.1", "PORT": str(port)}  # fmt: skip
        monkeypatch.setitem(connections.settings, "silent", silent)
        settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["silent", "default"]}
        step.start(None)
        assert connection_created.disconnect(dispatch_uid="delaytasks.measure_time_anew"), "after a failover"
        guarded = MirrorMark.objects.filter(heartbeat_at__isnull=False)
        wait_until(guarded.exists, seconds=10, what="the guard of the other database")
    step.stop(None)


def test_a_thread_that_ends_closes_its_connections_while_the_pool_does_not_fork(harness: Harness, monkeypatch) -> None:
    delays_forks, closed = record_blocks(monkeypatch, mover_thread), []
    here = threading.current_thread()
    monkeypatch.setattr(
        connections, "close_all", lambda: closed.append(delays_forks()) if threading.current_thread() is here else None
    )
    harness.thread._stop_requested.set()
    harness.thread.run()
    assert closed == [True]


def test_a_worker_that_stops_waits_once_for_all_threads(step: MoverStep, monkeypatch) -> None:
    released = threading.Event()

    def hang(thread: MoverThread) -> float:
        released.wait(60)
        return 0.0

    monkeypatch.setattr(MoverThread, "_pass", hang)
    monkeypatch.setattr(bootsteps, "STOP_SECONDS", 0.5)
    step.threads = threads = [MoverThread("default") for _ in range(20)]
    for thread in threads:
        thread.start()
    began = time.monotonic()
    try:
        step.stop(None)
        assert time.monotonic() - began < 5
    finally:
        released.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
