"""What beat is told to send, and when it has nothing to send."""

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import celery
import pytest
from celery import Celery
from celery.beat import Scheduler
from celery.schedules import schedule
from django.utils import timezone

from delaytasks import beat, conf, engine, topics
from delaytasks.beat import WhenNoneMoves
from delaytasks.bootsteps import install
from tests.servers import free_port

OTHER_CLOCK_SECONDS = 30  # a host's clock may be so far ahead of beat's: its guards are to work all the same
LONG_AGO = timezone.now() - timedelta(seconds=60)


def installed() -> Celery:
    app = Celery("of a test", set_as_current=False)
    install(app)
    app.finalize()
    return app


def test_a_guards_message_outlives_a_wrong_clock_and_a_busy_pool():
    entries = installed().conf.beat_schedule
    assert set(entries) == {"delaytasks.move_due", "delaytasks.sweep"}
    for entry in entries.values():
        seconds = getattr(entry["schedule"], "seconds", entry["schedule"])
        assert entry["options"]["expires"] >= max(2 * OTHER_CLOCK_SECONDS, 2 * seconds)


def test_a_beat_that_would_look_at_nothing_else_meanwhile_has_a_plain_interval(monkeypatch):
    monkeypatch.setattr(celery, "VERSION", (5, 6, 3))
    assert installed().conf.beat_schedule["delaytasks.move_due"]["schedule"] == conf.get().guard_tick_ms / 1000


@pytest.fixture
def mover_says(mirror: Any) -> Callable[..., None]:
    return lambda for_ms=60_000, handlers=None: mirror.say_moving(handlers or beat.handlers(), for_ms)


def test_while_a_movers_thread_looks_beat_sends_nothing_and_looks_again_a_tick_later(mover_says):
    assert WhenNoneMoves(1).is_due(LONG_AGO) == (True, 1)
    mover_says()
    assert WhenNoneMoves(1).is_due(LONG_AGO) == (False, 1)


def test_beat_looks_again_as_soon_as_what_the_thread_said_is_over(mover_says):
    mover_says(for_ms=500)
    due, seconds = WhenNoneMoves(1).is_due(LONG_AGO)
    assert not due
    assert 0 < seconds <= 0.5


def test_a_thread_with_other_handlers_does_not_silence_beat(mover_says):
    mover_says(handlers="others")
    assert WhenNoneMoves(1).is_due(LONG_AGO).is_due


def test_each_set_of_handlers_has_a_name_of_its_own():
    before = beat.handlers()
    topics.handler("of.a.test")(lambda job: None)
    try:
        assert beat.handlers() != before
    finally:
        topics.forget("of.a.test")
    assert beat.handlers() == before


def test_a_database_that_no_thread_looks_after_is_enough_to_send(mover_says, monkeypatch):
    mover_says()
    monkeypatch.setattr(engine, "aliases", lambda: ["default", "archive"])
    assert WhenNoneMoves(1).is_due(LONG_AGO).is_due


@pytest.mark.parametrize("url", [None, f"redis://127.0.0.1:{free_port()}"], ids=["no Redis", "Redis is down"])
def test_without_redis_beat_sends_each_tick(settings, url):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": url}
    assert WhenNoneMoves(1).is_due(LONG_AGO).is_due
    assert not WhenNoneMoves(1).is_due(timezone.now()).is_due


def test_while_beat_is_silent_its_other_entries_have_their_turn(mover_says, monkeypatch):
    app = Celery("of a test", set_as_current=False)
    app.conf.beat_schedule = {
        "ours": {"task": "ours", "schedule": WhenNoneMoves(1)},
        "theirs": {"task": "theirs", "schedule": 0.001},
    }
    mover_says()
    scheduler, sent = Scheduler(app), []
    monkeypatch.setattr(scheduler, "apply_entry", lambda entry, producer=None: sent.append(entry.task))
    monkeypatch.setattr(Scheduler, "producer", None)
    for _ in range(50):
        scheduler.tick()
    assert set(sent) == {"theirs"}


def test_it_is_an_interval_to_whoever_keeps_schedules():
    kept = pickle.loads(pickle.dumps(WhenNoneMoves(1)))
    assert isinstance(kept, WhenNoneMoves)
    assert kept == schedule(1)
