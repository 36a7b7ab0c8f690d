"""Handed out a moment before it is due, and claimed at that time: by a clock that goes on, with a real Redis."""

from datetime import timedelta
from typing import Any

from delaytasks import claiming, dialect, engine, schedule
from delaytasks.clock import to_ms
from delaytasks.models import Job

TOPIC = "ahead"


def test_what_is_handed_out_early_is_waited_for_and_claimed_in_time_at_the_first_go(mirror: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "AHEAD_MS": 100, "TOPICS": {TOPIC: {}}}
    job = schedule(TOPIC, key="a", due_at=dialect.database_now("default") + timedelta(milliseconds=150))
    places = engine.places("default")
    assert places.promote_due(job.due_ms - 100, [TOPIC]).topics == {TOPIC}, "a mover finds it by then"

    (attempt,) = claiming.take(places, TOPIC, 10, using="default", worker="w")

    reserved_at = Job.objects.get().reserved_at
    assert reserved_at is not None
    assert to_ms(reserved_at) >= attempt.due_ms == job.due_ms, "begun not before its time"
    assert "claim_misses" not in mirror.counters(), "no claim was refused for it"


def test_what_a_wrong_clock_hands_out_is_refused_by_the_claim_and_goes_back(mirror: Any, settings: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "AHEAD_MS": 3, "TOPICS": {TOPIC: {}}}
    job = schedule(TOPIC, key="a", delay=600)
    places = engine.places("default")
    assert places.promote_due(job.due_ms, [TOPIC]).topics == {TOPIC}

    assert claiming.take(places, TOPIC, 10, using="default", worker="w") == []

    assert Job.objects.get().attempt == 0
    assert mirror.counters()["claim_misses"] == 1
    ((due_at_ms, ready_at_ms),) = mirror.scores([(job.pk, TOPIC)])
    assert ready_at_ms is None
    assert abs(due_at_ms - job.due_ms) < 5_000, "back where it belongs, by this host's idea of the time"
