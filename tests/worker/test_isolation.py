"""A job that fails, or ends its process, does not harm the other jobs of its batch."""

import asyncio

import pytest

from delaytasks import schedule_many
from delaytasks.maintenance import sweep
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.worker import claim, group, runner

from ..support.stage import Boom, outcomes, state_of


@pytest.mark.parametrize("error", [asyncio.CancelledError, Boom])
def test_the_other_jobs_of_a_batch_run_whatever_a_handler_raises(stage, error):
    @stage.handler("t", max_attempts=1)
    def some(job):
        if job.key == "k1":
            raise error

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    runner._paces["t"] = runner.Pace(size=3)
    stage.go()
    assert [state_of(f"k{n}") for n in range(3)] == ["finished", "dead", "finished"]


def test_jobs_that_have_not_begun_are_released_even_if_the_worker_process_ends(stage):
    class ProcessEnds(BaseException):
        pass

    @stage.handler("t")
    def end(job):
        raise ProcessEnds

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(3))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=3)
    with pytest.raises(ProcessEnds):
        stage.run("t")
    # Its own attempt counts as failed: a released job would end one process after the other, forever.
    assert list(Job.objects.order_by("id").values_list("state", "failures")) == [(1, 1), (1, 0), (1, 0)]


@pytest.mark.parametrize("options", [{"batch": 50}, {"one_commit": True}], ids=["batch handler", "one commit"])
def test_the_ttr_of_the_other_jobs_does_not_pass_while_they_wait_behind_a_bad_job(
    stage, db_clock, monkeypatch, options
):
    """The batch takes half a TTR before it fails, and so does each single job. The sweep runs all the time."""
    monkeypatch.setattr(group, "time", runner.time)
    monkeypatch.setattr(group, "WAIT_SECONDS", claim.RESERVE_MS / 1000)

    @stage.handler("t", ttr=2, max_attempts=2, **options)
    def slow(jobs):
        called = jobs if isinstance(jobs, list) else [jobs]
        db_clock.advance(ms=1_000)
        stage.seconds += 1.0
        sweep.take_back_expired("default")
        if any(job.key == "bad" for job in called):
            raise Boom

    schedule_many({"topic": "t", "key": key, "delay": 0} for key in ("bad", "k1", "k2", "k3", "k4", "k5"))
    runner._paces["t"] = runner.Pace(size=6)
    for _ in range(12):
        stage.go()
        db_clock.advance(seconds=10)
    assert outcomes("bad")[-1] == "dead"
    for n in range(1, 6):
        assert [o for o in outcomes(f"k{n}") if o != "released"] == ["finished"]
    assert Job.objects.filter(failures__gt=0).count() == 1


def test_a_stop_while_a_failed_batch_runs_singly_releases_the_remaining_jobs(stage):
    begun: list[str] = []

    @stage.handler("t", batch=10)
    def some(jobs):
        if len(jobs) > 1:
            raise Boom
        begun.append(jobs[0].key)

    schedule_many({"topic": "t", "key": f"k{n}", "delay": 0} for n in range(5))
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=5)
    stage.run("t", stopping=lambda: bool(begun))
    assert len(begun) == 1
    assert Job.objects.filter(state=State.RESERVED).count() == 0
    assert Job.objects.filter(failures__gt=0).count() == 0
