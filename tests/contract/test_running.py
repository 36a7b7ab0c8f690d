"""A due job is run, and what its handler does and its finish are one commit."""

import logging

import pytest
from django.db import connection, transaction

from delaytasks import (
    Retry,
    Snooze,
    bells,
    cancel,
    endings,
    schedule,
    sweeper,
    watching,
)
from delaytasks.backoff import Backoff
from delaytasks.exceptions import LeaseLost, Reserved, TTRExceeded
from delaytasks.models import Job, JobEvent, Topic

from .conftest import Boom, effect, effects, outcomes, state_of

# -- the way of one job -------------------------------------------------------------------------


def test_a_job_runs_when_due_never_before_and_once(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    db_clock.advance(ms=4_999)
    stage.rung.append("t")
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    stage.rung.append("t")
    stage.go()
    assert keys == ["a"]
    assert state_of("a") == "finished"


def test_the_handler_sees_the_whole_job(stage, db_clock):
    seen = []
    stage.handler("t", ttr=30)(seen.append)
    job = schedule("t", key="a", delay=1, body={"order": 7})
    db_clock.advance(seconds=3)
    stage.go()
    (attempt,) = seen
    assert (attempt.id, attempt.topic, attempt.key, attempt.body) == (job.pk, "t", "a", {"order": 7})
    assert (attempt.attempt, attempt.failures, attempt.due_at) == (1, 0, job.due_at)
    assert (attempt.deadline - attempt.due_at).total_seconds() == 32


def test_its_event_says_how_late_it_was_and_who_ran_it(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=1)
    db_clock.advance(ms=1_250)
    stage.go()
    event = JobEvent.objects.get()
    assert (event.outcome, event.attempt, event.late_ms, event.worker) == ("finished", 1, 250, "w1")


def test_the_oldest_due_runs_first(stage, db_clock):
    keys = stage.recorder("t")
    for n in (3, 1, 2, 5, 4):
        schedule("t", key=f"k{n}", delay=n)
    db_clock.advance(seconds=10)
    worker_batch = stage.take("t", 5)
    assert [attempt.key for attempt in worker_batch] == ["k1", "k2", "k3", "k4", "k5"]
    assert keys == []


def test_effects_and_finish_are_one_commit(stage):
    @stage.handler("t", max_attempts=1)
    def half(job):
        effect("effect-1")
        raise Boom("after the effect")

    schedule("t", key="a", delay=0)
    stage.go()
    assert effects() == []
    assert state_of("a") == "dead"


def test_a_topic_without_a_handler_here_is_left_alone(stage, db_clock):
    Topic.objects.create(name="elsewhere")
    schedule("elsewhere", key="a", delay=0)
    stage.go()
    assert stage.run("elsewhere") == 0
    assert state_of("a") == "delayed"
    keys = stage.recorder("elsewhere")
    db_clock.advance(seconds=2)
    stage.go()
    assert keys == ["a"]


def test_a_paused_topic_waits_and_goes_on(stage, db_clock):
    keys = stage.recorder("t")
    Topic.objects.create(name="t", paused=True)
    schedule("t", key="a", delay=0)
    stage.go()
    stage.run("t")
    assert keys == []
    Topic.objects.update(paused=False)
    bells.forget_terms()
    db_clock.advance(seconds=2)
    stage.go()
    assert keys == ["a"]


# -- snooze, retry, dead ------------------------------------------------------------------------


def test_a_snooze_asks_again_later_and_costs_no_attempt(stage, db_clock):
    calls = []

    @stage.handler("t", max_attempts=1)
    def poll(job):
        calls.append(job.attempt)
        return Snooze(10) if len(calls) < 4 else None

    schedule("t", key="a", delay=0)
    for _ in range(4):
        stage.go()
        db_clock.advance(seconds=10)
    assert calls == [1, 2, 3, 4]
    assert outcomes("a") == ["snoozed", "snoozed", "snoozed", "finished"]
    assert Job.objects.get().failures == 0


def test_a_failing_job_backs_off_exponentially_and_dies_with_its_traceback(stage, db_clock):
    @stage.handler("t", max_attempts=3, backoff=Backoff(base_seconds=10, factor=3, jitter=0))
    def fail(job):
        raise Boom("no such order")

    schedule("t", key="a", delay=0)
    stage.go()
    for wait_ms in (10_000, 30_000):
        db_clock.advance(ms=wait_ms - 1)
        stage.go()
        before = JobEvent.objects.count()
        db_clock.advance(ms=1)
        stage.go()
        assert JobEvent.objects.count() == before + 1
    assert outcomes("a") == ["failed", "failed", "dead"]
    job = Job.objects.get()
    assert (job.attempt, job.failures) == (3, 3)
    assert job.error.endswith("Boom: no such order")
    assert "Traceback" in JobEvent.objects.filter(outcome="dead").get().error


def test_a_long_traceback_is_shortened_and_a_nul_in_it_does_no_harm(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom("x\x00y" * 20_000)

    schedule("t", key="a", delay=0)
    stage.go()
    error = JobEvent.objects.get().error
    assert len(error) < 5_000
    assert "left out" in error


def test_retry_chooses_its_own_delay(stage, db_clock):
    calls = []

    @stage.handler("t")
    def once(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise Retry("the bank is closed", delay=7)

    schedule("t", key="a", delay=0)
    stage.go()
    assert Job.objects.get().due_ms == db_clock.now_ms + 7_000
    assert Job.objects.get().error.endswith("the bank is closed")
    db_clock.advance(seconds=7)
    stage.go()
    assert outcomes("a") == ["failed", "finished"]


def test_on_dead_runs_with_the_job_and_a_failure_in_it_changes_nothing(stage):
    buried = []

    def bury(job):
        buried.append(job.key)
        effect(f"effect-{job.key}")
        if job.key == "b":
            raise Boom

    @stage.handler("t", max_attempts=1, on_dead=bury)
    def fail(job):
        raise Boom

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert sorted(buried) == ["a", "b"]
    assert effects() == ["effect-a"]
    assert (state_of("a"), state_of("b")) == ("dead", "dead")


def test_sys_exit_in_a_handler_is_its_failure_not_the_workers_end(stage):
    @stage.handler("t", max_attempts=1)
    def leave(job):
        raise SystemExit(3)

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"


def test_nonsense_returned_is_said_in_the_log_and_the_job_is_finished(stage, caplog):
    stage.handler("t")(lambda job: "done!")
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.WARNING):
        stage.go()
    assert state_of("a") == "finished"
    assert "done!" in caplog.text


def test_a_handler_that_closes_the_database_connection_fails_and_the_worker_goes_on(stage):
    keys = stage.recorder("u")

    @stage.handler("t", max_attempts=1)
    def close(job):
        connection.close()

    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    assert "closed" in Job.objects.get(key="a").error.splitlines()[-1], "it says what was wrong"
    assert keys == ["b"]


# -- the fence ----------------------------------------------------------------------------------


def test_a_late_finisher_is_refused_and_its_effects_rolled_back(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (late,) = stage.take("t")
    db_clock.advance(seconds=6)
    stage.go()
    assert outcomes("a") == ["expired", "finished"]
    with pytest.raises(LeaseLost), transaction.atomic():
        effect("effect-late")
        late.finish()
    assert effects() == []
    assert outcomes("a") == ["expired", "finished"]


def test_a_handler_that_is_overtaken_leaves_no_effects(stage, db_clock):
    calls = []

    @stage.handler("t", ttr=5)
    def slow(job):
        calls.append(job.attempt)
        effect(f"effect-{job.attempt}")
        if job.attempt == 1:  # the fence: another attempt has begun, as it would after the TTR
            with connection.cursor() as cursor:
                cursor.execute("UPDATE delaytasks_job SET attempt = 2, failures = 1")

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1]
    assert effects() == []


def test_a_lost_worker_is_noticed_when_its_ttr_is_over_and_counts_as_a_failure(stage, db_clock):
    keys = stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    stage.take("t")  # and never heard of again
    db_clock.advance(ms=4_999)
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    assert keys == ["a"]
    job = Job.objects.get()
    assert (job.attempt, job.failures) == (2, 1)


def test_a_job_that_loses_every_worker_dies(stage, db_clock):
    buried = []
    keys = stage.recorder("t", ttr=5, max_attempts=2, on_dead=lambda job: buried.append(job.key))
    schedule("t", key="a", delay=0)
    for _ in range(2):
        assert len(stage.take("t")) == 1
        db_clock.advance(seconds=6)
        sweeper.sweep()
    stage.go()
    assert (state_of("a"), outcomes("a")) == ("dead", ["expired", "dead"])
    assert (keys, buried) == ([], ["a"])


def test_touch_begins_the_ttr_anew(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    db_clock.advance(seconds=4)
    held.touch()
    db_clock.advance(seconds=4)
    stage.go()
    held.finish()
    assert outcomes("a") == ["finished"]


def test_a_lease_renewed_at_the_last_moment_is_not_taken_back(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    db_clock.advance(seconds=6)
    seen_over = watching.stand("default", [held.id])
    held.touch()  # between the look and the statement
    assert endings.expire("default", seen_over) == 0
    held.finish()
    assert outcomes("a") == ["finished"]


def test_touch_of_a_lost_job_is_refused(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    db_clock.advance(seconds=6)
    stage.go()
    with pytest.raises(LeaseLost):
        held.touch()


def test_an_interrupted_handler_is_taken_back_at_once_and_leaves_no_effects(stage, db_clock):
    @stage.handler("t", ttr=5, max_attempts=2)
    def hang(job):
        effect(f"effect-{job.attempt}")
        if job.attempt == 1:
            db_clock.advance(seconds=5)
            raise TTRExceeded

    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=1)
    stage.go()
    assert outcomes("a") == ["expired", "finished"]
    assert effects() == ["effect-2"]


# -- work outside a transaction -----------------------------------------------------------------


def test_without_atomic_no_transaction_is_open_until_finishing(stage):
    seen = []

    @stage.handler("t", atomic=False)
    def outside(job):
        seen.append(connection.in_atomic_block)
        with job.finishing():
            seen.append(connection.in_atomic_block)
            effect("effect-1")

    schedule("t", key="a", delay=0)
    stage.go()
    assert seen == [False, True]
    assert effects() == ["effect-1"]
    assert outcomes("a") == ["finished"]


def test_without_finishing_the_job_is_finished_after_the_handler(stage):
    stage.handler("t", atomic=False)(lambda job: None)
    schedule("t", key="a", delay=0)
    stage.go()
    assert outcomes("a") == ["finished"]


def test_finishing_is_fenced_and_rolls_back_what_a_late_one_did(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (late,) = stage.take("t")
    db_clock.advance(seconds=6)
    stage.go()
    with pytest.raises(LeaseLost), late.finishing():
        effect("effect-late")
    assert effects() == []


def test_a_failure_inside_finishing_retries_the_whole(stage, db_clock):
    @stage.handler("t", atomic=False, backoff=Backoff(base_seconds=1, jitter=0))
    def outside(job):
        with job.finishing():
            effect(f"effect-{job.attempt}")
            if job.attempt == 1:
                raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=1)
    stage.go()
    assert outcomes("a") == ["failed", "finished"]
    assert effects() == ["effect-2"]


def test_finishing_and_then_a_snooze_is_a_mistake_that_is_said(stage, caplog):
    @stage.handler("t", atomic=False, max_attempts=1)
    def both(job):
        with job.finishing():
            pass
        return Snooze(5)

    schedule("t", key="a", delay=0)
    stage.go()
    assert outcomes("a") == ["finished"]


# -- its own next one ---------------------------------------------------------------------------


def test_a_handler_may_schedule_its_own_next_one_in_the_same_commit(stage, db_clock):
    calls = []

    @stage.handler("t")
    def daily(job):
        schedule("t", key=job.key, delay=60, body={"n": job.body["n"] + 1})
        calls.append(job.body["n"])

    schedule("t", key="a", delay=0, body={"n": 1})
    stage.go()
    assert Job.objects.live().get().body == {"n": 2}
    db_clock.advance(seconds=60)
    stage.go()
    assert calls == [1, 2]
    assert Job.objects.filter(key="a").count() == 3


def test_the_next_one_is_gone_with_a_handler_that_fails_after_scheduling_it(stage, db_clock):
    @stage.handler("t", max_attempts=1)
    def daily(job):
        schedule("t", key=job.key, delay=60)
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    assert Job.objects.count() == 1


def test_outside_a_transaction_the_next_one_needs_finishing(stage):
    said = []

    @stage.handler("t", atomic=False)
    def daily(job):
        try:
            schedule("t", key=job.key, delay=60)
        except Reserved as error:
            said.append(str(error))
        with job.finishing():
            schedule("t", key=job.key, delay=60)

    schedule("t", key="a", delay=0)
    stage.go()
    assert "finishing" in said[0]
    assert Job.objects.live().count() == 1
    assert Job.objects.count() == 2


def test_a_handler_that_cancels_itself_is_told_that_it_runs(stage):
    said = []
    stage.handler("t")(lambda job: said.append(cancel("t", key=job.key).value))
    schedule("t", key="a", delay=0)
    stage.go()
    assert said == ["running"]
    assert state_of("a") == "finished"
