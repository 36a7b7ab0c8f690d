"""Processes that are killed or stopped, at whatever they are doing."""

import os
import random
import signal

from tests.servers import wait_until

from .. import connections
from ..arena import Arena
from ..terms import TTR_SECONDS
from . import fault

BULK = 1000  # two statements for the jobs, two for their events: half of them could be there
KILLED_AT = (3, 2, 4)  # which of these
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


@fault("a worker with a pool of threads is stopped for longer than the TTR, and again", uses="worker", arena="threads")
def stop_threads(arena: Arena) -> None:
    """Nobody interrupts its handlers when they wake up: what they finish too late is refused by the fence alone."""
    for _ in range(2):
        stop_worker(arena)
        arena.hold(2)


@fault("a worker with a pool of threads is killed", uses="worker", arena="threads")
def kill_threads(arena: Arena) -> None:
    kill_main(arena)


# Over HTTP


@fault("the web process is killed in the middle of a bulk create", uses="web", quick=True)
def kill_web(arena: Arena) -> None:
    """On PostgreSQL at a certain one of its statements, otherwise somewhere between question and answer."""
    web = arena.crew["web"]
    producer = arena.enlist_producer("bulk", at_once=BULK, rest_seconds=0, topic="torture.batch")
    try:
        for statements in KILLED_AT:
            arena.await_ready("web")
            if arena.postgres:
                connections.await_writing(arena, web.pid, statements)
            else:
                _await_bulk(arena, _asked(arena))
                arena.hold(chance.uniform(0, 0.3))
            web.signal(signal.SIGKILL)
            web.process.popen.wait()
    finally:
        producer.stay_down()
        arena.await_ready("web")


def _await_bulk(arena: Arena, before: int) -> None:
    wait_until(lambda: _asked(arena) > before, seconds=30, what="another bulk create")


def _asked(arena: Arena) -> int:
    """How much the producer has written down: more with each question."""
    return sum(page.stat().st_size for page in arena.ledger.glob("producer-bulk-*.ledger"))


@fault("the web process is killed", uses="web")
def kill_web_once(arena: Arena) -> None:
    """Polls are open in it, and finishes may be on their way."""
    arena.crew["web"].signal(signal.SIGKILL)
    arena.hold(0.5)
    arena.await_ready("web")


@fault("an HTTP consumer is killed", uses="consumer", quick=True)
def kill_consumer(arena: Arena) -> None:
    """With jobs in hand: they come back when their TTR is over."""
    for _ in range(3):
        chance.choice(arena.those("consumer")).signal(signal.SIGKILL)
        arena.hold(1)


@fault("an HTTP consumer is stopped for longer than the TTR and goes on", uses="consumer")
def stop_consumer(arena: Arena) -> None:
    """The late finisher over HTTP."""
    consumer = chance.choice(arena.those("consumer"))
    consumer.signal(signal.SIGSTOP)
    try:
        arena.hold(TTR_SECONDS + 2)
    finally:
        consumer.signal(signal.SIGCONT)


# The mover's thread


@fault("the movers' connections to PostgreSQL are cut, several times", uses="", databases=("postgres",))
def cut_mover_from_postgres(arena: Arena) -> None:
    cut = 0
    for _ in range(5):
        cut += connections.cut_movers_of_postgres(arena)
        arena.hold(0.6)
    assert cut, "No mover had a connection."


@fault("the movers' connections to Redis are cut, several times", uses="redis")
def cut_mover_from_redis(arena: Arena) -> None:
    cut = 0
    for _ in range(5):
        cut += connections.cut_movers_of_redis(arena)
        arena.hold(0.6)
    assert cut, "No mover had a connection."
