"""cancel, reschedule and run_now for jobs that are overdue or change concurrently."""

from datetime import timedelta

import pytest

from delaytasks import cancel, reschedule, run_now, schedule, schedule_many
from delaytasks.db import transitions
from delaytasks.exceptions import NotLive
from delaytasks.jobs.control import CancelResult
from delaytasks.models import Job, JobEvent
from delaytasks.worker import leases


def test_a_cancel_also_finds_a_job_that_was_scheduled_while_it_ran(stage, monkeypatch):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    real, raced = transitions.cancel_live, []

    def race(*args, **kwargs):
        if raced:
            return real(*args, **kwargs)
        raced.append(stage.take("t")[0])  # running at the statement; then it ends and schedules its own key again
        missed = real(*args, **kwargs)
        raced[0].finish()
        schedule("t", key="a", delay=60)
        return missed

    monkeypatch.setattr(transitions, "cancel_live", race)
    assert cancel("t", key="a") is CancelResult.CANCELLED
    assert Job.objects.live().count() == 0


def ended_after_it_was_found(monkeypatch, end):
    """Let the live job end between the statement that finds it and the one that changes it."""
    real, ended = transitions.find_live, []

    def race(*args):
        found = real(*args)
        if found and not ended:
            ended.append(end())
        return found

    monkeypatch.setattr(transitions, "find_live", race)


def test_a_job_that_was_cancelled_meanwhile_is_not_said_to_be_running(stage, monkeypatch):
    stage.recorder("t")
    for change in (lambda: reschedule("t", "a", delay=90), lambda: run_now("t", "a")):
        schedule("t", key="a", delay=60, on_conflict="keep")  # the refused change rolls the cancellation back
        with monkeypatch.context() as patched, pytest.raises(NotLive, match="it is finished, cancelled, dead"):
            ended_after_it_was_found(patched, lambda: cancel("t", "a"))
            change()


def test_the_job_that_follows_one_that_ended_meanwhile_is_moved(stage, monkeypatch):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    (held,) = stage.take("t")

    def finish_and_schedule_again():
        held.finish()
        schedule("t", key="a", delay=60)

    ended_after_it_was_found(monkeypatch, finish_and_schedule_again)
    moved = reschedule("t", "a", delay=90)
    assert moved.pk != held.id
    assert moved.due_at - moved.created_at == timedelta(seconds=90)


def test_a_job_that_was_cancelled_meanwhile_is_replaced_by_a_new_one(stage, monkeypatch):
    stage.recorder("t")
    first = schedule("t", key="a", delay=60)
    with monkeypatch.context() as patched:
        ended_after_it_was_found(patched, lambda: cancel("t", "a"))
        job = schedule("t", key="a", delay=90, on_conflict="replace")
    assert (job.is_new, job.pk != first.pk) == (True, True)
    assert Job.objects.live().get().pk == job.pk

    with monkeypatch.context() as patched:
        ended_after_it_was_found(patched, lambda: cancel("t", "a"))
        items = [{"topic": "t", "key": key, "delay": 90} for key in ("a", "b")]
        assert schedule_many(items, on_conflict="replace").created == 2
    assert Job.objects.live().count() == 2


def test_run_now_keeps_the_place_of_an_overdue_job_in_the_queue(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    db_clock.advance(seconds=60)
    assert run_now("t", "a").due_at == job.due_at
    assert reschedule("t", "a", delay=0).due_at == job.due_at


@pytest.mark.on_both
def test_the_event_of_a_fenced_attempt_has_its_start(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    db_clock.advance(seconds=5)
    held = stage.take("t")[0]
    Job.objects.update(fenceable=True)
    db_clock.advance(seconds=2)
    assert cancel("t", key="a", running="fence") == "cancelled"
    event = JobEvent.objects.get(job=held.id)
    assert (event.outcome, event.attempt, event.late_ms, event.ran_ms) == ("cancelled", 1, 5_000, 2_000)


def test_the_cancel_of_a_released_job_is_no_attempt(stage):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    held = stage.take("t")[0]
    leases.release(held.id, held.attempt, using="default")
    assert cancel("t", key="a") == "cancelled"
    event = JobEvent.objects.get(job=held.id, outcome="cancelled")
    assert (event.attempt, event.reserved_ms) == (1, None)
