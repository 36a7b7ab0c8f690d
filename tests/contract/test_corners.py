"""Interleavings and mistakes that once went wrong, or would be easy to get wrong."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable

import pytest
from django.db import OperationalError, connection, transaction

from delaytasks import (
    bells,
    cancel,
    engine,
    mirror,
    reschedule,
    retry_dead,
    run_now,
    schedule,
    schedule_many,
    statements,
    sweeper,
    topics,
    worker,
)
from delaytasks.changing import CancelResult
from delaytasks.exceptions import BadInput, BadKey, BadTopic
from delaytasks.models import Job, MirrorMark, Topic
from delaytasks.places import GONE, Settlement
from delaytasks.scheduling import Scheduled
from delaytasks.states import State

from .conftest import Boom, effect, effects, outcomes, state_of

on_the_mirror = pytest.mark.parametrize("places", ["mirror"], indirect=True)


# -- effects once -------------------------------------------------------------------------------


def test_a_finish_that_was_rolled_back_to_a_savepoint_is_done_again(stage):
    @stage.handler("t")
    def daring(job):
        effect(f"effect-{job.attempt}")
        try:
            with transaction.atomic():
                schedule("t", key=job.key, delay=60)  # finishes this job, in the savepoint
                raise Boom
        except Boom:
            return

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), len(effects())) == (["finished"], 1)
    assert Job.objects.live().count() == 0


def test_finishing_that_an_outer_block_rolled_back_is_done_again(stage):
    @stage.handler("t", atomic=False)
    def daring(job):
        try:
            with transaction.atomic():
                with job.finishing():
                    effect("effect-lost")
                raise Boom
        except Boom:
            return

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), effects()) == (["finished"], [])


@pytest.mark.parametrize("terms", [{}, {"batch": 10}, {"one_commit": True}], ids=["single", "batch", "one commit"])
def test_a_callback_that_fails_after_the_commit_repeats_nothing(stage, terms, caplog):
    calls: list[int] = []

    def fail() -> None:
        raise Boom("after the commit")

    @stage.handler("t", **terms)
    def announce(jobs):
        calls.append(len(jobs) if isinstance(jobs, list) else 1)
        transaction.on_commit(fail)

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    worker._paces["t"] = worker.Pace(size=3)
    stage.go()
    assert sum(calls) == 3
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(3))
    assert "after the commit" in caplog.text
    if mirror.connect():
        assert mirror.connect().due_count() == 0, "the mirror was told all the same"


def test_a_handler_outside_a_transaction_is_not_repeated_when_the_database_asks_to_try_again(stage):
    calls = []

    class Serialization(Exception):
        sqlstate = "40001"

    @stage.handler("t", atomic=False)
    def outside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise OperationalError("could not serialize") from Serialization()

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1]
    assert outcomes("a") == ["failed"]


def test_a_handler_in_a_transaction_is_repeated_once_when_the_database_asks_to_try_again(stage):
    calls = []

    class Serialization(Exception):
        sqlstate = "40P01"

    @stage.handler("t")
    def inside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise OperationalError("deadlock detected") from Serialization()

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1, 1]
    assert outcomes("a") == ["finished"]


@pytest.mark.only_on("sqlite")
def test_a_write_lock_that_was_not_had_in_time_is_no_failure_of_the_handler(stage):
    calls = []
    another = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)

    @stage.handler("t", max_attempts=1)
    def patient(job):
        calls.append(job.attempt)

    schedule("t", key="a", delay=0)
    held = stage.take("t")
    another.execute("BEGIN IMMEDIATE")
    tries = []

    def let_go_after_one(execute, sql, params, many, context):
        try:
            return execute(sql, params, many, context)
        except OperationalError:
            tries.append(sql)
            another.execute("ROLLBACK")
            raise

    run = worker.Run(topics.find("t"), engine.places("default"), "default", "w", lambda: False, float("inf"))
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    try:
        with connection.execute_wrapper(let_go_after_one):
            run.handling.run_one(held[0])
    finally:
        another.close()
        connection.close()
    assert len(tries) == 1
    assert (calls, outcomes("a")) == ([1], ["finished"])


def test_an_error_after_finishing_is_logged_and_changes_nothing(stage, caplog):
    @stage.handler("t", atomic=False, max_attempts=1)
    def outside(job):
        with job.finishing():
            effect("effect-kept")
        raise Boom("afterwards")

    schedule("t", key="a", delay=0)
    stage.go()
    assert (outcomes("a"), len(effects())) == (["finished"], 1)
    assert "afterwards" in caplog.text


# -- slow batches, slots, crews -----------------------------------------------------------------


def test_a_batch_that_turns_slow_is_given_back_but_for_what_has_begun(stage, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])
    keys = []

    @stage.handler("t")
    def slow(job):
        keys.append(job.key)
        now[0] += 1.2

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(8))
    stage.mover.move_due()
    worker._paces["t"] = worker.Pace(size=8)
    held = stage.take("t", 8)
    run = worker.Run(topics.find("t"), engine.places("default"), "default", "w", lambda: False, now[0] + 60)
    assert run.has_slot()
    run.work(held)
    assert keys == ["k0"]
    assert run.pace.size == 1
    assert Job.objects.filter(state=1).count() == 7
    assert Job.objects.filter(failures__gt=0).count() == 0


def paces(seconds_of: Callable[[int], float], rounds: int = 9) -> list[int]:
    """The sizes that a topic's batches have, one after the other, if a batch of n takes seconds_of(n)."""
    pace, sizes = worker.Pace(), []
    for _ in range(rounds):
        sizes.append(pace.size)
        pace.learn(pace.size, seconds_of(pace.size), 60_000, 200)
    return sizes


