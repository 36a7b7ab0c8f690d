"""Redis only says when to look: it may be flushed, restarted, rewound or lied to, and nothing is lost or early."""

import logging

import pytest

from delaytasks import audit, cancel, metrics, mirror, recognition, reschedule, schedule, schedule_many, sweeper
from delaytasks.clock import from_ms
from delaytasks.models import Job, MirrorMark
from delaytasks.places import GONE, Entry, Settlement
from tests.torture.proxy import Proxy

from .conftest import state_of

pytestmark = pytest.mark.parametrize("places", ["mirror"], indirect=True)


def client():
    return mirror.connect()._line.client


def flush() -> None:
    found = mirror.connect()
    for key in client().scan_iter(f"*{found.settings.prefix}*"):
        client().delete(key)


def snapshot(redis_server) -> dict[bytes, bytes]:
    """All of this test's keys, as Redis would write them to disk."""
    with redis_server.client(decode_responses=False) as raw:
        return {key: raw.dump(key) for key in raw.keys(f"*{mirror.connect().settings.prefix}*")}


def restore(saved: dict[bytes, bytes]) -> None:
    flush()
    for key, value in saved.items():
        client().restore(key, 0, value)


def test_a_flushed_mirror_is_noticed_by_the_next_guard_and_filled_again(stage, db_clock):
    keys = stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": n % 50} for n in range(100))
    flush()
    stage.guard()
    assert mirror.connect().due_count() == 100
    db_clock.advance(seconds=60)
    stage.go(rounds=100)
    assert sorted(keys) == sorted(f"k{n}" for n in range(100))


def test_an_old_snapshot_is_noticed_and_runs_nothing_that_ended_and_nothing_early(stage, db_clock, redis_server):
    keys = stage.recorder("t")
    for key in ("ends", "cancelled", "postponed", "earlier"):
        schedule("t", key=key, delay=60 if key == "earlier" else 5)
    saved = snapshot(redis_server)
    cancel("t", key="cancelled")
    reschedule("t", "postponed", delay=120)
    reschedule("t", "earlier", delay=10)
    db_clock.advance(seconds=6)
    stage.go()
    assert keys == ["ends"]
    mirror.connect().write_tick(recognition.next_tick("default"))  # the world went on
    restore(saved)
    stage.guard()
    stage.go()
    assert keys == ["ends"]
    db_clock.advance(seconds=4)
    stage.go()
    assert keys == ["ends", "earlier"]
    db_clock.advance(seconds=120)
    stage.go()
    assert keys == ["ends", "earlier", "postponed"]


def test_another_redis_is_noticed_by_its_run_id(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=60)
    MirrorMark.objects.update(masters={"single": "another/one"})
    recognition._agreed.clear()  # it is asked every ten seconds
    client().delete(*[mirror.connect().keys.due(b) for b in range(4)])
    stage.guard()
    assert mirror.connect().due_count() == 1


def test_an_undisturbed_mirror_is_not_filled_again(stage):
    for _ in range(3):
        stage.guard()
    assert metrics.snapshot()["counters"]["rebuilt"] == 1


def test_a_mirror_write_that_was_lost_is_found_a_guard_after_the_due_time(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=5)
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])  # as if the add had never arrived
    db_clock.advance(seconds=6)
    stage.go()
    assert keys == []
    assert stage.guard() == 1
    stage.go()
    assert keys == ["a"]
    assert metrics.snapshot()["counters"]["repaired"] == 1


def test_a_backlog_cannot_hide_one_missing_row(stage, db_clock, settings):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 1} for n in range(1300))
    job = Job.objects.get(key="k1290")
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=5)
    while stage.mover.move_due() == 0:
        pass
    found = [stage.guard() for _ in range(4)]
    assert sum(found) == 1


def test_a_member_that_no_row_knows_is_removed_and_blocks_nobody(stage, db_clock, caplog):
    keys = stage.recorder("t")
    mirror.connect().add([Entry(10**9, "t", db_clock.now_ms)])
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.ERROR):
        stage.go()
    assert keys == ["a"]
    assert "unknown to the database" in caplog.text
    assert mirror.connect().scores([(10**9, "t")]) == [(None, None)]
    assert metrics.snapshot()["counters"]["unknown"] == 1


def test_an_entry_without_a_topic_is_set_aside_and_blocks_nobody(stage, db_clock, caplog):
    keys = stage.recorder("t")
    client().zadd(mirror.connect().keys.due(0), {"garbage": 1, "": 2, "7:": 3})
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.ERROR):
        stage.go()
    assert keys == ["a"]
    assert "set aside" in caplog.text
    assert metrics.snapshot()["counters"]["set_aside"] == 3


def test_an_entry_that_is_too_early_costs_a_look_and_runs_nothing(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=60)
    mirror.connect().add([Entry(job.id, "t", db_clock.now_ms)])
    stage.go()
    assert keys == []
    assert mirror.connect().scores([(job.id, "t")]) == [(job.due_ms, None)]
    db_clock.advance(seconds=60)
    stage.go()
    assert keys == ["a"]


