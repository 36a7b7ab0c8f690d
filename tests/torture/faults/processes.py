"""Processes that are killed or stopped at random moments."""

import os
import random
import signal
from collections.abc import Callable

from tests.support.servers import wait_until

from .. import connections
from ..constants import TTR_SECONDS
from ..environment import Arena
from . import fault

BULK = 1000  # jobs; inserted with two statements, and their events with two more
KILLED_AT = (3, 2, 4)  # the statement at which the process is killed
CONNECTS_SECONDS = 10  # a mover, also after another fault
chance = random.Random(0)


@fault("a pool's process is killed in a handler", uses="pool", quick=True)
def kill_child(arena: Arena) -> None:
    for _ in range(5):
        children = arena.children(chance.choice(arena.those("worker")))
        if children:
            os.kill(chance.choice(children), signal.SIGKILL)
        arena.hold(0.5)


@fault("a worker's main process is killed", uses="worker")
def kill_main(arena: Arena) -> None:
    chance.choice(arena.those("worker")).signal(signal.SIGKILL)


@fault("a host vanishes: a worker and its children are killed at once", uses="worker", quick=True)
def kill_host(arena: Arena) -> None:
    chance.choice(arena.those("worker")).signal(signal.SIGKILL, children=True)


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
    """A late finisher: when it wakes up, its leases are over and other workers have its jobs."""
    worker = chance.choice(arena.those("worker"))
    worker.signal(signal.SIGSTOP, children=True)
    arena.hold(TTR_SECONDS + 2)
    worker.signal(signal.SIGCONT, children=True)


@fault("a worker with a pool of threads is stopped for longer than the TTR, and again", uses="worker", arena="threads")
def stop_threads(arena: Arena) -> None:
    """Its handlers are not interrupted; only the fencing token refuses their late finishes."""
    for _ in range(2):
        stop_worker(arena)
        arena.hold(2)


@fault("a worker with a pool of threads is killed", uses="worker", arena="threads")
def kill_threads(arena: Arena) -> None:
    kill_main(arena)


# Over HTTP


@fault("the web process is killed in the middle of a bulk create", uses="web", quick=True)
def kill_web(arena: Arena) -> None:
    """On PostgreSQL at a given statement, otherwise at a random moment before the answer."""
    web = arena.crew["web"]
    producer = arena.enlist_producer("bulk", at_once=BULK, rest_seconds=0, topic="torture.batch")
    try:
        for statements in KILLED_AT:
            arena.await_ready("web")
            if arena.postgres:
                connections.await_writing(arena, web.pid, statements)
            else:
                _await_bulk(arena, _ledger_size(arena))
                arena.hold(chance.uniform(0, 0.3))
            web.signal(signal.SIGKILL)
            web.process.popen.wait()
    finally:
        producer.stay_down()
        arena.await_ready("web")


def _await_bulk(arena: Arena, before: int) -> None:
    wait_until(lambda: _ledger_size(arena) > before, seconds=30, what="another bulk create")


def _ledger_size(arena: Arena) -> int:
    """Return the size of the producer's ledger, which grows with each request."""
    return sum(page.stat().st_size for page in arena.ledger.glob("producer-bulk-*.ledger"))


@fault("the web process is killed", uses="web")
def kill_web_once(arena: Arena) -> None:
    """While long polls are open and finishes are under way."""
    arena.crew["web"].signal(signal.SIGKILL)
    arena.hold(0.5)
    arena.await_ready("web")


@fault("an HTTP consumer is killed", uses="consumer", quick=True)
def kill_consumer(arena: Arena) -> None:
    """While it runs jobs, which come back after their TTR."""
    for _ in range(3):
        chance.choice(arena.those("consumer")).signal(signal.SIGKILL)
        arena.hold(1)


@fault("an HTTP consumer is stopped for longer than the TTR and goes on", uses="consumer")
def stop_consumer(arena: Arena) -> None:
    """A late finisher over HTTP."""
    consumer = chance.choice(arena.those("consumer"))
    consumer.signal(signal.SIGSTOP)
    try:
        arena.hold(TTR_SECONDS + 2)
    finally:
        consumer.signal(signal.SIGCONT)


# The mover thread


@fault("the movers' connections to PostgreSQL are cut, several times", uses="mover", databases=("postgres",))
def cut_mover_from_postgres(arena: Arena) -> None:
    _cut_several_times(arena, connections.cut_movers_of_postgres)


@fault("the movers' connections to Redis are cut, several times", uses="redis")
def cut_mover_from_redis(arena: Arena) -> None:
    _cut_several_times(arena, connections.cut_movers_of_redis)


def _cut_several_times(arena: Arena, cut: Callable[[Arena], int]) -> None:
    for _ in range(5):
        wait_until(lambda: cut(arena), seconds=CONNECTS_SECONDS, what="a mover to be connected")
        arena.hold(0.6)