def test_the_pace_grows_fast_while_the_handler_is_quick_and_never_passes_its_bound():
    assert paces(lambda n: 0.0005 * n, rounds=5) == [1, 8, 64, 200, 200]


def test_the_pace_grows_for_a_batch_handler_that_takes_as_long_for_one_as_for_many():
    assert paces(lambda n: 0.25) == [1, 2, 4, 8, 16, 32, 64, 128, 200]


def test_the_pace_of_a_slow_handler_stays_small():
    assert max(paces(lambda n: 0.25 * n)) == 2
    assert paces(lambda n: 30.0 * n) == [1] * 9


def test_a_batch_that_was_not_full_says_nothing_about_a_larger_one():
    pace = worker.Pace(size=64)
    pace.learn(3, 0.001, 60_000, 200)
    assert pace.size == 64


@on_the_mirror
def test_a_runner_turns_to_another_topic_of_its_crew_without_waiting_for_its_bell(stage, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 5}
    keys, others = stage.recorder("t"), stage.recorder("u")
    elsewhere = stage.recorder("v", queue="slow")
    for topic in ("t", "u", "v"):
        schedule(topic, key=topic, delay=0)
    stage.mover.move_due()
    stage.rung.clear()
    stage.run("t")
    assert (keys, others, elsewhere) == (["t"], ["u"], []), "a topic of another queue is for other workers"


@on_the_mirror
def test_a_lingering_runner_is_woken_for_whatever_of_its_crew_gets_ready(stage, db_clock):
    found = mirror.connect()
    stage.recorder("t"), stage.recorder("u")
    found._line.client.zadd(found.keys.lingering(bells.crew("t")), {"token": db_clock.now_ms + 1000})
    schedule("u", key="a", delay=0)
    stage.mover.move_due()
    assert stage.rung == [], "no bell, the lingerer was woken"
    assert found.linger(bells.crew("t"), "token", db_clock.now_ms, 500) == "u"


def test_a_touch_keeps_the_run_slot_too(stage, db_clock, places):
    seen = []

    @stage.handler("t", concurrency=1, ttr=5)
    def long(job):
        for _ in range(4):
            db_clock.advance(seconds=4)
            job.touch()
        seen.append(places.take_slot("t", "another", db_clock.now_ms, db_clock.now_ms + 1000, 1))

    schedule("t", key="a", delay=0)
    stage.go()
    assert seen == [False]
    assert outcomes("a") == ["finished"]