def test_a_reserver_that_dies_before_its_claim_delays_the_job_by_the_grace_only(stage, db_clock):
    keys = stage.recorder("t", ttr=3600)
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    mirror.connect().reserve("t", 10, db_clock.now_ms, db_clock.now_ms + 5_000)  # and dies
    stage.rung.append("t")
    stage.go()
    assert keys == []
    db_clock.advance(seconds=5)
    stage.go()
    assert keys == ["a"]


def test_a_finished_or_cancelled_job_leaves_nothing_in_the_mirror(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=60)
    cancel("t", key="b")
    stage.go()
    assert mirror.connect().due_count() == 0
    assert mirror.connect().ready_counts(["t"]) == {}


# -- the horizon --------------------------------------------------------------------------------


def test_a_far_job_is_a_row_only_until_the_feeder_brings_it_in(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="far", delay=7200)
    sweeper.sweep()
    assert mirror.connect().due_count() == 0
    db_clock.advance(seconds=3601)
    assert sweeper.sweep()["fed"] == 1
    assert mirror.connect().due_count() == 1
    db_clock.advance(seconds=3599)
    stage.go()
    assert keys == ["far"]


def test_a_row_that_committed_late_behind_the_feeders_mark_is_fed_by_its_overlap(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600 * 2)
    sweeper.sweep()
    Job.objects.filter(pk=job.pk).update(due_at=from_ms(db_clock.now_ms + 3_590_000))  # just below the mark
    assert sweeper.sweep()["fed"] == 1


# -- the audit ----------------------------------------------------------------------------------


def test_the_audit_counts_and_repairs_each_kind_of_difference(stage, db_clock):
    stage.recorder("t")
    jobs = {name: schedule("t", key=name, delay=600) for name in ("missing", "late", "doubled", "fine")}
    found = mirror.connect()
    found.settle([Settlement(jobs["missing"].id, "t", jobs["missing"].due_ms, GONE)])
    found.settle([Settlement(jobs["late"].id, "t", jobs["late"].due_ms, jobs["late"].due_ms + 60_000)])
    doubled = jobs["doubled"]
    client().zadd(found.keys.ready(found.keys.bucket_of(doubled.id), "t"), {f"{doubled.id}:t": doubled.due_ms})
    client().sadd(found.keys.topics(found.keys.bucket_of(doubled.id)), "t")
    found.add([Entry(10**9, "t", db_clock.now_ms + 1000)])
    counts = audit.audit(repair=False)
    assert counts == {"missing": 1, "late": 1, "ghosts": 1, "doubled": 1, "checked": 4}
    assert audit.audit(repair=True) == counts
    assert audit.audit() == {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 4}


def test_the_sweep_takes_back_a_lease_that_ended_even_if_the_mirror_forgot_it(stage, db_clock):
    keys = stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    mirror.connect().settle([Settlement(held.id, "t", held.lease_ms, GONE)])
    db_clock.advance(seconds=6)
    assert sweeper.sweep()["expired"] == 1
    stage.guard()
    stage.go()
    assert keys == ["a"]
    assert state_of("a") == "finished"


# -- Redis that does not answer -----------------------------------------------------------------


def test_while_redis_is_down_everything_goes_on_from_the_database(stage, db_clock, redis_server):
    keys = stage.recorder("t")
    schedule("t", key="before", delay=5)
    redis_server.stop()
    schedule("t", key="during", delay=5)
    schedule("t", key="off", delay=5)
    cancel("t", key="off")
    db_clock.advance(seconds=6)
    stage.go()
    assert sorted(keys) == ["before", "during"]
    assert metrics.snapshot()["mirror"] == "down"


def test_a_redis_that_comes_back_empty_is_filled_and_used_again(stage, db_clock, redis_server):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=60)
    redis_server.stop()
    stage.go()
    redis_server.start()
    mirror.connect()._line._until = 0.0  # its pause is over
    stage.guard()
    assert mirror.connect().due_count() == 1
    db_clock.advance(seconds=60)
    stage.go()
    assert keys == ["a"]


def test_what_is_overdue_does_not_wait_for_another_that_rebuilds_or_died_at_it(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    flush()
    assert mirror.connect().alone("rebuild", 60_000)
    db_clock.advance(seconds=6)
    stage.guard()
    stage.go()
    assert keys == ["a"]


def test_whoever_takes_a_lock_and_loses_the_answer_holds_it(stage, with_redis, redis_server, settings):
    with Proxy(redis_server.port) as proxy:
        settings.DELAYTASKS = {**with_redis, "REDIS_URL": f"redis://127.0.0.1:{proxy.port}/0"}
        found = mirror.connect()
        assert found.alone("audit", 60_000)
        replies = iter([0])  # of the next one nothing comes through
        proxy.cut_after = lambda: next(replies, None)
        assert found.alone("rebuild", 60_000)
        assert proxy.cuts == 1
        assert not found.alone("rebuild", 60_000)
        found.close()
