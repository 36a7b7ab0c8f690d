"""Faults of the Redis that is both mirror and broker: emptied, killed, rewound, stopped, full."""

import contextlib
import signal
from collections.abc import Iterator

from ..environment import Arena
from . import fault

STOPPED_SECONDS = 10
DOWN_SECONDS = 2
FULL_SECONDS = 5
ENDS_SECONDS = 3  # the time for jobs in the snapshot to end


@fault("Redis is flushed", uses="redis broker", quick=True)
def flush(arena: Arena) -> None:
    arena.redis.flush()


@fault("Redis is killed and comes back empty", uses="redis broker")
def restart_empty(arena: Arena) -> None:
    with _killed(arena):
        arena.hold(DOWN_SECONDS)


@fault("Redis is killed and comes back at once, empty", uses="redis broker")
def restart_at_once(arena: Arena) -> None:
    """So quickly that few clients notice; only its run id has changed."""
    with _killed(arena):
        pass


@fault("Redis comes back with an old snapshot", uses="redis broker", quick=True)
def rewind(arena: Arena) -> None:
    """The snapshot contains ended jobs, released run slots and consumed messages."""
    arena.redis.snapshot()
    try:
        arena.hold(ENDS_SECONDS)
        with _killed(arena):
            pass
    finally:
        arena.redis.forget_snapshot()


@fault("Redis is stopped for ten seconds and goes on", uses="redis broker")
def stop(arena: Arena) -> None:
    """It comes back unchanged: nothing shows that it missed writes."""
    process = arena.redis.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    try:
        arena.hold(STOPPED_SECONDS)
    finally:
        process.send_signal(signal.SIGCONT)


@fault("Redis is out of memory for a while", uses="redis broker")
def fill_up(arena: Arena) -> None:
    """It refuses commands that need memory, of the mirror and of the broker."""
    with contextlib.closing(arena.redis.client()) as client:
        client.config_set("maxmemory", "1")
        try:
            arena.hold(FULL_SECONDS)
        finally:
            client.config_set("maxmemory", "0")


@contextlib.contextmanager
def _killed(arena: Arena) -> Iterator[None]:
    """Kill Redis; after the block it is up again with its last snapshot, or empty."""
    arena.redis.stop(signal.SIGKILL)
    try:
        yield
    finally:
        arena.redis.start()
