"""Workers that are killed or stopped, handlers that exceed their TTR: no job is lost, and no effect happens twice.

The test's own process has no handlers, so it gives each job's TTR.
"""

import json
import os
import signal

import pytest
from celery import Celery

from delaytasks import schedule, schedule_many
from delaytasks.models import Job, Topic, Worker
from delaytasks.outcomes import ErrorCode
from delaytasks.states import Outcome, State

from ..support.installation import STOP_SECONDS, World


@pytest.mark.on_both
@pytest.mark.parametrize("victim", ["worker", "child process"])
def test_a_job_whose_worker_is_killed_runs_again_long_before_its_ttr_and_the_first_attempt_has_no_effects(
    world: World, victim: str
) -> None:
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"LEASE_SECONDS": 3})
    world.start_beat()
    worker = world.start_worker("first", concurrency=1)
    world.await_workers()
    schedule("hangs-once", key="a", delay=0, ttr=3600)
    child = world.until(lambda: world.mark("hangs-once", "a", 1), seconds=15, what="the handler to begin")
    if victim == "child process":
        os.kill(child, signal.SIGKILL)
    else:
        worker.kill()
        world.start_worker("second", concurrency=1)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=30, what="the job to run again")
    (effect,) = world.effects("hangs-once")
    assert effect.attempt == 2
    assert effect.pid != child
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]
    assert Job.objects.get().events.order_by("id")[0].error == ErrorCode.WORKER_LOST


def test_a_job_that_kills_its_process_harms_no_other(world: World) -> None:
    """The killer is first in a warm run: the processes have learned that these jobs are quick."""
    world.start_all(concurrency=2)
    schedule_many({"topic": "neighbours", "key": f"warm{n}", "delay": 0} for n in range(300))
    world.until(lambda: world.ended(300, state=State.FINISHED), seconds=30, what="the warm jobs to end")
    keys = ["killer", *(f"k{n}" for n in range(200))]
    schedule_many({"topic": "neighbours", "key": key, "delay": 0} for key in keys)

    world.until(lambda: world.ended(500, state=State.FINISHED), seconds=30, what="the neighbours to end")
    world.until(lambda: world.ended(1, state=State.DEAD), seconds=30, what="the killer to be dead")
    assert list(Job.objects.filter(failures__gt=0).values_list("key", "failures")) == [("killer", 2)]
    assert len(world.effects("neighbours")) == 500


@pytest.mark.only_on("postgresql")
def test_jobs_behind_a_slow_call_run_in_another_process_meanwhile(world: World) -> None:
    """On SQLite the slow handler's transaction would block every other write."""
    world.start_all(concurrency=2)
    schedule_many({"topic": "neighbours", "key": f"warm{n}", "delay": 0} for n in range(300))
    world.until(lambda: world.ended(300, state=State.FINISHED), seconds=30, what="the warm jobs to end")
    schedule_many({"topic": "neighbours", "key": key, "delay": 0} for key in ["slow", *(f"k{n}" for n in range(99))])

    world.until(lambda: world.ended(399, state=State.FINISHED), seconds=30, what="the others to end")
    assert Job.objects.get(key="slow").state == State.RESERVED
    (world.directory / "resume").touch()
    world.until(lambda: world.ended(400, state=State.FINISHED), seconds=30, what="the slow job to end")


@pytest.mark.only_on("postgresql")
def test_jobs_of_a_group_behind_a_slow_call_run_in_another_process_meanwhile(world: World) -> None:
    world.start_all(concurrency=2)
    schedule_many({"topic": "groupmates", "key": f"k{n}", "delay": 0, "ttr": 3600} for n in range(300))
    group = world.directory / "groupmates"
    world.until(lambda: group.exists() and group.read_text(), seconds=30, what="a group of several jobs")
    world.until(lambda: world.ended(299, state=State.FINISHED), seconds=30, what="the others to end")
    slow, *others = json.loads(group.read_text())
    assert others
    assert Job.objects.get(key=slow).state == State.RESERVED
    assert {event.outcome for key in others for event in Job.objects.get(key=key).events.all()} == {Outcome.FINISHED}
    (world.directory / "resume").touch()
    world.until(lambda: world.ended(300, state=State.FINISHED), seconds=30, what="the slow job to end")
    assert len(world.effects("groupmates")) == 300


def test_the_run_slot_of_a_killed_process_is_free_at_once(world: World) -> None:
    Topic.objects.update_or_create(name="hangs-once", defaults={"concurrency": 1})
    world.start_all(concurrency=2)
    schedule_many({"topic": "hangs-once", "key": key, "delay": 0, "ttr": 3600} for key in "ab")
    child = world.until(lambda: world.mark("hangs-once", "a", 1), seconds=15, what="the handler to begin")
    os.kill(child, signal.SIGKILL)
    world.until(lambda: world.mark("hangs-once", "b", 1), seconds=30, what="the other job to begin")


