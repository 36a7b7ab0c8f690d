"""The network between the processes and the Redis that is mirror and broker."""

import contextlib
import random
from collections.abc import Iterator

from ..environment import Arena
from ..proxy import Proxy
from . import fault

LASTS_SECONDS = 6
REFUSES_SECONDS = 4
CUTS_ONE_IN = 20  # replies
SLOW_SECONDS = 0.3  # in each direction; both have to fit into REDIS_TIMEOUT_SECONDS, which is 1 s
chance = random.Random(0)


@contextlib.contextmanager
def _faulty_network(arena: Arena) -> Iterator[Proxy]:
    try:
        yield arena.proxy
    finally:
        arena.proxy.heal()


@fault("connections to Redis are cut in the middle of a reply", uses="redis broker", arena="proxied", quick=True)
def cut(arena: Arena) -> None:
    """The command was carried out, but its reply is incomplete."""
    with _faulty_network(arena) as proxy:
        before = proxy.cuts
        proxy.cut_after = lambda: chance.randrange(1, 12) if chance.randrange(CUTS_ONE_IN) == 0 else None
        arena.hold(LASTS_SECONDS)
    assert proxy.cuts > before + LASTS_SECONDS, f"Only {proxy.cuts - before} connections were cut."


@fault("the answers of Redis are lost", uses="redis broker", arena="proxied")
def swallow(arena: Arena) -> None:
    """Redis carries out all commands, but seems to be down."""
    with _faulty_network(arena) as proxy:
        proxy.swallows = True
        arena.hold(LASTS_SECONDS)
        proxy.cut_all()  # a connection that lost replies would stay out of step


@fault("Redis is slow to reach", uses="redis broker", arena="proxied")
def slow(arena: Arena) -> None:
    with _faulty_network(arena) as proxy:
        proxy.delay_seconds = SLOW_SECONDS
        arena.hold(LASTS_SECONDS)


@fault("Redis cannot be reached", uses="redis broker", arena="proxied")
def refuse(arena: Arena) -> None:
    with _faulty_network(arena) as proxy:
        proxy.refuses = True
        proxy.cut_all()
        arena.hold(REFUSES_SECONDS)
