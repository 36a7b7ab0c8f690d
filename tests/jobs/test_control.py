"""cancel, reschedule and run_now for jobs that are overdue or change concurrently."""

from delaytasks import cancel, reschedule, run_now, schedule
from delaytasks.db import transitions
from delaytasks.jobs.control import CancelResult
from delaytasks.models import Job


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


def test_run_now_keeps_the_place_of_an_overdue_job_in_the_queue(stage, db_clock):
    stage.recorder("t")
    job = schedule("t", key="a", delay=0)
    db_clock.advance(seconds=60)
    assert run_now("t", "a").due_at == job.due_at
    assert reschedule("t", "a", delay=0).due_at == job.due_at
