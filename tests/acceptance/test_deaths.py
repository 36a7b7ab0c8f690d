"""Workers that are killed, stopped, overrun or deaf: nothing is lost, and no effect is there twice.

The test's own process has no handlers, so it says each job's TTR itself.
"""

import json
import os
import signal

import pytest

from delaytasks import schedule, schedule_many
from delaytasks.models import Job
from delaytasks.states import State

from .world import World


@pytest.mark.parametrize("victim", ["the whole worker", "only the child"])
def test_a_job_whose_worker_is_killed_inside_the_handler_runs_again_and_its_first_effects_are_gone(
    world: World, victim: str
) -> None:
    world.start_beat()
    worker = world.start_worker("first", concurrency=1)
    world.await_workers()
    schedule("hangs-once", key="a", delay=0, ttr=4)
    child = world.until(lambda: world.mark("hangs-once", "a", 1), seconds=15, what="the handler to begin")
    if victim == "only the child":
        os.kill(child, signal.SIGKILL)
    else:
        worker.kill()
        world.start_worker("second", concurrency=1)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=30, what="the job to run again")
    (effect,) = world.effects("hangs-once")
    assert effect.attempt == 2
    assert effect.pid != child
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]
    first, second = Job.objects.get().events.order_by("id")
    assert second.reserved_ms - first.reserved_ms >= 4000  # not before its TTR was over


def test_a_handler_that_overruns_its_ttr_is_interrupted_and_its_process_goes_on(world: World) -> None:
    world.env["DELAYTASKS_OF_A_TEST"] = json.dumps({"TTR_GRACE_SECONDS": 4})
    world.start_all(concurrency=1)
    schedule("overruns-once", key="a", delay=0, ttr=1)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the second attempt to finish")
    (effect,) = world.effects("overruns-once")
    assert effect.attempt == 2
    assert effect.pid == world.mark("overruns-once", "a", 1)
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]
    assert 1000 <= Job.objects.get().events.order_by("id")[0].ran_ms < 4000  # the watchdog would have come at 5000


def test_a_deaf_handlers_process_is_ended_and_its_job_runs_again(world: World) -> None:
    world.start_all(concurrency=1)
    schedule("deaf-once", key="a", delay=0, ttr=1)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=30, what="the second attempt to finish")
    (effect,) = world.effects("deaf-once")
    assert effect.attempt == 2
    assert effect.pid != world.mark("deaf-once", "a", 1)
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]


def test_a_job_that_is_always_deaf_dies_and_its_neighbours_run(world: World) -> None:
    world.start_all(concurrency=1)
    schedule("deaf", key="a", delay=0, ttr=1)
    world.until(lambda: world.mark("deaf", "a", 1), seconds=15, what="the deaf handler to begin")
    schedule_many({"topic": "quick", "key": f"n{i}", "delay": 0} for i in range(20))

    world.until(lambda: world.ended(1, state=State.DEAD), seconds=40, what="the deaf job to die")
    world.until(lambda: world.ended(20, state=State.FINISHED), seconds=20, what="its neighbours to run")
    assert world.effects("deaf") == []
    assert [effect.attempt for effect in world.effects("quick")] == [1] * 20
    assert world.outcomes("a") == [("expired", 1), ("dead", 2)]


def test_in_a_thread_pool_the_lease_alone_takes_a_job_back_and_the_late_finisher_is_refused(world: World) -> None:
    world.start_beat()
    worker = world.start_worker("worker", "--pool=threads")
    world.await_workers()
    schedule("late-finisher", key="a", delay=0, ttr=2)

    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the second attempt to finish")
    (world.directory / "come-back").touch()
    worker.await_line("Attempt 1 of late-finisher a")
    (effect,) = world.effects("late-finisher")
    assert effect.attempt == 2
    assert world.outcomes("a") == [("expired", 1), ("finished", 2)]


@pytest.mark.parametrize(("topic", "count", "warm"), [("steady", 120, 10), ("batched", 1000, 100)])
def test_a_worker_that_is_told_to_stop_with_its_hands_full_loses_nothing_and_doubles_nothing(
    world: World, topic: str, count: int, warm: int
) -> None:
    world.start_beat()
    worker = world.start_worker("first")
    world.await_workers()
    keys = [f"k{i}" for i in range(count)]
    schedule_many({"topic": topic, "key": key, "delay": 0, "ttr": 120} for key in keys)
    # By then it takes as many at once as it will.
    world.until(lambda: len(world.effects(topic)) >= warm, seconds=15, what="the worker to be hard at work")

    assert worker.terminate(seconds=20) == 0, world.report()
    assert warm <= len(world.effects(topic)) < count, "the worker was to be stopped in the middle"
    held = Job.objects.filter(state=State.RESERVED).count()
    assert held == 0, f"{held} jobs are still held by a worker that has gone; their TTR is two minutes"

    world.start_worker("second")
    # Far below the TTR: what the first one had in hand was given back, not left to expire.
    world.until(lambda: world.ended(count, state=State.FINISHED), seconds=40, what="the others to run")
    assert sorted(effect.key for effect in world.effects(topic)) == sorted(keys)
    assert not Job.objects.filter(failures__gt=0).exists()
