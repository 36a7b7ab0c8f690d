"""How a job ends without being finished: skipped by its handler, expired, given up on, cancelled when dead."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import Retry, Skip, cancel, handler, mirror, reschedule, retry_dead, schedule, schedule_many
from delaytasks.api.batching import attempts
from delaytasks.api.batching.attempts import Reserve
from delaytasks.exceptions import BadDelay, BadInput, NotDead, TTRExceeded
from delaytasks.models import Job, JobEvent
from delaytasks.outcomes import ErrorCode
from delaytasks.states import State
from delaytasks.worker import claim, completion, runner

from ..support.stage import effect, effects, outcomes, state_of


@pytest.mark.on_both
def test_a_skipped_job_is_cancelled_with_its_reason_and_its_effects_are_committed(stage):
    @stage.handler("t")
    def nothing_to_do(job):
        effect("effect")
        return Skip("the order is paid")

    schedule("t", "a", delay=0)
    stage.go()
    event = JobEvent.objects.get()
    assert (state_of("a"), event.outcome, event.reason) == ("cancelled", "skipped", "the order is paid")
    assert effects() == ["effect"]
    assert Job.objects.get().failures == 0


@pytest.mark.parametrize("one_by_one", [True, False], ids=["mapping", "all"])
def test_a_batch_handler_skips_jobs(stage, one_by_one):
    @stage.handler("t", batch=5)
    def some(jobs):
        return {jobs[0].id: Skip("no")} if one_by_one else Skip("no")

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(2))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=2)
    stage.run("t")
    assert (outcomes("k0"), outcomes("k1")) == (["skipped"], ["finished"] if one_by_one else ["skipped"])


@pytest.mark.parametrize("reason", ["two\nlines", "x" * 256, 3])
def test_a_reason_that_cannot_be_stored_is_refused(reason):
    with pytest.raises(BadInput, match="Skip is"):
        Skip(reason)


@pytest.mark.on_both
def test_a_job_that_cannot_begin_in_time_is_skipped_and_its_handler_not_called(stage, db_clock):
    keys = stage.recorder("t", expires=60)
    schedule_many({"topic": "t", "key": key, "delay": delay} for key, delay in (("late", 0), ("in time", 30)))
    db_clock.advance(seconds=61)
    stage.go()
    assert keys == ["in time"]
    assert (outcomes("late"), state_of("late")) == (["skipped"], "cancelled")
    assert JobEvent.objects.get(job__key="late").error == ErrorCode.TOO_LATE


class Unknown(Exception):
    pass


class Refused(Unknown):
    pass


@pytest.mark.parametrize(
    ("options", "error", "outcome"),
    [
        pytest.param({"give_up_on": Refused}, Refused(), "dead", id="give up"),
        pytest.param({"give_up_on": Refused}, Unknown(), "failed", id="not this"),
        pytest.param({"retry_on": (Refused, OSError)}, Refused(), "failed", id="retry"),
        pytest.param({"retry_on": (Refused, OSError)}, Unknown(), "dead", id="nothing else"),
        pytest.param({"retry_on": Refused}, Retry("later"), "failed", id="a Retry is always retried"),
        pytest.param({"retry_on": Unknown, "give_up_on": Refused}, Refused(), "dead", id="give up wins"),
    ],
)
def test_an_exception_decides_whether_a_job_is_retried(stage, options, error, outcome):
    @stage.handler("t", **options)
    def fails(job):
        raise error

    schedule("t", "a", delay=0)
    stage.mover.move_due()
    stage.run("t")
    assert outcomes("a") == [outcome]


@pytest.mark.parametrize("option", ["retry_on", "give_up_on"])
@pytest.mark.parametrize("given", ["OSError", (OSError, KeyboardInterrupt), OSError()])
def test_only_exception_classes_are_accepted(option, given):
    with pytest.raises(ValueError, match=f"{option} contains"):
        handler("t", **{option: given})


@pytest.mark.on_both
def test_a_dead_job_that_is_cancelled_cannot_be_retried(stage):
    @stage.handler("t", max_attempts=1)
    def fails(job):
        raise Unknown

    schedule("t", "a", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    assert cancel("t", "a", by="ann", reason="refunded by hand") == "cancelled"
    event = JobEvent.objects.latest("id")
    assert (state_of("a"), event.outcome, event.actor, event.reason) == (
        "cancelled", "cancelled", "ann", "refunded by hand",
    )  # fmt: skip
    assert cancel("t", "a") == "cancelled", "by an earlier call"
    with pytest.raises(NotDead):
        retry_dead("t", "a")


@pytest.mark.only_on("postgresql")  # SQLite has one writer: nobody else could cancel meanwhile
@pytest.mark.parametrize("atomic", [True, False])
def test_a_cancel_with_fence_beats_a_running_handler_if_that_is_atomic(stage, atomic):
    answers = []

    @stage.handler("t", atomic=atomic, max_attempts=1)
    def running(job):
        effect("effect")
        answers.append(in_another_connection(lambda: cancel("t", "a", running="fence", by="ann")))

    schedule("t", "a", delay=0)
    stage.go()
    if atomic:
        assert (answers, state_of("a"), outcomes("a"), effects()) == (["cancelled"], "cancelled", ["cancelled"], [])
    else:
        assert (answers, state_of("a"), effects()) == (["running"], "finished", ["effect"])
    assert Job.objects.get().failures == 0


def in_another_connection(call):
    """Return call(), made in a thread of its own. On SQLite, which has one writer, in this one."""
    if connection.vendor == "sqlite":
        return call()
    results: list = []

    def run():
        try:
            results.append(call())
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return results[0]


def test_a_fence_does_not_touch_a_job_that_is_not_running(stage):
    keys = stage.recorder("t")
    schedule("t", "a", delay=0)
    assert cancel("t", "a", running="fence") == "cancelled"
    schedule("t", "b", delay=0)
    stage.go()
    assert cancel("t", "b", running="fence") == "already finished"
    assert keys == ["b"]


def test_another_value_for_running_is_refused(stage):
    with pytest.raises(BadInput, match="use 'leave' or 'fence'"):
        cancel("t", "a", running="kill")


@pytest.mark.on_both
def test_a_touch_in_a_transaction_locks_no_row_of_the_topic(stage, db_clock):
    """Without Redis the run slots are in the Topic row: nobody else could start a run of this topic."""
    slots = []

    @stage.handler("t", ttr=5)
    def touches(job):
        for _ in range(3):
            db_clock.advance(seconds=3)
            job.touch()
        slots.append(in_another_connection(lambda: mirror.choose("default").take_slot("t", "other", 0, 2**53, 9)))

    schedule("t", "a", delay=0)
    stage.mover.move_due()
    stage.run("t")
    assert slots == [True]
    assert outcomes("a") == ["finished"]


@pytest.mark.on_both
def test_the_event_of_an_interrupted_attempt_tells_where_the_handler_was(stage, db_clock):
    @stage.handler("t", ttr=5, max_attempts=1)
    def waits_for_a_supplier(job):
        db_clock.advance(seconds=6)
        raise TTRExceeded("The handler ran longer than its TTR and was interrupted.")

    schedule("t", "a", delay=0)
    stage.go()
    assert (state_of("a"), Job.objects.get().error) == ("dead", ErrorCode.TIMED_OUT)
    assert "in waits_for_a_supplier" in JobEvent.objects.get().error


@pytest.mark.on_both
@pytest.mark.parametrize(
    ("own", "late_seconds", "outcome"),
    [(60, 61, "skipped"), (60, 59, "finished"), (None, 3600, "finished")],
    ids=["too late", "in time", "never expires"],
)
def test_a_job_with_an_expiry_of_its_own_ends_as_skipped_after_it(stage, db_clock, own, late_seconds, outcome):
    keys = stage.recorder("t")
    job = schedule("t", "a", delay=10, expires=own)
    assert job.expires_ms == (own and own * 1000)
    db_clock.advance(seconds=10 + late_seconds)
    stage.go()
    assert (outcomes("a"), keys) == ([outcome], ["a"] if outcome == "finished" else [])
    if outcome == "skipped":
        assert (state_of("a"), JobEvent.objects.get().error) == ("cancelled", ErrorCode.TOO_LATE)


@pytest.mark.on_both
def test_the_expiry_of_a_job_is_used_instead_of_the_handlers(stage, db_clock):
    keys = stage.recorder("t", expires=60)
    items = [{"topic": "t", "key": "long", "delay": 0, "expires": timedelta(hours=2)},
             {"topic": "t", "key": "short", "delay": 0, "expires": 5},
             {"topic": "t", "key": "handler's", "delay": 0}]  # fmt: skip
    schedule_many(items)
    db_clock.advance(seconds=30)
    stage.go()
    assert sorted(keys) == ["handler's", "long"]
    schedule_many(items)
    db_clock.advance(seconds=3600)
    stage.go()
    assert sorted(keys) == ["handler's", "long", "long"]


@pytest.mark.on_both
def test_a_replaced_job_has_the_new_expiry_and_a_moved_one_keeps_its_own(stage, db_clock):
    keys = stage.recorder("t")
    for key in ("none", "new", "moved"):
        schedule("t", key, delay=0, expires=60)
    schedule("t", "none", delay=0, on_conflict="replace")
    schedule("t", "new", delay=0, expires=600, on_conflict="replace")
    reschedule("t", "moved", delay=300)
    db_clock.advance(seconds=330)
    stage.go()
    assert sorted(keys) == ["moved", "new", "none"], "moved: 30 s after its new due time"


@pytest.mark.parametrize("expires", [0, -1, "1h", timedelta(days=400), True])
def test_an_expiry_that_makes_no_sense_is_refused(stage, expires):
    stage.recorder("t")
    with pytest.raises(BadDelay, match="expires is"):
        schedule("t", "a", delay=0, expires=expires)
    with pytest.raises(BadDelay, match="Item 0: expires is"):
        schedule_many([{"topic": "t", "key": "a", "delay": 0, "expires": expires}])
    with pytest.raises(BadDelay, match="expires is"):
        handler("t", expires=expires)


@pytest.mark.on_both
def test_an_expired_job_is_not_given_to_a_consumer(stage, db_clock):
    stage.recorder("t")
    schedule("t", "a", delay=0, expires=5)
    db_clock.advance(seconds=6)
    assert stage.take("t") == []
    assert outcomes("a") == ["skipped"]


@pytest.mark.on_both
def test_a_consumer_gets_the_job_behind_many_expired_ones(stage, db_clock, monkeypatch):
    """They are ended in a few statements: other consumers wait for that."""
    monkeypatch.setattr(claim, "TAKE_SECONDS", 30)
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0, "expires": 1} for n in range(50))
    schedule_many({"topic": "t", "key": key, "delay": 1 + n} for n, key in enumerate(("good", "next")))
    db_clock.advance(seconds=6)
    stage.mover.move_due()
    with CaptureQueriesContext(connection) as queries:
        assert [job.key for job in stage.take("t", 1)] == ["good"]
    assert len(queries) < 80
    assert Job.objects.filter(state=State.CANCELLED).count() == 50
    assert [job.key for job in stage.take("t", 1)] == ["next"], "it was claimed with expired ones, and is ready again"


@pytest.mark.on_both
def test_an_expired_job_that_cannot_be_ended_leaves_the_jobs_of_two_consumers_held(stage, db_clock, monkeypatch):
    """Both have a job that was claimed in the transaction in which the end failed."""
    stage.recorder("t")
    schedule("t", "bad", delay=0, expires=1)
    schedule_many({"topic": "t", "key": key, "delay": 1 + n} for n, key in enumerate("ab"))
    db_clock.advance(seconds=6)
    stage.mover.move_due()

    def break_transaction(using, job):
        with connection.cursor() as cursor:
            cursor.execute("SELECT missing FROM delaytasks_job")

    monkeypatch.setitem(completion.after_end, "t", break_transaction)
    dealt = attempts.reserve_group("default", [Reserve("t", 1, "php"), Reserve("t", 1, "go")])
    held = {job.key: job.worker for jobs in dealt for job in jobs}
    assert held == {"a": "php", "b": "go"}
    assert dict(Job.objects.filter(state=State.RESERVED).values_list("key", "worker")) == held


def test_a_handler_cannot_fence_its_own_job(stage):
    answers = []

    @stage.handler("t")
    def handle(job):
        effect("effect")
        answers.append(cancel("t", "a", running="fence"))

    schedule("t", "a", delay=0)
    stage.go()
    assert (answers, state_of("a"), effects()) == (["running"], "finished", ["effect"])


def test_a_retry_whose_class_does_not_call_its_parents_init_uses_the_backoff(stage):
    class BankIsBusy(Retry):
        def __init__(self, bank):
            self.bank = bank

    @stage.handler("t")
    def handle(job):
        raise BankIsBusy("x")

    schedule("t", "a", delay=0)
    stage.go()
    assert (outcomes("a"), Job.objects.get().failures) == (["failed"], 1)