def test_bells_do_not_pile_up_while_nobody_answers(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    for _ in range(50):
        stage.mover.move_due()
        db_clock.advance(ms=50)
    assert 1 <= len(stage.rung) <= 4, "one a second at most, not one a pass"


@pytest.mark.parametrize("error", [asyncio.CancelledError, Boom])
def test_whatever_a_handler_raises_its_neighbours_are_run(stage, error):
    @stage.handler("t", max_attempts=1)
    def some(job):
        if job.key == "k1":
            raise error

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    worker._paces["t"] = worker.Pace(size=3)
    stage.go()
    assert [state_of(f"k{n}") for n in range(3)] == ["finished", "dead", "finished"]


def test_what_was_not_begun_is_given_back_even_if_the_worker_is_torn_down(stage):
    class Torn(BaseException):
        pass

    @stage.handler("t")
    def torn(job):
        raise Torn

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    stage.mover.move_due()
    worker._paces["t"] = worker.Pace(size=3)
    with pytest.raises(Torn):
        stage.run("t")
    # Its own attempt failed: given back it would tear down one process after the other, for ever.
    assert list(Job.objects.order_by("id").values_list("state", "failures")) == [(1, 1), (1, 0), (1, 0)]


@pytest.mark.parametrize("terms", [{"batch": 50}, {"one_commit": True}], ids=["batch handler", "one commit"])
def test_neighbours_of_a_bad_job_do_not_outlive_their_ttr_while_they_wait_their_turn(
    stage, db_clock, monkeypatch, terms
):
    """A batch takes half a TTR before it fails, and so does each job by itself; the sweep never sleeps."""
    now = [100.0]
    monkeypatch.setattr(worker.time, "monotonic", lambda: now[0])

    @stage.handler("t", ttr=2, max_attempts=2, **terms)
    def slow(jobs):
        group = jobs if isinstance(jobs, list) else [jobs]
        db_clock.advance(ms=1_000)
        now[0] += 1.0
        sweeper.take_back_expired("default")
        if any(job.key == "bad" for job in group):
            raise Boom

    schedule_many({"topic": "t", "key": key, "delay": 0} for key in ("bad", "k1", "k2", "k3", "k4", "k5"))
    worker._paces["t"] = worker.Pace(size=6)
    for _ in range(12):
        stage.go()
        db_clock.advance(seconds=10)
    assert outcomes("bad")[-1] == "dead"
    for n in range(1, 6):
        assert [o for o in outcomes(f"k{n}") if o != "released"] == ["finished"]
    assert Job.objects.filter(failures__gt=0).count() == 1


def test_a_stop_in_the_middle_of_a_batch_that_goes_one_by_one_gives_the_rest_back(stage):
    begun: list[str] = []

    @stage.handler("t", batch=10)
    def some(jobs):
        if len(jobs) > 1:
            raise Boom
        begun.append(jobs[0].key)

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(5))
    stage.mover.move_due()
    worker._paces["t"] = worker.Pace(size=5)
    stage.run("t", stopping=lambda: bool(begun))
    assert len(begun) == 1
    assert Job.objects.filter(state=State.RESERVED).count() == 0
    assert Job.objects.filter(failures__gt=0).count() == 0


def test_a_jobs_own_ttr_keeps_its_run_slot(stage, db_clock, places):
    seen = []

    @stage.handler("t", concurrency=1, ttr=1)
    def long(job):
        db_clock.advance(seconds=100)
        seen.append(places.take_slot("t", "another", db_clock.now_ms, db_clock.now_ms + 1000, 1))

    schedule("t", key="a", delay=0, ttr=600)
    stage.go()
    assert seen == [False]
    assert outcomes("a") == ["finished"]


