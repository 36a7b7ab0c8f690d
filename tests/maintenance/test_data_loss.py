"""The guard detects a Redis that lost data each second, but queries the database for it only every ten seconds."""

import math
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import mirror, schedule
from delaytasks.maintenance import data_loss, feed, guard
from delaytasks.mirror.base import GONE, Settlement
from delaytasks.models import MirrorMark
from delaytasks.monitoring import health, metrics
from delaytasks.timeouts import declarations
from tests.support.servers import RedisServer

pytestmark = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)


def let_ten_seconds_pass() -> None:
    index = mirror.connect()
    data_loss._last_checks[index] = data_loss._last_checks[index]._replace(at=-math.inf)
    index._redis.client.delete(index.keys.lock("tick"))


@pytest.fixture
def snapshots(redis_server: RedisServer) -> Iterator[RedisServer]:
    yield redis_server
    redis_server.forget_snapshot()
    redis_server.restart()


def rebuild_count() -> int:
    return metrics.snapshot()["counters"]["rebuilt"]


def test_without_data_loss_a_guard_queries_the_overdue_jobs_and_nothing_else(stage, monkeypatch):
    monkeypatch.setattr(declarations, "_declarations", {})
    stage.guard()
    with CaptureQueriesContext(connection) as queries:
        stage.guard()
    assert len(queries) == 1
    assert "due_at" in queries[0]["sql"]


def test_the_next_guard_notices_a_redis_rewound_to_a_snapshot_that_has_the_last_tick(stage, snapshots):
    stage.recorder("t")
    schedule("t", key="before", delay=60)
    stage.guard()
    snapshots.snapshot()
    schedule("t", key="after", delay=60)
    snapshots.restart()
    ticks = mirror.connect().ticks()
    assert ticks == [MirrorMark.objects.get().tick] * 4, "the ticks alone do not show it"
    stage.guard()
    assert mirror.connect().due_count() == 2


def test_the_next_guard_notices_a_redis_without_ticks(stage):
    stage.guard()
    before = rebuild_count()
    client = mirror.connect()._redis.client
    client.delete(mirror.connect().keys.tick(2))
    stage.guard()
    assert rebuild_count() == before + 1


def test_the_next_guard_notices_an_outage_that_broke_no_connection(stage):
    stage.guard()
    before, line = rebuild_count(), mirror.connect()._redis
    line.breaker._open_until = math.inf  # as after a Redis that was out of memory
    stage.guard()
    line.breaker.reset()
    stage.guard()
    assert rebuild_count() == before + 1


def test_an_outage_right_after_a_rebuild_is_noticed_too(stage):
    line, before = mirror.connect()._redis, rebuild_count()
    for times in (1, 2):
        line.breaker._open_until = math.inf
        stage.guard()
        line.breaker.reset()
        stage.guard()
        assert rebuild_count() == before + times


def test_an_outage_that_another_process_saw_is_noticed_at_the_next_query_of_the_database(stage):
    stage.guard()
    before = rebuild_count()
    data_loss.increment_tick("default")  # as the other process's guard does
    stage.guard()
    assert rebuild_count() == before
    let_ten_seconds_pass()
    stage.guard()
    assert rebuild_count() == before + 1


def test_missing_overdue_jobs_are_found_each_second_whatever_is_cached(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=5)
    stage.guard()
    data_loss.increment_tick("default")
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=6)
    assert stage.guard() == 1
    stage.go()
    assert keys == ["a"]


def test_the_tick_is_incremented_in_redis_and_database_without_a_rebuild(stage):
    stage.guard()
    before, rebuilds = MirrorMark.objects.get().tick, rebuild_count()
    for _ in range(3):
        let_ten_seconds_pass()
        stage.guard()
    assert MirrorMark.objects.get().tick == before + 3
    assert mirror.connect().ticks() == [before + 3] * 4
    assert rebuild_count() == rebuilds


def test_incrementing_the_tick_is_one_statement_even_without_a_row(stage):
    before = MirrorMark.objects.get()
    with CaptureQueriesContext(connection) as queries:
        assert data_loss.increment_tick("default") == before.tick + 1
    assert len(queries) == 1
    after = MirrorMark.objects.get()
    assert (after.masters, after.fed_until) == (before.masters, before.fed_until)
    MirrorMark.objects.all().delete()
    assert data_loss.increment_tick("default") == 1
    assert MirrorMark.objects.get().masters == {}


def test_the_mover_heartbeat_is_recorded_by_one_statement(stage, db_clock):
    MirrorMark.objects.all().delete()
    guard._heartbeats.clear()
    stage.guard()
    assert health._compute("default").moving
    guard._heartbeats.clear()
    db_clock.advance(seconds=20)
    with CaptureQueriesContext(connection) as queries:
        guard._record_heartbeat("default")
    assert len(queries) == 1
    assert health._compute("default").heartbeat_age_ms == 0


def test_each_probe_scans_a_part_of_the_backlog_and_all_newly_overdue_jobs(stage, db_clock, monkeypatch):
    stage.recorder("t")
    monkeypatch.setattr(feed, "PAGE", 2)
    monkeypatch.setattr(guard, "PROBE_SECONDS", 0)
    for n in range(6):
        schedule("t", key=f"k{n}", delay=0)
    stage.mover.move_due()
    db_clock.advance(seconds=60)
    late = schedule("t", key="late", delay=0)
    stage.guard()
    mirror.connect().settle([Settlement(late.id, "t", late.due_ms, GONE)])
    db_clock.advance(seconds=1)
    assert stage.guard() == 1
