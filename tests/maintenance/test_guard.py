"""Redis may be flushed, restarted, rewound or hold wrong entries: no job is lost and none runs early."""

import logging

import pytest
from django.db import OperationalError, connection

from delaytasks import cancel, mirror, reschedule, schedule, schedule_many
from delaytasks.db import lookups
from delaytasks.maintenance import audit, data_loss, feed, guard, sweep
from delaytasks.mirror.base import GONE, Entry, Settlement
from delaytasks.mirror.redis.index import Mirror
from delaytasks.models import Job, JobEvent, MirrorMark
from delaytasks.monitoring import metrics
from tests.torture.proxy import Proxy

from ..support.stage import state_of

pytestmark = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)


def client():
    return mirror.connect()._redis.client


def flush() -> None:
    for key in client().scan_iter(f"*{mirror.connect().settings.prefix}*"):
        client().delete(key)


def snapshot(redis_server) -> dict[bytes, bytes]:
    """Return all of this test's keys as Redis would write them to disk."""
    with redis_server.client(decode_responses=False) as raw:
        return {key: raw.dump(key) for key in raw.keys(f"*{mirror.connect().settings.prefix}*")}


def restore(saved: dict[bytes, bytes]) -> None:
    flush()
    for key, value in saved.items():
        client().restore(key, 0, value)


def test_the_next_guard_rebuilds_a_flushed_mirror(stage, db_clock):
    keys = stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": n % 50} for n in range(100))
    flush()
    stage.guard()
    assert mirror.connect().due_count() == 100
    db_clock.advance(seconds=60)
    stage.go(rounds=100)
    assert sorted(keys) == sorted(f"k{n}" for n in range(100))


@pytest.mark.on_both
def test_a_pass_that_fails_holds_up_neither_the_mirror_nor_the_next_pass(stage, monkeypatch):
    def fail(using):
        with connection.cursor() as cursor:
            cursor.execute("SELECT no_such_column FROM delaytasks_job")

    called = []
    monkeypatch.setattr(guard, "passes", [fail, called.append])
    stage.recorder("t")
    schedule("t", "a", delay=0)
    flush()
    stage.guard()
    assert mirror.connect().due_count() == 1
    assert called == ["default"]


def test_a_check_of_the_mirror_that_fails_holds_up_no_pass(stage, monkeypatch, caplog):
    def fail(*_, **__):
        raise OperationalError("canceling statement due to statement timeout")

    called = []
    monkeypatch.setattr(guard, "passes", [called.append])
    monkeypatch.setattr(lookups, "overdue", fail)
    assert stage.guard() == 0
    assert called == ["default"]
    assert "statement timeout" in caplog.text


@pytest.mark.on_both
def test_after_an_older_backup_of_the_database_its_rows_decide_and_none_runs_early(stage, db_clock):
    """Redis runs ahead: it lacks jobs that the backup has, and has others that it does not know."""
    keys, others = stage.recorder("t"), stage.recorder("u")
    for key in ("ends", "cancelled", "earlier"):
        schedule("t", key=key, delay=60 if key == "earlier" else 5)
    backup = list(Job.objects.all())

    cancel("t", key="cancelled")
    reschedule("t", "earlier", delay=10)
    lost = schedule("t", key="lost", delay=20)
    db_clock.advance(seconds=6)
    stage.go()
    assert keys == ["ends"]

    JobEvent.objects.all()._raw_delete("default")
    Job.objects.all()._raw_delete("default")
    Job.objects.bulk_create(backup)
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT setval(pg_get_serial_sequence('delaytasks_job', 'id'), %s)", [backup[-1].pk])
        else:
            cursor.execute("UPDATE sqlite_sequence SET seq = %s WHERE name = 'delaytasks_job'", [backup[-1].pk])
    assert schedule("u", key="with the id of a lost job", delay=90).id == lost.id

    stage.guard()
    stage.go()
    assert sorted(keys[1:]) == ["cancelled", "ends"]  # as the backup says
    db_clock.advance(seconds=50)
    stage.guard()
    stage.go()
    assert (len(keys), others) == (3, [])
    db_clock.advance(seconds=4)
    stage.go()
    assert keys[3:] == ["earlier"]
    db_clock.advance(seconds=36)
    stage.guard()
    stage.go()
    assert (keys[4:], others) == ([], ["with the id of a lost job"])


