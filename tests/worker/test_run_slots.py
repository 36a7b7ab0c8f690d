"""A run slot is kept as long as its job may run."""

import pytest

from delaytasks import schedule
from delaytasks.mirror.base import CallResult
from delaytasks.models import Job
from delaytasks.worker import process_name, runner

from ..support.stage import outcomes


@pytest.mark.parametrize("tracked", [True, False], ids=["worker with a heartbeat", "process without one"])
def test_touch_keeps_the_run_slot(stage, db_clock, due_index, tracked):
    """A process without a heartbeat has to renew its slot, which it cannot inside the handler's transaction."""
    seen = []
    if tracked:
        process_name.start_worker()

    @stage.handler("t", concurrency=1, ttr=5, atomic=tracked)
    def long(job):
        for _ in range(4):
            db_clock.advance(seconds=4)
            job.touch()
        seen.append(due_index.take_slot("t", "another", db_clock.now_ms, db_clock.now_ms + 1000, 1))

    schedule("t", key="a", delay=0)
    try:
        stage.go()
    finally:
        process_name.stop_worker()
    assert seen == [False]
    assert outcomes("a") == ["finished"]


def test_a_run_slot_is_kept_for_the_jobs_own_ttr(stage, db_clock, due_index):
    seen = []

    @stage.handler("t", concurrency=1, ttr=1)
    def long(job):
        db_clock.advance(seconds=100)
        seen.append(due_index.take_slot("t", "another", db_clock.now_ms, db_clock.now_ms + 1000, 1))

    schedule("t", key="a", delay=0, ttr=600)
    stage.go()
    assert seen == [False]
    assert outcomes("a") == ["finished"]


@pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
def test_a_claimed_job_runs_although_its_run_slot_cannot_be_renewed(stage, due_index, redis_server):
    """The next job has a longer TTR, for which the slot is renewed, and Redis is down."""
    ran = []

    @stage.handler("t", ttr=1)
    def stopping(job):
        ran.append(job.key)
        redis_server.stop()

    runner._paces["t"] = runner.Pace(2)  # the run reserves both
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0, ttr=600)
    stage.go()
    assert ran == ["a", "b"]
    assert outcomes("b") == ["finished"]
    assert Job.objects.get(key="b").attempt == 1


def test_a_message_whose_runner_gets_no_run_slot_is_answered(stage, db_clock, due_index):
    now_ms = db_clock.now_ms
    assert due_index.call_runner("t", "group", now_ms, 2) is CallResult.SEND
    assert [due_index.take_slot("t", token, now_ms, now_ms + 60_000, 2) for token in ("a", "b")] == [True, True]
    assert due_index.take_slot("t", "c", now_ms, now_ms + 60_000, 2, message_ms=now_ms) is False
    due_index.free_slot("t", "a")
    assert due_index.call_runner("t", "group", now_ms, 2) is CallResult.SEND
