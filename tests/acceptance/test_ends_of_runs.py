"""Redis or the database fails while a run ends: what the run held is free again soon after the outage."""

import json
import os
import signal

import pytest

from delaytasks import schedule
from delaytasks.mirror import connect
from delaytasks.models import Job, Topic
from delaytasks.states import State
from tests.support.servers import PostgresServer

from ..support.databases import unreachable
from ..support.installation import World

TOPIC = "late-finisher"  # waits for resume()


@pytest.fixture
def busy_world(world: World) -> World:
    """A worker with two processes, whose topic has one run slot."""
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"LEASE_SECONDS": 3})
    Topic.objects.update_or_create(name=TOPIC, defaults={"concurrency": 1})
    return world


def begin(world: World, key: str) -> None:
    schedule(TOPIC, key, delay=0, ttr=3600)
    world.until(lambda: world.mark(TOPIC, key, 1), seconds=15, what="the handler to begin")


def resume(world: World) -> None:
    (world.directory / "resume").touch()


def test_a_run_slot_that_redis_could_not_free_blocks_no_later_run(busy_world: World) -> None:
    world = busy_world
    worker = world.start_all()
    begin(world, "a")
    os.kill(world.redis.process.pid, signal.SIGSTOP)
    resume(world)
    worker.await_line("was not written")  # the entry of the finished job; the slot is freed after it
    os.kill(world.redis.process.pid, signal.SIGCONT)
    index = connect()
    world.until(lambda: index.slot_tokens(TOPIC) == [], seconds=20, what="the run slot to be free")


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("mirror", [True, False], ids=["mirror", "no-mirror"])
def test_a_job_whose_database_went_away_runs_again_long_before_its_ttr(
    busy_world: World, database_server: PostgresServer, mirror: bool
) -> None:
    world = busy_world
    if not mirror:
        world.env["CELERY_BROKER_URL"] = world.env.pop("REDIS_URL")
    worker = world.start_all()
    begin(world, "a")
    with unreachable(database_server):
        resume(world)
        worker.await_line("the database failed")
        worker.await_line("raised unexpected")  # Celery, about the task: the run has ended
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the job to run again")
    assert Job.objects.get().failures == 1
    schedule(TOPIC, "b", delay=0)
    world.until(lambda: world.ended(2, state=State.FINISHED), seconds=20, what="the next job of the topic to run")
