"""The savings of an idle installation: no new connection per run_topic message, and no messages from beat."""

import contextlib
import json
import os
import signal
import time
from typing import Any

import pytest

from delaytasks import schedule
from delaytasks.states import State
from project.celery import app

from ..support.installation import Process, World

MOVE_DUE, SWEEP = "delaytasks.move_due", "delaytasks.sweep"


def run(world: World, key: str) -> int:
    """Run one job, by its own run_topic message. Return the pid of its handler's database backend."""
    schedule("backend", key=key, delay=0)
    with contextlib.closing(world.redis.client()) as client:
        world.until(lambda: key in [e.key for e in world.effects("backend")], seconds=15, what=f"{key} to run")
        # The runner waits a moment for more jobs; then the slot is free and the next job needs a message.
        gone = lambda: not any(client.zcard(slots) for slots in client.keys("*:slots:backend"))  # noqa: E731
        world.until(gone, seconds=5, what="the runner to end")
    return next(effect.pid for effect in world.effects("backend") if effect.key == key)


def run_project_task(world: World, name: str) -> dict[str, Any]:
    with app.connection_for_write(world.redis.url()) as connection:
        app.send_task("acceptance.project_task", (name,), connection=connection)
    result = world.directory / f"{name}.json"
    world.until(result.exists, seconds=15, what=f"{name} to run")
    return json.loads(result.read_text())


@pytest.mark.only_on("postgresql")
def test_engine_tasks_reuse_a_connection_and_project_tasks_get_a_new_one(world: World) -> None:
    world.start_worker(concurrency=1)
    world.await_workers()
    engine = {run(world, f"k{n}") for n in range(4)}
    project = [run_project_task(world, f"p{n}") for n in range(2)]
    assert len(engine) == 1
    assert [each["was_connected"] for each in project] == [False, False]
    assert len(engine | {each["backend"] for each in project}) == 3, "each project task has its own"
    assert run(world, "after") in engine


def sent(beat: Process, task: str) -> int:
    return beat.log.read_text().count(f"Sending due task {task}")


def test_beat_sends_nothing_while_a_mover_thread_runs_and_takes_over_when_the_last_one_died(world: World) -> None:
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"SWEEP_SECONDS": 2, "MOVER_THREAD": False})
    world.start_worker("without", concurrency=1)
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"SWEEP_SECONDS": 2})
    worker = world.start_worker("with", concurrency=1)
    world.await_workers()
    with contextlib.closing(world.redis.client()) as client:
        world.until(lambda: client.keys("*:moving:*"), seconds=10, what="a heartbeat of the mover thread")
    beat = world.start_beat(loglevel="DEBUG")  # at INFO, the lines about move_due are left out
    world.await_workers()
    world.until(lambda: sent(beat, SWEEP) == 2, seconds=10, what="beat to send its other entry twice")
    assert sent(beat, MOVE_DUE) == 0

    os.killpg(worker.pid, signal.SIGKILL)
    died = time.monotonic()
    world.until(lambda: sent(beat, MOVE_DUE), seconds=5, what="beat to send")
    assert time.monotonic() - died < 15  # the heartbeat of the dead one expires, and beat looks once a tick
    schedule("quick", key="k", delay=0.5)
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=6, what="the job to run")
    (effect,) = world.effects("quick")
    assert 0 <= effect.at_ms - effect.due_ms < 15_000
