"""The entries in beat's schedule, and when beat does not send move_due."""

import pickle
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import celery
import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule
from django.utils import timezone

from delaytasks import conf, databases, tasks
from delaytasks import handlers as topics
from delaytasks.celery import beat
from delaytasks.celery.beat import FallbackSchedule
from delaytasks.celery.bootsteps import install
from project.celery import app as project
from tests.support.servers import free_port

CLOCK_SKEW_SECONDS = 30  # by which a worker's clock may be ahead of beat's
LONG_AGO = timezone.now() - timedelta(seconds=60)


def installed_app() -> Celery:
    app = Celery("of a test", set_as_current=False)
    install(app)
    app.finalize()
    return app


def test_messages_do_not_expire_under_clock_skew_or_in_a_busy_pool():
    entries = installed_app().conf.beat_schedule
    assert set(entries) == {"delaytasks.move_due", "delaytasks.sweep"}
    for entry in entries.values():
        seconds = getattr(entry["schedule"], "seconds", entry["schedule"])
        assert entry["options"]["expires"] >= max(2 * CLOCK_SKEW_SECONDS, 2 * seconds)


def test_an_older_beat_that_would_starve_other_entries_has_a_plain_interval(monkeypatch):
    monkeypatch.setattr(celery, "VERSION", (5, 6, 3))
    assert installed_app().conf.beat_schedule["delaytasks.move_due"]["schedule"] == conf.get().guard_tick_ms / 1000


@pytest.mark.parametrize("task", [tasks.move_due, tasks.sweep])
def test_messages_expire_also_if_the_scheduler_ignores_the_options_of_the_entries(task: Any):
    """As that of django-celery-beat does."""
    with project.connection_for_write() as broker:
        task.apply_async(connection=broker, queue="of.a.test")
        message = broker.SimpleQueue("of.a.test").get(timeout=10)
    seconds = (datetime.fromisoformat(message.headers["expires"]) - timezone.now()).total_seconds()
    assert 2 * CLOCK_SKEW_SECONDS - 10 < seconds <= 120


def test_scheduler_of_whole_seconds_does_not_send_without_a_pause(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "GUARD_TICK_MS": 500}
    stored = int(installed_app().conf.beat_schedule["delaytasks.move_due"]["schedule"].run_every.total_seconds())
    assert stored == 1


@pytest.fixture
def heartbeat(mirror: Any) -> Callable[..., None]:
    """Records a heartbeat of a mover thread."""
    return lambda ttl_ms=60_000, handlers=None: mirror.record_mover_heartbeat(
        handlers or beat.handlers_digest(), ttl_ms
    )


def test_while_a_mover_thread_runs_beat_sends_nothing_and_checks_again_a_tick_later(heartbeat):
    assert FallbackSchedule(1).is_due(LONG_AGO) == (True, 1)
    heartbeat()
    assert FallbackSchedule(1).is_due(LONG_AGO) == (False, 1)


def test_beat_checks_again_as_soon_as_the_heartbeat_expires(heartbeat):
    heartbeat(ttl_ms=30_000)
    due, seconds = FallbackSchedule(60).is_due(LONG_AGO)
    assert not due
    assert 0 < seconds <= 30


def test_the_heartbeat_of_a_thread_with_other_handlers_does_not_count(heartbeat):
    heartbeat(handlers="others")
    assert FallbackSchedule(1).is_due(LONG_AGO).is_due


def test_each_set_of_handlers_has_its_own_digest():
    before = beat.handlers_digest()
    topics.handler("of.a.test")(lambda job: None)
    try:
        assert beat.handlers_digest() != before
    finally:
        topics.unregister("of.a.test")
    assert beat.handlers_digest() == before


def test_beat_sends_if_one_database_has_no_mover_thread(heartbeat, monkeypatch):
    heartbeat()
    monkeypatch.setattr(databases, "aliases", lambda: ["default", "archive"])
    assert FallbackSchedule(1).is_due(LONG_AGO).is_due


@pytest.mark.parametrize("url", [None, f"redis://127.0.0.1:{free_port()}"], ids=["no Redis", "Redis is down"])
def test_without_redis_beat_sends_each_tick(settings, url):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": url}
    assert FallbackSchedule(60).is_due(LONG_AGO).is_due
    assert not FallbackSchedule(60).is_due(timezone.now()).is_due


def test_while_move_due_is_not_due_beat_sends_its_other_entries(heartbeat, monkeypatch):
    app = Celery("of a test", set_as_current=False)
    app.conf.beat_schedule = {
        "engine": {"task": "engine", "schedule": FallbackSchedule(1)},
        "project": {"task": "project", "schedule": 0.001},
    }
    heartbeat()
    scheduler, sent = Scheduler(app), []
    monkeypatch.setattr(scheduler, "apply_entry", lambda entry, producer=None: sent.append(entry.task))
    monkeypatch.setattr(Scheduler, "producer", None)
    for _ in range(50):
        scheduler.tick()
    assert set(sent) == {"project"}


def test_a_stored_schedule_is_a_plain_interval():
    stored = pickle.loads(pickle.dumps(FallbackSchedule(1)))
    assert isinstance(stored, FallbackSchedule)
    assert stored == schedule(1)
