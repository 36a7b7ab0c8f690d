"""Two sides at once, on real connections: exactly one wins, and the other is told."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from delaytasks import cancel, changing, engine, reschedule, retry_dead, run_now, schedule, statements, sweeper, worker
from delaytasks.attempt import Attempt
from delaytasks.changing import CancelResult, call_off, postpone_job
from delaytasks.exceptions import DelaytasksError, KeyIsLive, LeaseLost
from delaytasks.models import Job, JobEvent
from delaytasks.states import State

ROUNDS = 12


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together; their answers, or the exceptions of ours that they raised."""
    barrier = threading.Barrier(len(calls))
    answers: list[Any] = [None] * len(calls)

    def run(n: int, call: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=30)
            answers[n] = call()
        except DelaytasksError as error:
            answers[n] = error
        except BaseException as error:
            answers[n] = error
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n, call)) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, DelaytasksError)]
    assert not unexpected, unexpected
    return answers


def claim(job: Job) -> list[Any]:
    """Take the job by its id, as a worker does after reserving it."""
    return [Attempt(c, "default", "w") for c in statements.claim("default", job.topic, [job.id], "w")]


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_cancel_or_the_claim_wins(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    said, taken = at_once(lambda: cancel("t", key="a"), lambda: claim(job))
    job.refresh_from_db()
    if said is CancelResult.CANCELLED:
        assert (job.state, taken) == (State.CANCELLED, [])
    else:
        assert said is CancelResult.RUNNING
        assert (job.state, len(taken)) == (State.RESERVED, 1)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_reschedule_or_the_claim_wins(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    moved, taken = at_once(lambda: reschedule("t", "a", delay=60), lambda: claim(job))
    job.refresh_from_db()
    if isinstance(moved, DelaytasksError):
        assert (job.state, len(taken)) == (State.RESERVED, 1)
    else:
        assert (job.state, taken) == (State.DELAYED, [])


def test_only_one_of_many_claims_gets_the_job(stage):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    taken = at_once(*[lambda: claim(job)] * 4)
    assert sum(len(each) for each in taken) == 1
    job.refresh_from_db()
    assert job.attempt == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_only_one_of_many_schedules_makes_the_job(stage, round_):
    stage.recorder("t")
    made = at_once(*[lambda: schedule("t", key="a", delay=60)] * 3)
    assert sorted(type(each).__name__ for each in made) == ["Job", "KeyIsLive", "KeyIsLive"]


def test_keep_and_replace_at_once_end_with_one_live_job(stage):
    stage.recorder("t")
    made = at_once(
        *[lambda: schedule("t", key="a", delay=60, on_conflict="keep")] * 2,
        *[lambda: schedule("t", key="a", delay=90, on_conflict="replace")] * 2,
    )
    assert all(isinstance(each, Job) for each in made)
    assert Job.objects.live().count() == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_finish_or_the_expiry_wins(stage, db_clock, round_):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    db_clock.advance(seconds=6)
    finished, taken_back = at_once(held.finish, lambda: sweeper.take_back_expired("default"))
    job = Job.objects.get()
    if isinstance(finished, LeaseLost):
        assert (job.state, taken_back) == (State.DELAYED, 1)
    else:
        assert (job.state, taken_back) == (State.FINISHED, 0)
    assert JobEvent.objects.count() == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_retry_or_the_new_promise_gets_the_key(stage, round_):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise ValueError

    schedule("t", key="a", delay=0)
    stage.go()
    answers = at_once(lambda: retry_dead("t", "a"), lambda: schedule("t", key="a", delay=60))
    assert sum(isinstance(answer, KeyIsLive) for answer in answers) == 1
    assert Job.objects.live().count() == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_run_now_and_cancel_at_once_agree_with_the_row(stage, round_):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=60)
    said, moved = at_once(lambda: cancel("t", key="a"), lambda: run_now("t", "a"))
    stage.go()
    assert said is CancelResult.CANCELLED
    assert keys == []
    assert Job.objects.get().state == State.CANCELLED
    assert isinstance(moved, Job | DelaytasksError)


@pytest.mark.only_on("postgresql")
def test_a_row_locked_by_a_payment_does_not_hold_up_the_others(stage):
    keys = stage.recorder("t")
    for n in range(5):
        schedule("t", key=f"k{n}", delay=0)
    locked, release = threading.Event(), threading.Event()

    def pay() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(key="k2")
            locked.set()
            release.wait(timeout=30)

    thread = threading.Thread(target=lambda: at_once(pay))
    thread.start()
    try:
        locked.wait(timeout=30)
        stage.mover.move_due()
        worker._paces["t"] = worker.Pace(size=1)  # so that the locked one is alone in its batch
        stage.run("t")
        assert sorted(keys) == ["k0", "k1", "k3", "k4"]
    finally:
        release.set()
        thread.join()


@pytest.mark.only_on("postgresql")
def test_the_locked_row_runs_a_moment_after_its_lock_is_gone(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=0)
    with transaction.atomic():
        Job.objects.select_for_update().get(key="a")
        (taken,) = at_once(lambda: stage.take("t"))
        assert taken == []
    db_clock.advance(ms=100)
    stage.rung.append("t")
    stage.go()
    assert keys == ["a"]


def test_concurrent_runs_share_a_backlog_and_run_each_job_once(stage):
    seen: list[str] = []
    lock = threading.Lock()

    @stage.handler("t", concurrency=4)
    def note(job):
        with lock:
            seen.append(job.key)

    for n in range(60):
        schedule("t", key=f"k{n}", delay=0)
    stage.mover.move_due()
    at_once(*[lambda: stage.run("t")] * 3)
    stage.rung.append("t")
    stage.go()
    assert sorted(seen) == sorted(f"k{n}" for n in range(60))
    assert engine.places("default").ready_counts(["t"]) == {}


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_postponements_at_once_add_up(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    at_once(lambda: postpone_job(job.pk, 60), lambda: postpone_job(job.pk, 60))
    assert Job.objects.get().due_ms == job.due_ms + 120_000


@pytest.mark.only_on("postgresql")
def test_a_postponement_counts_from_where_the_job_is_when_it_is_moved(stage, monkeypatch):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    look = changing._live_by_id

    def looked_at_too_early(using: str, job_id: int) -> Any:
        seen = look(using, job_id)
        at_once(lambda: reschedule("t", "a", delay=864_000))
        return seen

    monkeypatch.setattr(changing, "_live_by_id", looked_at_too_early)
    postponed = postpone_job(job.pk, 60)
    moved, again = JobEvent.objects.order_by("id").values_list("next_due_ms", flat=True)
    assert again == moved + 60_000 == postponed.due_ms


def test_of_two_who_cancel_a_job_one_hears_that_it_was_their_doing(stage):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    said = at_once(lambda: call_off(job.pk, by="anna"), lambda: call_off(job.pk, by="bob"))
    assert [each.answer for each in said] == [CancelResult.CANCELLED] * 2
    (doer,) = JobEvent.objects.values_list("actor", flat=True)
    assert [each.mine for each in said] == [doer == "anna", doer == "bob"]
