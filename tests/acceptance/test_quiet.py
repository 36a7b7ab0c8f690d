"""What the parts leave out while all is well: new connections for each bell, and beat's messages."""

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

from .world import Process, World

MOVE_DUE, SWEEP = "delaytasks.move_due", "delaytasks.sweep"


def run(world: World, key: str) -> int:
    """Run one job, by a bell of its own; the backend that its handler had."""
    schedule("backend", key=key, delay=0)
    with contextlib.closing(world.redis.client()) as client:
        world.until(lambda: key in [e.key for e in world.effects("backend")], seconds=15, what=f"{key} to run")
        # It lingers; then the slot is free and the next job needs a bell.
        gone = lambda: not any(client.zcard(slots) for slots in client.keys("*:slots:backend"))  # noqa: E731
        world.until(gone, seconds=5, what="the runner to leave")
    return next(effect.pid for effect in world.effects("backend") if effect.key == key)


def run_of_the_project(world: World, name: str) -> dict[str, Any]:
    with app.connection_for_write(world.redis.url()) as connection:
        app.send_task("acceptance.of_the_project", (name,), connection=connection)
    found = world.directory / f"{name}.json"
    world.until(found.exists, seconds=15, what=f"{name} to run")
    return json.loads(found.read_text())


@pytest.mark.only_on("postgresql")
def test_a_bell_needs_no_new_connection_and_a_task_of_the_project_has_what_celery_gives_it(world: World) -> None:
    world.start_worker(concurrency=1)
    world.await_workers()
    ours = {run(world, f"k{n}") for n in range(4)}
    theirs = [run_of_the_project(world, f"p{n}") for n in range(2)]
    assert len(ours) == 1
    assert [each["found_one"] for each in theirs] == [False, False]
    assert len(ours | {each["backend"] for each in theirs}) == 3, "each has one of its own"
    assert run(world, "after") in ours


def sent(beat: Process, task: str) -> int:
    return beat.log.read_text().count(f"Sending due task {task}")


def test_beat_is_silent_while_a_movers_thread_looks_and_is_the_guard_when_the_last_one_died(world: World) -> None:
    world.env["DELAYTASKS_OF_A_TEST"] = json.dumps({"SWEEP_SECONDS": 2, "MOVER_THREAD": False})
    world.start_worker("without", concurrency=1)
    world.env["DELAYTASKS_OF_A_TEST"] = json.dumps({"SWEEP_SECONDS": 2})
    worker = world.start_worker("with", concurrency=1)
    world.await_workers()
    with contextlib.closing(world.redis.client()) as client:
        world.until(lambda: client.keys("*:moving:*"), seconds=10, what="the mover's thread to say that it looks")
    beat = world.start_beat()
    world.await_workers()
    world.until(lambda: sent(beat, SWEEP) == 2, seconds=10, what="four seconds to pass, by its other entry")
    assert sent(beat, MOVE_DUE) == 0

    os.killpg(worker.pid, signal.SIGKILL)
    died = time.monotonic()
    world.until(lambda: sent(beat, MOVE_DUE), seconds=5, what="beat to send")
    assert time.monotonic() - died < 4
    schedule("quick", key="k", delay=0.5)
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=6, what="the job to run")
    (effect,) = world.effects("quick")
    assert 0 <= effect.at_ms - effect.due_ms < 2500