def test_after_an_old_snapshot_no_ended_job_runs_again_and_none_runs_early(stage, db_clock, redis_server):
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
    mirror.connect().write_tick(data_loss.increment_tick("default"))  # time has passed since the snapshot
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


def test_a_different_redis_is_noticed_by_its_run_id(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=60)
    MirrorMark.objects.update(masters={"single": "another/one"})
    data_loss._last_checks.clear()  # it is checked every ten seconds
    client().delete(*[mirror.connect().keys.due(b) for b in range(4)])
    stage.guard()
    assert mirror.connect().due_count() == 1


def test_an_intact_mirror_is_not_rebuilt(stage):
    for _ in range(3):
        stage.guard()
    counters = metrics.snapshot()["counters"]
    assert (counters["rebuilt"], counters["repaired"]) == (1, 0)


def test_the_guard_repairs_a_lost_mirror_write_after_the_due_time(stage, db_clock):
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


def test_a_backlog_does_not_hide_a_missing_job(stage, db_clock, settings):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 1} for n in range(1300))
    job = Job.objects.get(key="k1290")
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=5)
    while stage.mover.move_due() == 0:
        pass
    repaired = [stage.guard() for _ in range(4)]
    assert sum(repaired) == 1


def test_an_entry_without_a_row_is_removed_and_blocks_no_job(stage, db_clock, caplog):
    keys = stage.recorder("t")
    mirror.connect().add([Entry(10**9, "t", db_clock.now_ms)])
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.ERROR):
        stage.go()
    assert keys == ["a"]
    assert "which the database does not have" in caplog.text
    assert mirror.connect().scores([(10**9, "t")]) == [(None, None)]
    assert metrics.snapshot()["counters"]["unknown"] == 1


def test_a_malformed_entry_is_set_aside_and_blocks_no_job(stage, db_clock, caplog):
    keys = stage.recorder("t")
    client().zadd(mirror.connect().keys.due(0), {"garbage": 1, "": 2, "7:": 3})
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.ERROR):
        stage.go()
    assert keys == ["a"]
    assert "set aside" in caplog.text
    assert metrics.snapshot()["counters"]["set_aside"] == 3


def test_an_early_entry_costs_a_refused_claim_and_runs_nothing(stage, db_clock):
    keys = stage.recorder("t")
    job = schedule("t", key="a", delay=60)
    mirror.connect().add([Entry(job.id, "t", db_clock.now_ms)])
    stage.go()
    assert keys == []
    assert mirror.connect().scores([(job.id, "t")]) == [(job.due_ms, None)]
    db_clock.advance(seconds=60)
    stage.go()
    assert keys == ["a"]


def test_a_worker_that_dies_before_its_claim_delays_the_job_by_the_grace_only(stage, db_clock):
    keys = stage.recorder("t", ttr=3600)
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    mirror.connect().reserve("t", 10, db_clock.now_ms, db_clock.now_ms + 5_000)  # then the worker dies
    stage.dispatched.append("t")
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


def test_a_job_beyond_the_horizon_has_no_entry_until_it_is_fed(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="far", delay=7200)
    sweep.sweep()
    assert mirror.connect().due_count() == 0
    db_clock.advance(seconds=3601)
    assert sweep.sweep()["fed"] == 1
    assert mirror.connect().due_count() == 1
    db_clock.advance(seconds=3599)
    stage.go()
    assert keys == ["far"]


# -- the audit ----------------------------------------------------------------------------------


def test_the_audit_counts_and_repairs_each_kind_of_difference(stage, db_clock):
    stage.recorder("t")
    jobs = {name: schedule("t", key=name, delay=600) for name in ("missing", "late", "doubled", "fine")}
    index = mirror.connect()
    index.settle([Settlement(jobs["missing"].id, "t", jobs["missing"].due_ms, GONE)])
    index.settle([Settlement(jobs["late"].id, "t", jobs["late"].due_ms, jobs["late"].due_ms + 60_000)])
    doubled = jobs["doubled"]
    client().zadd(index.keys.ready(index.keys.bucket_of(doubled.id), "t"), {f"{doubled.id}:t": doubled.due_ms})
    client().sadd(index.keys.topics(index.keys.bucket_of(doubled.id)), "t")
    index.add([Entry(10**9, "t", db_clock.now_ms + 1000)])
    counts = audit.audit(repair=False)
    assert counts == {"missing": 1, "late": 1, "ghosts": 1, "doubled": 1, "checked": 4}
    assert audit.audit(repair=True) == counts
    assert audit.audit() == {"missing": 0, "late": 0, "ghosts": 0, "doubled": 0, "checked": 4}