def test_a_callback_that_fails_after_finishing_is_told_to_the_mirror_all_the_same(stage, caplog):
    def fail() -> None:
        raise Boom("after the commit")

    @stage.handler("t", atomic=False, max_attempts=1)
    def outside(job):
        with job.finishing():
            transaction.on_commit(fail)

    schedule("t", key="a", delay=0)
    stage.go()
    assert outcomes("a") == ["finished"]
    assert "after the commit" in caplog.text
    if mirror.connect():
        assert mirror.connect().due_count() == 0


@pytest.mark.parametrize("by", ["x" * 300, "a\x00b", None, 7])
def test_who_did_it_is_checked_before_anything_is_written(stage, by):
    stage.recorder("t")
    schedule("t", key="a", delay=60)
    for verb in (
        lambda: schedule("t", key="b", delay=60, by=by),
        lambda: schedule_many([{"topic": "t", "key": "b", "delay": 60}], by=by),
        lambda: cancel("t", key="a", by=by),
        lambda: reschedule("t", "a", delay=1, by=by),
        lambda: run_now("t", "a", by=by),
        lambda: retry_dead("t", "a", by=by),
    ):
        with pytest.raises(BadInput):
            verb()
    assert Job.objects.live().count() == 1


# -- truth of the answers -----------------------------------------------------------------------


def test_a_cancel_answers_for_the_key_not_for_the_job_that_it_missed(stage, monkeypatch):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    real, raced = statements.cancel_live, []

    def race(*args, **kwargs):
        if raced:
            return real(*args, **kwargs)
        raced.append(stage.take("t")[0])  # the statement finds it running; then it ends and schedules its own next one
        missed = real(*args, **kwargs)
        raced[0].finish()
        schedule("t", key="a", delay=60)
        return missed

    monkeypatch.setattr(statements, "cancel_live", race)
    assert cancel("t", key="a") is CancelResult.CANCELLED
    assert Job.objects.live().count() == 0


def test_run_now_does_not_send_an_overdue_job_to_the_end_of_the_queue(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    db_clock.advance(seconds=60)
    assert run_now("t", "a").due_at == job.due_at
    assert reschedule("t", "a", delay=0).due_at == job.due_at


@pytest.mark.parametrize("mode", ["reject", "keep", "replace"])
def test_a_bulk_inside_a_handler_may_hold_its_own_next_one(stage, mode):
    @stage.handler("t")
    def again(job):
        assert schedule_many([{"topic": "t", "key": job.key, "delay": 60}], on_conflict=mode) == Scheduled(1, 0, 0)

    schedule("t", key="a", delay=0)
    stage.go()
    assert Job.objects.filter(key="a").count() == 2
    assert Job.objects.live().count() == 1


def test_a_bad_mode_does_not_finish_the_handlers_own_job(stage):
    @stage.handler("t", max_attempts=1)
    def again(job):
        with pytest.raises(BadInput):
            schedule("t", key=job.key, delay=60, on_conflict="sideways")
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"


@pytest.mark.parametrize(
    ("topic", "key", "error"),
    [("t", 1042, BadKey), ("t", "", BadKey), ("t", "a\x00", BadKey), ("t", "\ud800", BadKey), ("t t", "a", BadTopic)],
    ids=["number", "empty", "nul", "surrogate", "topic"],
)
def test_every_verb_refuses_a_bad_topic_or_key(stage, topic, key, error):
    for verb in (
        lambda: cancel(topic, key=key),
        lambda: reschedule(topic, key, delay=1),
        lambda: run_now(topic, key),
        lambda: retry_dead(topic, key),
    ):
        with pytest.raises(error):
            verb()


def test_another_database_is_refused_unless_its_jobs_are_run(stage):
    stage.recorder("t")
    with pytest.raises(BadInput, match="DATABASES"):
        schedule("t", key="a", delay=0, using="archive")


def test_the_routers_database_is_refused_too_if_its_jobs_are_not_run(stage, settings):
    stage.recorder("t")
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["other"]}
    with pytest.raises(BadInput, match="DATABASES"):
        schedule("t", key="a", delay=0)


# -- strangers ----------------------------------------------------------------------------------


