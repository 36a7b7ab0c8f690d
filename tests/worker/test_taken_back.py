"""A job is taken back from a dead process or after its TTR: what it is charged, and when it runs again."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import Error, InternalError, OperationalError, connection

from delaytasks import mirror, poll, retry_dead, schedule, schedule_many
from delaytasks.backoff import Backoff
from delaytasks.db import transitions
from delaytasks.maintenance import liveness, sweep
from delaytasks.models import Job, JobEvent
from delaytasks.outcomes import ErrorCode
from delaytasks.states import State
from delaytasks.worker import claim, process_name, runner

from ..support.stage import Boom, outcomes

STEADY = Backoff(base_seconds=7, factor=10, cap_seconds=3600, jitter=0)


def delay_ms(db_clock) -> int:
    """Return how long the job waits from now on. A job that is ready waits 0 ms."""
    return max(0, Job.objects.get(ended_at=None).due_ms - db_clock.now_ms)


def exceed_ttr(stage, db_clock) -> int:
    """Let the job's next attempt exceed its TTR of 5 s. Return how long the job waits then."""
    assert len(stage.take("t", 1)) == 1
    db_clock.advance(seconds=6)
    sweep.take_back_expired("default")
    return delay_ms(db_clock)


@pytest.mark.on_both
def test_only_the_first_of_several_deaths_in_a_row_is_retried_at_once(stage, db_clock):
    stage.recorder("t", ttr=5, backoff=STEADY)
    schedule("t", "a", delay=0)
    waits = []
    for _ in range(3):
        waits.append(exceed_ttr(stage, db_clock))
        db_clock.advance(ms=waits[-1])
    assert waits == [0, 70_000, 700_000]
    due_ms, next_ms = JobEvent.objects.order_by("id").values_list("due_ms", "next_due_ms")[1]
    assert next_ms - due_ms == 6_000 + 6_000 + 70_000
    stage.go()
    assert outcomes("a") == ["expired", "expired", "expired", "finished"]


@pytest.mark.on_both
def test_a_job_that_waits_after_its_second_death_is_not_run_early(stage, db_clock):
    keys = stage.recorder("t", ttr=5, backoff=STEADY)
    schedule("t", "a", delay=0)
    exceed_ttr(stage, db_clock)
    exceed_ttr(stage, db_clock)
    db_clock.advance(ms=69_999)
    stage.go()
    assert keys == []
    db_clock.advance(ms=1)
    stage.go()
    assert keys == ["a"]


@pytest.mark.on_both
def test_a_death_after_another_kind_of_failure_is_retried_at_once(stage, db_clock):
    @stage.handler("t", ttr=5, backoff=STEADY)
    def fails(job):
        raise Boom

    schedule("t", "a", delay=0)
    exceed_ttr(stage, db_clock)
    stage.go()
    db_clock.advance(ms=delay_ms(db_clock))
    assert exceed_ttr(stage, db_clock) == 0


@pytest.mark.on_both
def test_a_dead_job_that_staff_retry_has_its_first_death_at_once_again(stage, db_clock):
    stage.recorder("t", ttr=5, backoff=STEADY, max_attempts=2)
    schedule("t", "a", delay=0)
    exceed_ttr(stage, db_clock)
    assert len(stage.take("t", 1)) == 1
    db_clock.advance(seconds=6)
    sweep.take_back_expired("default")
    assert Job.objects.get().state == State.DEAD
    retry_dead("t", "a")
    assert exceed_ttr(stage, db_clock) == 0


@pytest.mark.on_both
def test_a_job_scheduled_again_is_ready_at_once_also_after_its_second_death(stage, db_clock):
    stage.recorder("t", ttr=5, backoff=STEADY)
    schedule("t", "a", delay=0)
    exceed_ttr(stage, db_clock)
    assert len(stage.take("t", 1)) == 1
    schedule("t", "a", delay=3600, body={"new": 1}, on_conflict="again", ttr=5)
    db_clock.advance(seconds=6)
    sweep.take_back_expired("default")
    job = Job.objects.get()
    assert (delay_ms(db_clock), job.failures, job.body) == (0, 0, {"new": 1})


@pytest.mark.on_both
def test_a_poll_that_dies_twice_is_asked_at_its_deadline_at_the_latest(stage, db_clock):
    stage.registered.append("t")
    poll("t", every=["1m"], until=timedelta(seconds=60), ttr=5, backoff=STEADY)(lambda job: True)
    schedule("t", "a", delay=0)
    exceed_ttr(stage, db_clock)
    assert exceed_ttr(stage, db_clock) == 60_000 - 12_000


def hold_one(worker: str) -> None:
    candidates = claim.Candidates(mirror.choose("default"), "t", using="default", worker=worker)
    assert candidates.reserve(1)
    assert candidates.claim() is not None


