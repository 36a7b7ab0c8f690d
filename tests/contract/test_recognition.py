"""Whether Redis is the one that we filled is known each second, though the database is asked only now and then."""

import math
from collections.abc import Iterator

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import health, metrics, mirror, recognition, schedule, sweeper
from delaytasks.models import MirrorMark
from delaytasks.places import GONE, Settlement
from tests.servers import RedisServer

pytestmark = pytest.mark.parametrize("places", ["mirror"], indirect=True)


def let_ten_seconds_pass() -> None:
    found = mirror.connect()
    recognition._agreed[found] = recognition._agreed[found]._replace(at=-math.inf)
    found.not_alone("tick")


@pytest.fixture
def snapshots(redis_server: RedisServer) -> Iterator[RedisServer]:
    yield redis_server
    redis_server.forget_snapshot()
    redis_server.restart()


def rebuilt() -> int:
    return metrics.snapshot()["counters"]["rebuilt"]


def test_while_all_is_well_a_guard_asks_the_database_for_what_is_overdue_and_nothing_else(stage):
    stage.guard()
    with CaptureQueriesContext(connection) as asked:
        stage.guard()
    assert len(asked) == 1
    assert "due_at" in asked[0]["sql"]


def test_a_redis_that_went_back_to_a_snapshot_with_the_last_tick_in_it_is_noticed_by_the_next_guard(stage, snapshots):
    stage.recorder("t")
    schedule("t", key="before", delay=60)
    stage.guard()
    snapshots.snapshot()
    schedule("t", key="after", delay=60)
    snapshots.restart()
    ticks = mirror.connect().ticks()
    assert ticks == [MirrorMark.objects.get().tick] * 4, "the ticks alone do not tell"
    stage.guard()
    assert mirror.connect().due_count() == 2


def test_a_redis_that_lost_its_ticks_is_noticed_by_the_next_guard(stage):
    stage.guard()
    before = rebuilt()
    client = mirror.connect()._line.client
    client.delete(mirror.connect().keys.tick(2))
    stage.guard()
    assert rebuilt() == before + 1


def test_an_outage_that_broke_no_connection_is_noticed_by_the_guard_after_it(stage):
    stage.guard()
    before, line = rebuilt(), mirror.connect()._line
    line._until = math.inf  # as after a Redis that was out of memory
    stage.guard()
    line._until = 0.0
    stage.guard()
    assert rebuilt() == before + 1


def test_an_outage_just_after_the_mirror_was_filled_again_for_another_is_noticed_as_well(stage):
    line, before = mirror.connect()._line, rebuilt()
    for times in (1, 2):
        line._until = math.inf
        stage.guard()
        line._until = 0.0
        stage.guard()
        assert rebuilt() == before + times


def test_an_outage_that_another_process_saw_is_noticed_when_the_database_is_asked_again(stage):
    stage.guard()
    before = rebuilt()
    recognition.next_tick("default")  # as its guard does
    stage.guard()
    assert rebuilt() == before
    let_ten_seconds_pass()
    stage.guard()
    assert rebuilt() == before + 1


def test_what_is_overdue_is_found_each_second_whatever_is_remembered(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=5)
    stage.guard()
    recognition.next_tick("default")
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=6)
    assert stage.guard() == 1
    stage.go()
    assert keys == ["a"]


def test_the_tick_goes_on_in_both_and_nothing_is_filled_again(stage):
    stage.guard()
    before, filled = MirrorMark.objects.get().tick, rebuilt()
    for _ in range(3):
        let_ten_seconds_pass()
        stage.guard()
    assert MirrorMark.objects.get().tick == before + 3
    assert mirror.connect().ticks() == [before + 3] * 4
    assert rebuilt() == filled


def test_the_next_tick_is_one_statement_also_of_a_database_that_has_none_yet(stage):
    before = MirrorMark.objects.get()
    with CaptureQueriesContext(connection) as asked:
        assert recognition.next_tick("default") == before.tick + 1
    assert len(asked) == 1
    after = MirrorMark.objects.get()
    assert (after.masters, after.fed_until) == (before.masters, before.fed_until)
    MirrorMark.objects.all().delete()
    assert recognition.next_tick("default") == 1
    assert MirrorMark.objects.get().masters == {}


def test_that_a_mover_looks_is_written_down_by_one_statement_also_the_first_time(stage, db_clock):
    MirrorMark.objects.all().delete()
    sweeper._said_looked.clear()
    stage.guard()
    assert health._look("default").moving
    sweeper._said_looked.clear()
    db_clock.advance(seconds=20)
    with CaptureQueriesContext(connection) as asked:
        sweeper._say_looked("default")
    assert len(asked) == 1
    assert health._look("default").looked_ms == 0


def test_a_backlog_is_looked_at_a_part_at_a_time_and_what_is_new_each_time(stage, db_clock, monkeypatch):
    stage.recorder("t")
    monkeypatch.setattr(sweeper, "PAGE", 2)
    monkeypatch.setattr(sweeper, "PROBE_SECONDS", 0)
    for n in range(6):
        schedule("t", key=f"k{n}", delay=0)
    stage.mover.move_due()
    db_clock.advance(seconds=60)
    late = schedule("t", key="late", delay=0)
    stage.guard()
    mirror.connect().settle([Settlement(late.id, "t", late.due_ms, GONE)])
    db_clock.advance(seconds=1)
    assert stage.guard() == 1
