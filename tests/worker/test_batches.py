"""Batches and run slots: many jobs run together without disturbing each other."""

import pytest

from delaytasks import Snooze, mirror, schedule, schedule_many, topics
from delaytasks.db import transitions
from delaytasks.maintenance import sweep
from delaytasks.models import Job, Topic
from delaytasks.worker import runner

from ..support.stage import Boom, effect, effects, outcomes, state_of

# -- batches ------------------------------------------------------------------------------------


def test_a_batch_handler_gets_many_jobs_in_one_call(stage):
    sizes = []
    stage.handler("t", batch=50)(lambda jobs: sizes.append(len(jobs)))
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(120))
    stage.go(rounds=50)
    assert sum(sizes) == 120
    assert max(sizes) > 10
    assert max(sizes) <= 50


@pytest.mark.parametrize("options", [{"batch": 20}, {"one_commit": True}], ids=["batch handler", "one commit"])
def test_one_bad_job_does_not_harm_the_others_of_its_batch(stage, options):
    done = []

    @stage.handler("t", max_attempts=1, **options)
    def some(jobs):
        for job in jobs if isinstance(jobs, list) else [jobs]:
            effect(f"effect-{job.key}-{len(done)}")
            done.append(job.key)
            if job.key == "k3":
                raise Boom("k3 is bad")

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(8))
    runner._paces["t"] = runner.Pace(size=8)
    stage.go()
    assert state_of("k3") == "dead"
    assert all(state_of(f"k{n}") == "finished" for n in range(8) if n != 3)
    kept = [name.split("-")[1] for name in effects()]
    assert sorted(kept) == sorted(f"k{n}" for n in range(8) if n != 3), "each effect once, none of the bad one"


def test_a_batch_handler_may_snooze_some_by_id(stage, db_clock):
    @stage.handler("t", batch=10)
    def some(jobs):
        return {job.id: Snooze(5) for job in jobs if job.key == "b"}

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert (outcomes("a"), outcomes("b")) == (["finished"], ["snoozed"])


@pytest.mark.parametrize("options", [{"batch": 10}, {}, {"atomic": False}], ids=["batch", "single", "not atomic"])
def test_an_exception_that_a_handler_returns_fails_the_job_as_if_it_was_raised(stage, options):
    @stage.handler("t", max_attempts=1, **options)
    def some(given):
        if isinstance(given, list):
            return {job.id: Boom("it is bad") for job in given if job.key == "bad"}
        return Boom("it is bad") if given.key == "bad" else None

    runner._paces["t"] = runner.Pace(size=2)
    schedule_many({"topic": "t", "key": key, "delay": 0} for key in ("good", "bad"))
    stage.go()
    assert (outcomes("good"), outcomes("bad")) == (["finished"], ["dead"])
    assert Job.objects.get(key="bad").error.endswith("Boom: it is bad")


def test_a_batch_that_loses_one_job_finishes_the_others(stage, db_clock):
    @stage.handler("t", batch=10)
    def overtaken(jobs):
        if len(jobs) == 3:  # another process ends one of them while the batch runs
            transitions.end_if_held(
                "default", [transitions.Ending(jobs[0].id, jobs[0].attempt, 4, None, 0, "", worker=jobs[0].worker)]
            )

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    stage.go()
    assert all(outcomes(f"k{n}") == ["finished"] for n in range(3))


def test_a_stopping_worker_has_claimed_no_job_that_it_has_not_begun(stage):
    keys: list[str] = []
    stage.handler("t")(lambda job: keys.append(job.key))
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(4))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=4)
    stage.run("t", stopping=lambda: len(keys) >= 1)
    assert len(keys) == 1
    assert list(Job.objects.order_by("id").values_list("state", "attempt")) == [(4, 1), (1, 0), (1, 0), (1, 0)]
    stage.dispatched.append("t")
    stage.go()
    assert sorted(keys) == ["k0", "k1", "k2", "k3"]
    assert Job.objects.filter(failures__gt=0).count() == 0


# -- run slots ----------------------------------------------------------------------------------


def test_a_topic_runs_in_no_more_slots_than_its_concurrency(stage, db_clock):
    nested = []

    @stage.handler("t", concurrency=1)
    def inner(job):
        nested.append((job.key, stage.run("t", worker_name="another")))

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(30))
    stage.go()
    assert len(nested) == 30
    assert {ran for _, ran in nested} == {0}


def test_staff_can_change_the_concurrency_of_a_running_topic(stage):
    stage.recorder("t", concurrency=4)
    assert topics.topic_settings("default", "t").concurrency == 4
    Topic.objects.update_or_create(name="t", defaults={"concurrency": 2})
    topics.clear_cache()
    assert topics.topic_settings("default", "t").concurrency == 2


def test_the_slot_of_a_killed_worker_is_free_after_its_lease(stage, db_clock, due_index):
    keys = stage.recorder("t", concurrency=1, ttr=5)
    assert due_index.take_slot("t", "killed", db_clock.now_ms, db_clock.now_ms + 10_000, 1)
    schedule("t", key="a", delay=0)
    stage.go()
    assert keys == []
    db_clock.advance(seconds=11)
    stage.go()
    assert keys == ["a"]


# -- messages -----------------------------------------------------------------------------------


def test_a_lost_message_is_sent_again_by_the_next_pass(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    stage.dispatched.clear()  # lost
    db_clock.advance(ms=1_100)
    if mirror.connect():
        mirror.connect()._redis.client.delete(mirror.connect().keys.pending_message("t"))  # expired after a second
    stage.go()
    assert keys == ["a"]


def test_a_doubled_message_runs_no_job_twice(stage):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    for _ in range(5):
        stage.run("t")
    assert keys == ["a"]


def test_without_a_handler_max_attempts_comes_from_the_settings(stage, db_clock, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"http.only": {"ttr": 5, "max_attempts": 1}}}
    schedule("http.only", key="a", delay=0)
    assert len(stage.take("http.only")) == 1
    db_clock.advance(seconds=6)
    assert sweep.sweep()["expired"] == 1
    assert state_of("a") == "dead"