def test_a_handler_that_exceeds_its_ttr_is_interrupted_and_its_process_goes_on(world: World) -> None:
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"TTR_GRACE_SECONDS": 4})
    world.start_all(concurrency=1)
    schedule("overruns-once", key="a", delay=0, ttr=3)  # enough for the second attempt

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the second attempt to finish")
    (effect,) = world.effects("overruns-once")
    assert effect.attempt == 2
    assert effect.pid == world.mark("overruns-once", "a", 1)
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]
    assert 3000 <= Job.objects.get().events.order_by("id")[0].ran_ms < 7000  # when the watchdog would have acted


def test_the_process_of_an_uninterruptible_handler_is_killed_and_its_job_runs_again(world: World) -> None:
    world.start_all(concurrency=1)
    schedule("deaf-once", key="a", delay=0, ttr=3)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=30, what="the second attempt to finish")
    (effect,) = world.effects("deaf-once")
    assert effect.attempt == 2
    assert effect.pid != world.mark("deaf-once", "a", 1)
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]


def test_a_job_whose_handler_always_hangs_dies_and_other_jobs_run(world: World) -> None:
    world.start_all(concurrency=1)
    schedule("deaf", key="a", delay=0, ttr=1)
    world.until(lambda: world.mark("deaf", "a", 1), seconds=15, what="the handler to begin")
    schedule_many({"topic": "quick", "key": f"n{i}", "delay": 0} for i in range(20))

    world.until(lambda: world.ended(1, state=State.DEAD), seconds=40, what="the job to die")
    world.until(lambda: world.ended(20, state=State.FINISHED), seconds=20, what="the other jobs to run")
    assert world.effects("deaf") == []
    assert [effect.attempt for effect in world.effects("quick")] == [1] * 20
    assert world.outcomes("a") == [("expired", 1), ("dead", 2)]


def test_in_a_thread_pool_an_expired_lease_takes_a_job_back_and_the_late_finish_is_refused(world: World) -> None:
    world.start_beat()
    worker = world.start_worker("worker", "--pool=threads")
    world.await_workers()
    schedule("late-finisher", key="a", delay=0, ttr=2)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the second attempt to finish")
    (world.directory / "resume").touch()
    worker.await_line("Attempt 1 of late-finisher a")
    (effect,) = world.effects("late-finisher")
    assert effect.attempt == 2
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_a_job_that_a_cold_shutdown_interrupts_is_released_and_charged_nothing(world: World, pool: str) -> None:
    worker = world.start_worker("worker", f"--pool={pool}", concurrency=1)
    world.await_workers()
    schedule("hangs-once", key="a", delay=0, ttr=3600)
    world.until(lambda: world.mark("hangs-once", "a", 1), seconds=15, what="the handler to begin")
    worker.popen.send_signal(signal.SIGQUIT)
    worker.popen.wait(STOP_SECONDS)
    assert world.outcomes("a") == [("released", 1)]
    assert Job.objects.get().failures == 0
    assert not Worker.objects.exists()


@pytest.mark.parametrize(
    ("topic", "count", "first", "how"),
    [("steady", 120, 10, "signal"), ("batched", 1000, 100, "signal"), ("steady", 120, 10, "remote control")],
)
def test_a_worker_stopped_while_busy_loses_no_job_and_runs_none_twice(
    world: World, topic: str, count: int, first: int, how: str
) -> None:
    world.start_beat()
    worker = world.start_worker("first")
    world.await_workers()
    keys = [f"k{i}" for i in range(count)]
    schedule_many({"topic": topic, "key": key, "delay": 0, "ttr": 3600} for key in keys)
    # By then its batches have reached their full size.
    world.until(lambda: len(world.effects(topic)) >= first, seconds=15, what="the worker to be busy")

    if how == "signal":
        assert worker.terminate() == 0, world.report()
    else:
        with Celery(broker=world.redis.url()) as celery:
            celery.control.shutdown()
        assert worker.popen.wait(STOP_SECONDS) == 0, world.report()
    assert first <= len(world.effects(topic)) < count, "the worker was not stopped in the middle"
    held = Job.objects.filter(state=State.RESERVED).count()
    assert held == 0, f"{held} jobs are still reserved by a stopped worker; their TTR is an hour"

    world.start_worker("second")
    # Far below the TTR: the first worker released its jobs instead of leaving them to expire.
    world.until(lambda: world.ended(count, state=State.FINISHED), seconds=40, what="the others to run")
    assert sorted(effect.key for effect in world.effects(topic)) == sorted(keys)
    assert not Job.objects.filter(failures__gt=0).exists()
