"""Health of the mover and the mirror, as shown to staff."""

import pytest
from django.core.cache import cache

from delaytasks import clock, schedule, schedule_many
from delaytasks.db import counts
from delaytasks.forwarding import holds
from delaytasks.maintenance import guard
from delaytasks.models import MirrorMark
from delaytasks.monitoring import health

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_mover_without_any_heartbeat_is_silent(due_index):
    status = health.health("default")
    assert (status.heartbeat_age_ms, status.moving) == (None, False)


@pytest.mark.parametrize(("ago_ms", "moving"), [(0, True), (12_000, True), (29_999, True), (30_000, False)])
def test_a_mover_is_alive_until_its_heartbeat_is_30_seconds_old(db_clock, ago_ms, moving):
    MirrorMark.objects.create(pk=1, heartbeat_at=clock.from_ms(db_clock.now_ms - ago_ms))
    status = health.health("default")
    assert (status.heartbeat_age_ms, status.moving) == (ago_ms, moving)


def test_the_guard_records_a_heartbeat_with_and_without_the_mirror(stage):
    guard._heartbeats.clear()  # otherwise at most one heartbeat in ten seconds is recorded
    stage.guard()
    assert health.health("default").heartbeat_age_ms is not None


def test_the_mirror_is_up_or_off(due_index):
    assert health.health("default").mirror == ("up" if hasattr(due_index, "feed") else "off")


def test_a_mirror_that_does_not_answer_is_down(with_redis, redis_server):
    redis_server.stop()
    assert health.health("default").mirror == "down"


def test_health_shows_the_last_audit(db_clock):
    at_ms = db_clock.now_ms - 90_000
    audit = {"at_ms": at_ms, "checked": 500, "missing": 2, "ghosts": 1, "late": 0, "doubled": 0}
    MirrorMark.objects.create(pk=1, audit=audit)
    status = health.health("default")
    assert (status.audit_age_ms, status.checked, status.differences) == (90_000, 500, 3)


def test_without_an_audit_there_are_no_differences(db_clock):
    MirrorMark.objects.create(pk=1)
    status = health.health("default")
    assert (status.audit_age_ms, status.checked, status.differences) == (None, 0, 0)


def test_a_rebuild_is_counted(with_redis):
    guard.guard("default")
    assert health.health("default").rebuilt == 1


def test_the_oldest_ready_job_is_found_however_many_topics_come_before_its_own(stage, db_clock):
    names = [f"t{number:03}" for number in range(counts.TOPICS + 1)]
    for name in names:
        stage.recorder(name)
    schedule(names[-1], "a", delay=0)
    db_clock.advance(seconds=90)
    schedule_many({"topic": name, "key": "a", "delay": 0} for name in names[:-1])
    status = health.health("default")
    assert (status.oldest_ready_topic, status.oldest_ready_ms) == (names[-1], 90_000)


def test_the_jobs_of_a_held_topic_do_not_count_as_the_oldest(stage, db_clock):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    db_clock.advance(seconds=90)
    holds.hold("default", "t", "away", None)
    assert health.health("default").oldest_ready_ms is None
    holds.release("default", "t")
    cache.clear()
    assert health.health("default").oldest_ready_ms == 90_000


def test_the_jobs_of_a_held_topic_count_if_no_probe_is_sent(stage, db_clock):
    """Its workers are gone, or the code handles the topic now instead of forwarding it."""
    stage.recorder("t")
    schedule("t", "a", delay=0)
    holds.hold("default", "t", "away", 300)
    ages = []
    for seconds in (300, 59, 61):  # the probe is due, a minute late, two minutes late
        db_clock.advance(seconds=seconds)
        cache.clear()
        ages.append(health.health("default").oldest_ready_ms)
    assert ages == [None, None, 420_000]
