"""Due jobs run, and the effects of a handler and the finish of its job are one commit."""

import logging

import pytest
from django.db import connection, transaction

from delaytasks import Retry, Snooze, cancel, schedule, topics
from delaytasks.backoff import Backoff
from delaytasks.db import lookups
from delaytasks.exceptions import BadInput, LeaseLost, Reserved, TTRExceeded
from delaytasks.maintenance import sweep
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.worker import completion

from ..support.stage import Boom, effect, effects, outcomes, state_of

# -- one job ------------------------------------------------------------------------------------


def test_a_job_runs_when_due_never_before_and_once(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=5)
    db_clock.advance(ms=4_999)
    stage.dispatched.append("t")
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    stage.dispatched.append("t")
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


def test_the_event_has_the_lateness_and_the_worker(stage, db_clock):
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
    batch = stage.take("t", 5)
    assert [attempt.key for attempt in batch] == ["k1", "k2", "k3", "k4", "k5"]
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
    topics.clear_cache()
    db_clock.advance(seconds=2)
    stage.go()
    assert keys == ["a"]


# -- snooze, retry, dead ------------------------------------------------------------------------


def test_a_snooze_runs_the_handler_again_later_and_is_no_failure(stage, db_clock):
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


def test_the_reason_of_a_snooze_is_in_its_event(stage):
    stage.handler("t")(lambda job: Snooze(10, "the bank is closed"))
    schedule("t", key="a", delay=0)
    stage.go()
    assert JobEvent.objects.get(job__key="a").reason == "the bank is closed"


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 256, None, "\x00"])
def test_a_reason_of_a_snooze_that_is_not_one_line_is_refused(reason):
    with pytest.raises(BadInput, match="Snooze"):
        Snooze(10, reason=reason)


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
    died = []

    def on_dead(job):
        died.append(job.key)
        effect(f"effect-{job.key}")
        if job.key == "b":
            raise Boom

    @stage.handler("t", max_attempts=1, on_dead=on_dead)
    def fail(job):
        raise Boom

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert sorted(died) == ["a", "b"]
    assert effects() == ["effect-a"]
    assert (state_of("a"), state_of("b")) == ("dead", "dead")


def test_sys_exit_in_a_handler_is_its_failure_not_the_workers_end(stage):
    @stage.handler("t", max_attempts=1)
    def leave(job):
        raise SystemExit(3)

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"


@pytest.mark.parametrize("atomic", [True, False])
def test_a_job_that_the_workers_shutdown_interrupts_is_released(stage, atomic):
    begun: list[str] = []

    @stage.handler("t", atomic=atomic, max_attempts=1)
    def leave(job):
        begun.append(job.key)
        raise SystemExit(-241)  # as Celery's pool does

    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    with pytest.raises(SystemExit):
        stage.run("t", stopping=lambda: bool(begun))
    assert (state_of("a"), outcomes("a"), Job.objects.get().failures) == ("delayed", ["released"], 0)


def test_an_unknown_result_is_logged_and_the_job_is_finished(stage, caplog):
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
    assert "closed" in Job.objects.get(key="a").error.splitlines()[-1], "the error names the cause"
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


def test_a_handler_whose_job_was_claimed_again_leaves_no_effects(stage, db_clock):
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


def test_a_dead_worker_is_noticed_when_the_ttr_ends_and_counts_as_a_failure(stage, db_clock):
    keys = stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    stage.take("t")  # this worker dies
    db_clock.advance(ms=4_999)
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    assert keys == ["a"]
    job = Job.objects.get()
    assert (job.attempt, job.failures) == (2, 1)


def test_a_job_that_loses_every_worker_dies(stage, db_clock):
    died = []
    keys = stage.recorder("t", ttr=5, max_attempts=2, on_dead=lambda job: died.append(job.key))
    schedule("t", key="a", delay=0)
    for _ in range(2):
        assert len(stage.take("t")) == 1
        db_clock.advance(seconds=6)
        sweep.sweep()
    stage.go()
    assert (state_of("a"), outcomes("a")) == ("dead", ["expired", "dead"])
    assert (keys, died) == ([], ["a"])


def test_touch_restarts_the_ttr(stage, db_clock):
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
    expired = lookups.get_snapshots("default", [held.id])
    held.touch()  # between the query and the statement
    assert completion.expire("default", expired) == 0
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


def test_a_late_finishing_is_refused_and_its_effects_rolled_back(stage, db_clock):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (late,) = stage.take("t")
    db_clock.advance(seconds=6)
    stage.go()
    with pytest.raises(LeaseLost), late.finishing():
        effect("effect-late")
    assert effects() == []


def test_a_failure_inside_finishing_retries_the_whole_job(stage, db_clock):
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


def test_a_snooze_after_finishing_is_an_error_and_the_job_stays_finished(stage, caplog):
    @stage.handler("t", atomic=False, max_attempts=1)
    def both(job):
        with job.finishing():
            pass
        return Snooze(5)

    schedule("t", key="a", delay=0)
    stage.go()
    assert outcomes("a") == ["finished"]


# -- the next job of the same key ---------------------------------------------------------------


def test_a_handler_can_schedule_its_own_key_again_in_the_same_commit(stage, db_clock):
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


def test_the_next_job_is_rolled_back_if_the_handler_fails_after_scheduling_it(stage, db_clock):
    @stage.handler("t", max_attempts=1)
    def daily(job):
        schedule("t", key=job.key, delay=60)
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    assert Job.objects.count() == 1


def test_without_atomic_a_handler_schedules_its_own_key_inside_finishing(stage):
    errors = []

    @stage.handler("t", atomic=False)
    def daily(job):
        try:
            schedule("t", key=job.key, delay=60)
        except Reserved as error:
            errors.append(str(error))
        with job.finishing():
            schedule("t", key=job.key, delay=60)

    schedule("t", key="a", delay=0)
    stage.go()
    assert "finishing" in errors[0]
    assert Job.objects.live().count() == 1
    assert Job.objects.count() == 2


def test_a_handler_that_cancels_its_own_job_gets_running(stage):
    results = []
    stage.handler("t")(lambda job: results.append(cancel("t", key=job.key).value))
    schedule("t", key="a", delay=0)
    stage.go()
    assert results == ["running"]
    assert state_of("a") == "finished"
