"""Redis is flushed, or stops and comes back empty; and two workers share a burst."""

import contextlib
import json
import os
import signal
import time

from delaytasks import schedule, schedule_many
from delaytasks.mirror import connect
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.tasks import run_topic
from project.celery import app

from ..support.installation import Process, World

GUARD_SECONDS = 100  # the guard finds missing jobs in seconds, on a busy machine in more; the sweep would take an hour


def jobs(keys: list[str], topic: str, **options: object) -> list[dict]:
    return [{"topic": topic, "key": key, **options} for key in keys]


def without_sweep(world: World) -> World:
    """Make the sweep so rare that missing jobs are found by the guard, or not at all."""
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"SWEEP_SECONDS": 3600})
    return world


def assert_each_once_and_none_early(world: World, keys: list[str]) -> None:
    effects = world.effects("quick")
    assert sorted(effect.key for effect in effects) == sorted(keys)
    early = [effect for effect in effects if effect.at_ms < effect.due_ms]
    assert not early
    assert not Job.objects.filter(failures__gt=0).exists()  # releasing a job is not a failure


def test_after_a_flush_with_a_thousand_pending_jobs_each_runs_once_and_none_early(world: World) -> None:
    without_sweep(world).start_all()
    keys = [f"k{i}" for i in range(1000)]
    schedule_many({"topic": "quick", "key": key, "delay": 6 + i / 500} for i, key in enumerate(keys))
    mirror = connect()
    assert mirror.due_count() == 1000
    world.redis.flush()
    assert mirror.due_count() == 0
    assert not world.effects("quick"), "the jobs were not pending when Redis was flushed"

    world.until(lambda: world.ended(1000, state=State.FINISHED), seconds=40, what="a thousand jobs to run")
    assert_each_once_and_none_early(world, keys)
    assert max(effect.at_ms - effect.due_ms for effect in world.effects("quick")) < GUARD_SECONDS * 1000


def test_after_redis_stopped_for_ten_seconds_and_came_back_empty_each_job_runs_once(world: World) -> None:
    without_sweep(world).start_all()
    before = [f"before{i}" for i in range(100)]
    schedule_many({"topic": "quick", "key": key, "delay": 3 + i / 10} for i, key in enumerate(before))
    world.redis.stop()
    back_at = time.monotonic() + 10
    meanwhile = [f"meanwhile{i}" for i in range(100)]
    schedule_many({"topic": "quick", "key": key, "delay": 1 + i / 10} for i, key in enumerate(meanwhile))
    world.until(lambda: time.monotonic() > back_at, seconds=11, what="ten seconds to pass")
    world.redis.start()

    # A worker tries to reconnect to its broker every three seconds.
    world.until(lambda: world.ended(200, state=State.FINISHED), seconds=25, what="everything to run")
    assert_each_once_and_none_early(world, before + meanwhile)
    assert all(process.popen.poll() is None for process in world.processes), world.report()


def start_with_two_prefetched_messages(world: World) -> Process:
    """Start a worker whose only process is busy until resume(), and which fetches messages nevertheless."""
    world.env["PREFETCH"] = "1"
    worker = world.start_worker(concurrency=1)
    world.await_workers()
    schedule("late-finisher", key="k", delay=0)
    world.until(lambda: world.mark("late-finisher", "k", 1), seconds=10, what="the only process to be busy")
    with app.connection_for_write(world.redis.url()) as connection:
        for _ in range(2):
            run_topic.apply_async(("quick",), connection=connection)
    with contextlib.closing(world.redis.client()) as client:
        # On a slow machine a message about the busy job may have been sent twice.
        world.until(lambda: client.hlen("unacked") >= 2, seconds=5, what="the worker to fetch both")
    return worker


def resume(world: World) -> None:
    (world.directory / "resume").touch()


def assert_runs_on(world: World, worker: Process) -> None:
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=10, what="the running job to finish")
    schedule("quick", key="after", delay=0)
    world.until(lambda: world.effects("quick"), seconds=10, what="the worker to run another job")
    assert worker.popen.poll() is None, world.report()


def test_a_worker_with_prefetched_messages_survives_the_loss_of_its_broker(world: World) -> None:
    worker = start_with_two_prefetched_messages(world)
    with contextlib.closing(world.redis.client()) as client:
        os.kill(worker.pid, signal.SIGSTOP)  # so that it sees the loss of both connections at once, this one first
        client.client_kill_filter(_type="pubsub")
    world.redis.stop()
    os.kill(worker.pid, signal.SIGCONT)
    worker.await_line("Connection to broker lost")
    world.redis.start()
    resume(world)
    assert_runs_on(world, worker)


def test_a_worker_survives_a_broker_that_is_out_of_memory(world: World) -> None:
    worker = start_with_two_prefetched_messages(world)
    with world.redis.full():
        resume(world)
        worker.await_line("Connection to broker lost")  # what it logs when it cannot acknowledge a message
    assert_runs_on(world, worker)


def test_two_workers_share_a_burst_and_each_job_runs_once(world: World) -> None:
    world.start_beat()
    world.start_worker("one")
    world.start_worker("two")
    world.await_workers()
    keys = [f"k{i}" for i in range(600)]
    schedule_many(jobs(keys, "quick", delay=1))

    world.until(lambda: world.ended(600, state=State.FINISHED), seconds=30, what="the burst to run")
    assert_each_once_and_none_early(world, keys)


def test_without_redis_in_the_settings_jobs_run(world: World) -> None:
    broker = world.env.pop("REDIS_URL")
    world.env["CELERY_BROKER_URL"] = broker
    world.start_all()
    keys = [f"k{i}" for i in range(50)]
    schedule_many(jobs(keys, "quick", delay=0.5))

    world.until(lambda: world.ended(50, state=State.FINISHED), seconds=30, what="the jobs to run")
    assert_each_once_and_none_early(world, keys)