def test_a_job_that_ends_during_the_audit_is_no_ghost(stage, monkeypatch):
    stage.recorder("t")
    schedule("t", key="a", delay=600)
    read = Mirror.entries

    def read_and_cancel(index):
        for page in filter(None, read(index)):
            cancel("t", key="a")
            yield page

    monkeypatch.setattr(Mirror, "entries", read_and_cancel)
    assert audit.audit(repair=False)["ghosts"] == 0


def test_an_entry_is_a_ghost_only_some_time_after_its_job_has_ended(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=600)
    cancel("t", key="a")
    mirror.connect().add([Entry(job.id, "t", job.due_ms)])
    assert audit.audit(repair=False)["ghosts"] == 0
    db_clock.advance(seconds=6)
    assert audit.audit(repair=False)["ghosts"] == 1


def test_the_sweep_takes_back_an_expired_lease_without_an_entry(stage, db_clock):
    keys = stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    mirror.connect().settle([Settlement(held.id, "t", held.lease_ms, GONE)])
    db_clock.advance(seconds=6)
    assert sweep.sweep()["expired"] == 1
    stage.guard()
    stage.go()
    assert keys == ["a"]
    assert state_of("a") == "finished"


# -- Redis that does not answer -----------------------------------------------------------------


def test_while_redis_is_down_jobs_run_from_the_database(stage, db_clock, redis_server):
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


def test_a_redis_that_comes_back_empty_is_rebuilt_and_used_again(stage, db_clock, redis_server):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=60)
    redis_server.stop()
    stage.go()
    redis_server.start()
    mirror.connect()._redis.breaker.reset()  # its pause is over
    stage.guard()
    assert mirror.connect().due_count() == 1
    db_clock.advance(seconds=60)
    stage.go()
    assert keys == ["a"]


def test_overdue_jobs_do_not_wait_for_another_process_that_rebuilds(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    flush()
    assert mirror.connect().lock("rebuild", 60_000).acquire()
    db_clock.advance(seconds=6)
    stage.guard()
    stage.go()
    assert keys == ["a"]


def test_a_lock_is_held_even_if_the_reply_was_lost(stage, with_redis, redis_server, settings):
    with Proxy(redis_server.port) as proxy:
        settings.DELAYTASKS = {**with_redis, "REDIS_URL": f"redis://127.0.0.1:{proxy.port}/0"}
        index = mirror.connect()
        assert index.lock("audit", 60_000).acquire()
        replies = iter([0])  # the next reply is lost entirely
        proxy.cut_after = lambda: next(replies, None)
        assert index.lock("rebuild", 60_000).acquire()
        assert proxy.cuts == 1
        assert not index.lock("rebuild", 60_000).acquire()
        index.close()


def test_a_newly_missing_job_is_found_at_once_behind_any_backlog(stage, db_clock, monkeypatch):
    monkeypatch.setattr(feed, "PAGE", 10)
    monkeypatch.setattr(guard, "PROBE_SECONDS", 0.0)
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(200))
    stage.mover.move_due()
    db_clock.advance(seconds=5)
    stage.guard()
    job = schedule("t", key="lost", delay=1)
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=2)
    assert stage.guard() == 1


def test_a_redis_that_comes_back_unchanged_after_an_outage_is_rebuilt(stage, db_clock):
    stage.recorder("t")
    index = mirror.connect()
    tick = MirrorMark.objects.get().tick
    index._redis.breaker._open_until = float("inf")  # as if Redis did not answer
    stage.guard()
    stage.guard()
    schedule("t", key="a", delay=60)
    assert MirrorMark.objects.get().tick == tick + 1, "once per outage"
    index._redis.breaker.reset()
    assert index.due_count() == 0
    stage.guard()
    assert index.due_count() == 1


def test_an_entry_with_more_digits_than_an_id_has_is_set_aside(stage):
    keys = stage.recorder("t")
    index = mirror.connect()
    index._redis.client.zadd(index.keys.due(0), {f"{10**25}:t": 1})
    schedule("t", key="a", delay=0)
    stage.go()
    assert keys == ["a"]
    assert index.counters()["set_aside"] == 1
