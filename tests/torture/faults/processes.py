"""Processes that are killed or stopped, at whatever they are doing."""

import os
import random
import signal

from ..arena import Arena
from ..terms import TTR_SECONDS
from . import fault

chance = random.Random(0)


@fault("a pool's process is killed in a handler", uses="", quick=True)
def kill_child(arena: Arena) -> None:
    for _ in range(5):
        children = arena.children(chance.choice(arena.those("worker")))
        if children:
            os.kill(chance.choice(children), signal.SIGKILL)
        arena.hold(0.5)


@fault("a worker's main process is killed", uses="worker")
def kill_main(arena: Arena) -> None:
    chance.choice(arena.those("worker")).signal(signal.SIGKILL)


@fault("all workers are killed, children and all", uses="worker", quick=True)
def kill_all_workers(arena: Arena) -> None:
    for worker in arena.those("worker"):
        worker.signal(signal.SIGKILL, children=True)


@fault("beat is killed", uses="beat")
def kill_beat(arena: Arena) -> None:
    for beat in arena.those("beat"):
        beat.signal(signal.SIGKILL)


@fault("a worker is stopped for longer than the TTR and goes on", uses="worker", quick=True)
def stop_worker(arena: Arena) -> None:
    """The late finisher: its leases are over when it wakes up, and others have its jobs."""
    worker = chance.choice(arena.those("worker"))
    worker.signal(signal.SIGSTOP, children=True)
    arena.hold(TTR_SECONDS + 2)
    worker.signal(signal.SIGCONT, children=True)