@pytest.mark.on_both
def test_the_job_of_a_process_that_ends_again_and_again_waits_too(stage, db_clock):
    stage.recorder("t", ttr=3600, backoff=STEADY)
    schedule("t", "a", delay=0)
    waits = []
    for _ in range(2):
        stage.mover.move_due()
        hold_one("host:1:x/7")
        assert liveness.take_back_jobs("default", "host:1:x/7") == 1
        waits.append(delay_ms(db_clock))
    assert waits == [0, 70_000]
    assert Job.objects.get().error == ErrorCode.WORKER_LOST


# -- runs that lose the database ----------------------------------------------------------------


@pytest.fixture
def process() -> Iterator[str]:
    """The name of a process of a worker with a heartbeat: this process."""
    process_name.start_worker()
    yield process_name.process_name()
    process_name.stop_worker()
    runner._unfinished.clear()


def fail(
    monkeypatch, where: Any, name: str, *, times: int, done: bool = False, error: type[Error] = OperationalError
) -> list[str]:
    """Let the first calls of a function lose the connection. Return a list with an entry for each call.

    done    the server has done its work: only the answer is lost
    error   what the calls raise
    """
    calls: list[str] = []
    function: Callable[..., Any] = getattr(where, name)

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(name)
        if len(calls) > times:
            return function(*args, **options)
        if done:
            function(*args, **options)
        raise error("the connection is lost")

    monkeypatch.setattr(where, name, failing)
    return calls


@pytest.mark.on_both
def test_a_claim_whose_answer_was_lost_is_found_and_run(stage, process, monkeypatch):
    keys = stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.mover.move_due()
    fail(monkeypatch, transitions, "claim_first", times=1, done=True)
    stage.run("t", worker_name=process)
    assert keys == ["a"]
    assert (Job.objects.get().attempt, outcomes("a")) == (1, ["finished"])


def test_without_a_heartbeat_a_lost_claim_is_left_to_its_ttr(stage, monkeypatch):
    """Another greenlet may have the same name, and run the job."""
    keys = stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.mover.move_due()
    fail(monkeypatch, transitions, "claim_first", times=1, done=True)
    with pytest.raises(OperationalError):
        stage.run("t")
    assert (keys, Job.objects.get().state) == ([], State.RESERVED)


@pytest.mark.on_both
@pytest.mark.parametrize("error", [OperationalError, InternalError])
@pytest.mark.parametrize("by", ["the next run", "the heartbeat"])
def test_a_claim_whose_answer_was_lost_with_the_database_is_not_charged(stage, process, monkeypatch, by, error):
    keys = stage.recorder("t", ttr=3600)
    schedule("t", "a", delay=0)
    stage.mover.move_due()
    with monkeypatch.context() as patch:
        fail(patch, transitions, "claim_first", times=1, done=True)
        fail(patch, transitions, "find_claimed", times=1, error=error)
        with pytest.raises(error):
            stage.run("t", worker_name=process)
    assert Job.objects.get().state == State.RESERVED
    if by == "the heartbeat":
        assert liveness.take_back_abandoned_jobs("default", process.partition("/")[0])
        assert Job.objects.get().state == State.DELAYED
    stage.run("t", worker_name=process)
    stage.go()
    assert keys == ["a"]
    assert (Job.objects.get().failures, JobEvent.objects.first().error) == (0, ErrorCode.RUN_FAILED)


@pytest.mark.on_both
def test_only_the_job_whose_handler_was_called_is_charged_when_a_run_loses_the_database(stage, process, monkeypatch):
    stage.handler("t", ttr=3600, atomic=False)(lambda job: None)
    schedule("t", "a", delay=0)
    stage.mover.move_due()
    with monkeypatch.context() as patch:
        for name in ("end_if_held", "end_and_claim"):
            fail(patch, transitions, name, times=9)
        with pytest.raises(OperationalError):
            stage.run("t", worker_name=process)
    assert liveness.take_back_abandoned_jobs("default", process.partition("/")[0])
    job = Job.objects.get()
    assert (job.state, job.failures, job.error) == (State.DELAYED, 1, ErrorCode.RUN_FAILED)


@pytest.mark.parametrize("second", ["begins", "fails"])
def test_the_called_job_of_one_database_is_not_taken_for_that_of_another(process, second):
    """A thread runs jobs of several databases in turn, and their ids may be equal."""
    process_name.store_called_job("default", 7)
    if second == "begins":
        process_name.clear_called("other")
        of_default = [False, True]
    else:  # the first note is lost, so nothing is known of that run
        process_name.store_called_job("other", 6)
        of_default = [True, True]
    called = process_name.read_called_job("default", process)
    assert [process_name.was_called(called, job_id) for job_id in (6, 7)] == of_default
    process_name.clear_called("default")
    called = process_name.read_called_job("other", process)
    assert [process_name.was_called(called, job_id) for job_id in (6, 7)] == [True, second == "begins"]


