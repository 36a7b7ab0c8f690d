"""Concurrent calls on real connections: exactly one wins, and the other one gets a true answer."""

import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction

from delaytasks import cancel, mirror, reschedule, retry_dead, run_now, schedule, schedule_many
from delaytasks.db import retries, transitions
from delaytasks.db.transitions import NewJob
from delaytasks.exceptions import DelaytasksError, KeyIsLive, LeaseLost
from delaytasks.jobs import control
from delaytasks.jobs.control import CancelResult, cancel_by_id, postpone_job
from delaytasks.maintenance import sweep
from delaytasks.models import Job, JobEvent
from delaytasks.outcomes import Result
from delaytasks.states import State
from delaytasks.worker import runner
from delaytasks.worker.attempt import RunningJob
from tests.support.locks import other_transaction

ROUNDS = 12


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls in threads that start together. Return their results or the exceptions of delaytasks."""
    barrier = threading.Barrier(len(calls))
    results: list[Any] = [None] * len(calls)

    def run(n: int, call: Callable[[], Any]) -> None:
        try:
            connection.ensure_connection()
            barrier.wait(timeout=30)
            results[n] = call()
        except DelaytasksError as error:
            results[n] = error
        except BaseException as error:
            results[n] = error
            barrier.abort()
        finally:
            connection.close()

    threads = [threading.Thread(target=run, args=(n, call)) for n, call in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    unexpected = [a for a in results if isinstance(a, BaseException) and not isinstance(a, DelaytasksError)]
    assert not unexpected, unexpected
    return results


def claim(job: Job) -> list[Any]:
    """Claim the job by its id, as a worker does after reserving it."""
    return [RunningJob(c, "default", "w") for c in transitions.claim("default", job.topic, [job.id], "w")]


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_cancel_or_the_claim_wins(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    result, claimed = at_once(lambda: cancel("t", key="a"), lambda: claim(job))
    job.refresh_from_db()
    if result is CancelResult.CANCELLED:
        assert (job.state, claimed) == (State.CANCELLED, [])
    else:
        assert result is CancelResult.RUNNING
        assert (job.state, len(claimed)) == (State.RESERVED, 1)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_reschedule_or_the_claim_wins(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    moved, claimed = at_once(lambda: reschedule("t", "a", delay=60), lambda: claim(job))
    job.refresh_from_db()
    if isinstance(moved, DelaytasksError):
        assert (job.state, len(claimed)) == (State.RESERVED, 1)
    else:
        assert (job.state, claimed) == (State.DELAYED, [])


def test_one_of_many_claims_gets_the_job(stage):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    claims = at_once(*[lambda: claim(job)] * 4)
    assert sum(len(claimed) for claimed in claims) == 1
    job.refresh_from_db()
    assert job.attempt == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_one_of_many_schedules_creates_the_job(stage, round_):
    stage.recorder("t")
    results = at_once(*[lambda: schedule("t", key="a", delay=60)] * 3)
    assert sorted(type(result).__name__ for result in results) == ["Job", "KeyIsLive", "KeyIsLive"]


def test_keep_and_replace_at_once_end_with_one_live_job(stage):
    stage.recorder("t")
    results = at_once(
        *[lambda: schedule("t", key="a", delay=60, on_conflict="keep")] * 2,
        *[lambda: schedule("t", key="a", delay=90, on_conflict="replace")] * 2,
    )
    assert all(isinstance(result, Job) for result in results)
    assert Job.objects.live().count() == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_finish_or_the_expiry_wins(stage, db_clock, round_):
    stage.recorder("t", ttr=5)
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")
    db_clock.advance(seconds=6)
    finished, taken_back = at_once(held.finish, lambda: sweep.take_back_expired("default"))
    job = Job.objects.get()
    if isinstance(finished, LeaseLost):
        assert (job.state, taken_back) == (State.DELAYED, 1)
    else:
        assert (job.state, taken_back) == (State.FINISHED, 0)
    assert JobEvent.objects.count() == 1


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_either_the_retry_or_the_new_job_gets_the_key(stage, round_):
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
    result, moved = at_once(lambda: cancel("t", key="a"), lambda: run_now("t", "a"))
    stage.go()
    assert result is CancelResult.CANCELLED
    assert keys == []
    assert Job.objects.get().state == State.CANCELLED
    assert isinstance(moved, Job | DelaytasksError)


@pytest.mark.only_on("postgresql")
def test_a_locked_job_does_not_block_the_others(stage):
    keys = stage.recorder("t")
    for n in range(5):
        schedule("t", key=f"k{n}", delay=0)
    with other_transaction(lambda: Job.objects.select_for_update().get(key="k2")):
        stage.mover.move_due()
        runner._paces["t"] = runner.Pace(size=1)  # so that the locked job is alone in its batch
        stage.run("t")
        assert sorted(keys) == ["k0", "k1", "k3", "k4"]


@pytest.mark.only_on("postgresql")
def test_a_locked_job_runs_a_moment_after_its_lock_is_released(stage, db_clock):
    keys = stage.recorder("t")
    schedule("t", key="a", delay=0)
    with transaction.atomic():
        Job.objects.select_for_update().get(key="a")
        (held,) = at_once(lambda: stage.take("t"))
        assert held == []
    db_clock.advance(ms=100)
    stage.dispatched.append("t")
    stage.go()
    assert keys == ["a"]


def test_concurrent_runs_share_a_backlog_and_run_each_job_once(stage):
    seen: list[str] = []
    lock = threading.Lock()

    @stage.handler("t", concurrency=4)
    def record(job):
        with lock:
            seen.append(job.key)

    for n in range(60):
        schedule("t", key=f"k{n}", delay=0)
    stage.mover.move_due()
    at_once(*[lambda: stage.run("t")] * 3)
    stage.dispatched.append("t")
    stage.go()
    assert sorted(seen) == sorted(f"k{n}" for n in range(60))
    assert mirror.choose("default").ready_counts(["t"]) == {}


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_two_postponements_at_once_add_up(stage, round_):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    at_once(lambda: postpone_job(job.pk, 60), lambda: postpone_job(job.pk, 60))
    assert Job.objects.get().due_ms == job.due_ms + 120_000


@pytest.mark.only_on("postgresql")
def test_a_postponement_counts_from_the_due_time_of_the_locked_row(stage, monkeypatch):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    find = control.Numbered.find_live

    def find_then_reschedule(target: Any, using: str) -> Any:
        row = find(target, using)
        at_once(lambda: reschedule("t", "a", delay=864_000))
        return row

    monkeypatch.setattr(control.Numbered, "find_live", find_then_reschedule)
    postponed = postpone_job(job.pk, 60)
    moved, again = JobEvent.objects.order_by("id").values_list("next_due_ms", flat=True)
    assert again == moved + 60_000 == postponed.due_ms


def test_of_two_concurrent_cancels_one_reports_that_it_cancelled_the_job(stage):
    stage.recorder("t")
    job = schedule("t", key="a", delay=3600)
    results = at_once(lambda: cancel_by_id(job.pk, by="anna"), lambda: cancel_by_id(job.pk, by="bob"))
    (actor,) = JobEvent.objects.values_list("actor", flat=True)
    already = Result.ALREADY_CANCELLED
    assert results == ([Result.CANCELLED, already] if actor == "anna" else [already, Result.CANCELLED])


@pytest.mark.only_on("postgresql")
def test_lists_that_replace_the_same_jobs_in_different_orders_do_not_deadlock(stage, monkeypatch):
    """Each locks the rows in the order of their ids, so no retry is needed."""
    stage.recorder("t")
    monkeypatch.setattr(retries, "TRIES", 1)
    keys = [f"{n}" for n in range(400)]
    schedule_many([{"topic": "t", "key": key, "delay": 60} for key in random.Random(1).sample(keys, len(keys))])
    rows = {job.id: NewJob("t", job.key, None, 90_000, 1_000, "{}") for job in Job.objects.all()}

    def replace(ids: list[int]) -> int:
        return sum(len(transitions.replace_delayed("default", {i: rows[i] for i in ids})) for _ in range(15))

    ids = sorted(rows)
    assert at_once(*[lambda: replace(ids), lambda: replace(ids[::-1])] * 3) == [15 * len(ids)] * 6
