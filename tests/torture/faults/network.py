"""The network between the processes and the Redis that is mirror and broker."""

import contextlib
import random
from collections.abc import Iterator

from ..arena import Arena
from ..proxy import Proxy
from . import fault

LASTS_SECONDS = 6
REFUSES_SECONDS = 4
CUTS_ONE_IN = 20  # replies
SLOWLY_SECONDS = 0.3  # of the second that REDIS_TIMEOUT_SECONDS gives, and both ways have to go by in it
chance = random.Random(0)


@contextlib.contextmanager
def _hurt(arena: Arena) -> Iterator[Proxy]:
    try:
        yield arena.proxy
    finally:
        arena.proxy.heal()


@fault("connections to Redis are cut in the middle of a reply", uses="redis broker", arena="proxied", quick=True)
def cut(arena: Arena) -> None:
    """What was asked has been done, and the half answer is to be understood as none."""
    with _hurt(arena) as proxy:
        before = proxy.cuts
        proxy.cut_after = lambda: chance.randrange(1, 12) if chance.randrange(CUTS_ONE_IN) == 0 else None
        arena.hold(LASTS_SECONDS)
    assert proxy.cuts > before + LASTS_SECONDS, f"Only {proxy.cuts - before} connections were cut."


@fault("the answers of Redis are lost", uses="redis broker", arena="proxied")
def swallow(arena: Arena) -> None:
    """It does all that it is told, and everybody thinks that it is away."""
    with _hurt(arena) as proxy:
        proxy.swallows = True
        arena.hold(LASTS_SECONDS)
        proxy.cut_all()  # a connection that lost a part of its replies would be out of step for ever


@fault("Redis is slow to reach", uses="redis broker", arena="proxied")
def slow(arena: Arena) -> None:
    with _hurt(arena) as proxy:
        proxy.delay_seconds = SLOWLY_SECONDS
        arena.hold(LASTS_SECONDS)


@fault("Redis cannot be reached", uses="redis broker", arena="proxied")
def refuse(arena: Arena) -> None:
    with _hurt(arena) as proxy:
        proxy.refuses = True
        proxy.cut_all()
        arena.hold(REFUSES_SECONDS)