def fail_group(stage, monkeypatch, process: str, *, times: int, error: type[Error] = OperationalError) -> list[str]:
    """Run a group of two that fails together; after its first job the run stops, and the other is handed back."""
    stopping: list[str] = []

    @stage.handler("t", batch=2, ttr=3600)
    def batch(jobs):
        if len(jobs) == 2:
            raise Boom
        stopping.append(jobs[0].key)

    for key in ("a", "b"):
        schedule("t", key, delay=0)
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=2)
    calls = fail(monkeypatch, transitions, "unclaim", times=times, error=error)
    stage.run("t", worker_name=process, stopping=lambda: bool(stopping))
    return calls


@pytest.mark.on_both
def test_a_job_is_handed_back_although_the_first_try_fails(stage, process, monkeypatch):
    assert len(fail_group(stage, monkeypatch, process, times=1)) == 2
    job = Job.objects.get(ended_at=None)
    assert (job.state, job.failures) == (State.DELAYED, 0)


@pytest.mark.on_both
@pytest.mark.parametrize("error", [OperationalError, InternalError])
def test_a_job_that_cannot_be_handed_back_is_taken_back_before_its_ttr(stage, process, monkeypatch, error):
    with pytest.raises(error):
        fail_group(stage, monkeypatch, process, times=2, error=error)
    assert Job.objects.get(ended_at=None).state == State.RESERVED
    assert liveness.take_back_abandoned_jobs("default", process.partition("/")[0])
    job = Job.objects.get(ended_at=None)
    assert (job.state, job.failures, job.error) == (State.DELAYED, 0, "")


@pytest.mark.on_both
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("taken_by", ["a run", "a consumer"])
def test_an_expired_job_that_could_not_be_ended_is_tried_again(stage, db_clock, monkeypatch, times, taken_by):
    keys = stage.recorder("t", ttr=3600)
    schedule("t", "a", delay=0, expires=5)
    stage.mover.move_due()
    db_clock.advance(seconds=6)
    fail(monkeypatch, claim, "complete", times=times)
    stage.run("t") if taken_by == "a run" else stage.take("t")
    if Job.objects.get().state == State.DELAYED:
        db_clock.advance(seconds=1)
        stage.go()
    assert (keys, outcomes("a")) == ([], ["skipped"])


def test_jobs_that_cannot_be_ended_do_not_hold_up_those_behind_them(stage, db_clock, monkeypatch):
    """Nor are they claimed again and again."""
    keys = stage.recorder("t", ttr=3600)
    schedule_many({"topic": "t", "key": f"bad{n}", "delay": 0, "expires": 1} for n in range(8))
    schedule("t", "good", delay=1)
    db_clock.advance(seconds=3)
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=8)
    end = claim.complete

    def fail_for_bad_ones(using, completions, *args, **kwargs):
        if completions[0].held.key.startswith("bad"):
            raise OperationalError("no such column")
        return end(using, completions, *args, **kwargs)

    monkeypatch.setattr(claim, "complete", fail_for_bad_ones)
    stage.run("t")
    assert keys == ["good"]
    assert set(Job.objects.filter(ended_at=None).values_list("attempt", flat=True)) == {1}


def test_the_slot_is_free_also_if_jobs_cannot_be_given_back(stage, monkeypatch):
    stage.recorder("t", concurrency=1)
    schedule_many({"topic": "t", "key": key, "delay": 0} for key in "ab")
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=2)

    def fail(candidates):
        raise OperationalError("the database is away")

    monkeypatch.setattr(claim.Candidates, "unreserve", fail)
    with pytest.raises(OperationalError):
        stage.run("t")
    assert mirror.choose("default").slot_tokens("t") == []


@pytest.mark.only_on("postgresql")
def test_a_job_whose_handler_was_not_called_is_not_charged_if_its_row_is_locked_in_between(stage, process):
    stage.recorder("t", ttr=3600)
    job = schedule("t", "a", delay=0)
    assert transitions.claim("default", "t", [job.pk], process)
    process_name.store_called_job("default", None)  # the run fails before it calls the handler
    runner._unfinished.add(("default", process))
    other = connection.copy()
    other.set_autocommit(False)
    with other.cursor() as cursor:
        cursor.execute("SELECT 1 FROM delaytasks_job FOR UPDATE")
    stage.run("t", worker_name=process)
    other.rollback()
    other.close()
    assert Job.objects.get().state == State.RESERVED
    stage.run("t", worker_name=process, stopping=lambda: True)
    job.refresh_from_db()
    assert (job.state, job.failures, job.error) == (State.DELAYED, 0, "")
