"""Redis is flushed, or goes away and comes back empty; and a burst meets two workers."""

import contextlib
import os
import signal
import time

from delaytasks import schedule, schedule_many
from delaytasks.mirror import connect
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.tasks import run_topic
from project.celery import app

from .world import Process, World

SOON_SECONDS = 10  # the guard finds what is missing within a second or two; the sweep would take half a minute


def every(keys: list[str], topic: str, **terms: object) -> list[dict]:
    return [{"topic": topic, "key": key, **terms} for key in keys]


def assert_each_once_and_none_early(world: World, keys: list[str]) -> None:
    effects = world.effects("quick")
    assert sorted(effect.key for effect in effects) == sorted(keys)
    early = [effect for effect in effects if effect.at_ms < effect.due_ms]
    assert not early
    assert not Job.objects.filter(failures__gt=0).exists()  # a job that was given back for a moment has not failed


def test_when_redis_is_flushed_with_a_thousand_jobs_pending_all_run_none_twice_and_none_early(world: World) -> None:
    world.start_all()
    keys = [f"k{i}" for i in range(1000)]
    schedule_many({"topic": "quick", "key": key, "delay": 4 + i / 500} for i, key in enumerate(keys))
    mirror = connect()
    assert mirror.due_count() == 1000
    world.redis.flush()
    assert mirror.due_count() == 0
    assert not world.effects("quick"), "the jobs were to be pending when Redis was flushed"

    world.until(lambda: world.ended(1000, state=State.FINISHED), seconds=40, what="a thousand jobs to run")
    assert_each_once_and_none_early(world, keys)
    assert max(effect.at_ms - effect.due_ms for effect in world.effects("quick")) < SOON_SECONDS * 1000


def test_when_redis_stops_for_ten_seconds_and_comes_back_empty_everything_runs(world: World) -> None:
    world.start_all()
    before = [f"before{i}" for i in range(100)]
    schedule_many({"topic": "quick", "key": key, "delay": 3 + i / 10} for i, key in enumerate(before))
    world.redis.stop()
    back_at = time.monotonic() + 10
    meanwhile = [f"meanwhile{i}" for i in range(100)]
    schedule_many({"topic": "quick", "key": key, "delay": 1 + i / 10} for i, key in enumerate(meanwhile))
    world.until(lambda: time.monotonic() > back_at, seconds=11, what="ten seconds to pass")
    world.redis.start()

    # A worker looks for its broker every three seconds.
    world.until(lambda: world.ended(200, state=State.FINISHED), seconds=3 + SOON_SECONDS, what="everything to run")
    assert_each_once_and_none_early(world, before + meanwhile)
    assert all(process.popen.poll() is None for process in world.processes), world.report()


def start_with_two_messages_in_hand(world: World) -> Process:
    """A worker whose only child is busy until told to come back."""
    worker = world.start_worker(concurrency=1)
    world.await_workers()
    schedule("late-finisher", key="k", delay=0)
    world.until(lambda: world.mark("late-finisher", "k", 1), seconds=10, what="the only child to be busy")
    with app.connection_for_write(world.redis.url()) as connection:
        for _ in range(2):
            run_topic.apply_async(("quick",), connection=connection)
    with contextlib.closing(world.redis.client()) as client:
        world.until(lambda: client.hlen("unacked") == 2, seconds=5, what="the worker to fetch both")
    return worker


def come_back(world: World) -> None:
    (world.directory / "come-back").touch()


def assert_runs_on(world: World, worker: Process) -> None:
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=10, what="the job at hand to finish")
    schedule("quick", key="after", delay=0)
    world.until(lambda: world.effects("quick"), seconds=10, what="the worker to hear a bell")
    assert worker.popen.poll() is None, world.report()


def test_a_worker_with_messages_in_hand_outlives_its_broker(world: World) -> None:
    worker = start_with_two_messages_in_hand(world)
    with contextlib.closing(world.redis.client()) as client:
        os.kill(worker.pid, signal.SIGSTOP)  # so that it sees both connections gone at once, this one first
        client.client_kill_filter(_type="pubsub")
    world.redis.stop()
    os.kill(worker.pid, signal.SIGCONT)
    worker.await_line("Connection to broker lost")
    world.redis.start()
    come_back(world)
    assert_runs_on(world, worker)


def test_a_worker_outlives_a_broker_that_is_out_of_memory(world: World) -> None:
    worker = start_with_two_messages_in_hand(world)
    with contextlib.closing(world.redis.client()) as client:
        client.config_set("maxmemory", "1")
        come_back(world)
        worker.await_line("Connection to broker lost")  # so it calls a message that cannot be acknowledged
        client.config_set("maxmemory", "0")
    assert_runs_on(world, worker)


def test_two_workers_share_a_burst_and_each_job_runs_once(world: World) -> None:
    world.start_beat()
    world.start_worker("one")
    world.start_worker("two")
    world.await_workers()
    keys = [f"k{i}" for i in range(600)]
    schedule_many(every(keys, "quick", delay=1))

    world.until(lambda: world.ended(600, state=State.FINISHED), seconds=30, what="the burst to run")
    assert_each_once_and_none_early(world, keys)


def test_without_redis_in_the_settings_the_jobs_still_run(world: World) -> None:
    broker = world.env.pop("REDIS_URL")
    world.env["CELERY_BROKER_URL"] = broker
    world.start_all()
    keys = [f"k{i}" for i in range(50)]
    schedule_many(every(keys, "quick", delay=0.5))

    world.until(lambda: world.ended(50, state=State.FINISHED), seconds=30, what="the jobs to run")
    assert_each_once_and_none_early(world, keys)