def test_a_stranger_never_buries_a_job_and_its_own_worker_does(stage, db_clock):
    """A lease that ends is taken back by any sweep; whether it was the last attempt is for who knows the topic."""
    buried: list[str] = []
    keys = stage.recorder("t", ttr=5, max_attempts=1, on_dead=lambda job: buried.append(job.key))
    Topic.objects.get_or_create(name="t")
    schedule("t", key="a", delay=0)
    stage.take("t")
    handler = topics.find("t")
    topics.forget("t")
    db_clock.advance(seconds=6)
    sweeper.sweep()
    assert (state_of("a"), buried) == ("delayed", [])
    topics.add(handler)
    stage.go()
    stage.rung.append("t")
    stage.go()
    assert (state_of("a"), buried, keys) == ("dead", ["a"], [])


@on_the_mirror
def test_ready_jobs_of_a_topic_that_nothing_knows_are_said_and_stay(stage, caplog):
    Topic.objects.create(name="gone")
    schedule("gone", key="a", delay=0)
    stage.mover.move_due()
    with caplog.at_level(logging.WARNING):
        assert sweeper.sweep()["unhandled"] == 1
    assert "gone" in caplog.text
    assert state_of("a") == "delayed"


# -- guards -------------------------------------------------------------------------------------


@on_the_mirror
def test_a_fresh_miss_is_found_at_once_behind_any_backlog(stage, db_clock, monkeypatch):
    monkeypatch.setattr(sweeper, "PAGE", 10)
    monkeypatch.setattr(sweeper, "PROBE_SECONDS", 0.0)
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(200))
    stage.mover.move_due()
    db_clock.advance(seconds=5)
    stage.guard()
    job = schedule("t", key="lost", delay=1)
    mirror.connect().settle([Settlement(job.id, "t", job.due_ms, GONE)])
    db_clock.advance(seconds=2)
    assert stage.guard() == 1


@on_the_mirror
def test_a_redis_that_was_away_and_comes_back_as_it_was_is_filled_again(stage, db_clock):
    stage.recorder("t")
    found = mirror.connect()
    tick = MirrorMark.objects.get().tick
    found._line._until = float("inf")  # SIGSTOP: it does not answer
    stage.guard()
    stage.guard()
    schedule("t", key="a", delay=60)
    assert MirrorMark.objects.get().tick == tick + 1, "once an outage"
    found._line._until = 0.0
    assert found.due_count() == 0
    stage.guard()
    assert found.due_count() == 1


@on_the_mirror
def test_an_entry_with_more_digits_than_an_id_has_is_set_aside(stage):
    keys = stage.recorder("t")
    found = mirror.connect()
    found._line.client.zadd(found.keys.due(0), {f"{10**25}:t": 1})
    schedule("t", key="a", delay=0)
    stage.go()
    assert keys == ["a"]
    assert found.counters()["set_aside"] == 1


@on_the_mirror
@pytest.mark.only_on("postgresql")
def test_a_connection_that_broke_costs_one_bell_and_not_all_that_follow(stage, caplog):
    stage.recorder("a")
    stage.recorder("b")
    schedule("a", key="1", delay=0)
    schedule("b", key="1", delay=0)
    bells.forget_terms()
    engine.now_ms("default")
    with contextlib.suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    stage.mover.move_due()
    assert "topic a could not be rung for" in caplog.text
    assert stage.rung == ["b"]


def hot_updates(cursor) -> int:
    """Heap-only updates of jobs by this connection that the statistics have not collected yet."""
    cursor.execute("SELECT pg_stat_get_xact_tuples_hot_updated('delaytasks_job'::regclass)")
    return cursor.fetchone()[0]


@pytest.mark.only_on("postgresql")
def test_claims_are_heap_only_updates(stage):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(100))
    with transaction.atomic(), connection.cursor() as cursor:
        ids = list(Job.objects.values_list("id", flat=True)[:10])
        before = hot_updates(cursor)
        assert len(statements.claim("default", "t", ids, "w")) == 10
        assert hot_updates(cursor) - before == 10
