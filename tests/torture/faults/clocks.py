"""Wrong clocks, each in an installation of its own. The database's clock is correct.

With SQLite the database's clock is the host's, so these faults are only for PostgreSQL.
"""

import contextlib
import time

from ..environment import Arena
from ..faketime import OFF_SECONDS
from . import fault

POSTGRES, FAKETIME = ("postgres",), ("faketime",)
LASTS_SECONDS = 8
TOLERANCE_MS = 2_000


@fault("the hosts' clocks are 30 s ahead", arena="ahead", needs=FAKETIME, databases=POSTGRES)
def ahead(arena: Arena) -> None:
    assert_skewed(arena, OFF_SECONDS)
    arena.hold(LASTS_SECONDS)


@fault("the hosts' clocks are 30 s behind", arena="behind", needs=FAKETIME, databases=POSTGRES)
def behind(arena: Arena) -> None:
    assert_skewed(arena, -OFF_SECONDS)
    arena.hold(LASTS_SECONDS)


@fault("one worker's clock is 30 s ahead and another's behind", arena="apart", needs=FAKETIME, databases=POSTGRES)
def apart(arena: Arena) -> None:
    """A minute apart: as long as a run_topic message is valid."""
    assert_skewed(arena, 0)
    arena.hold(LASTS_SECONDS)


@fault("Redis's clock is 30 s ahead", arena="redis ahead", needs=FAKETIME, databases=POSTGRES)
def redis_ahead(arena: Arena) -> None:
    with contextlib.closing(arena.redis.client()) as client:
        skew_seconds = client.time()[0] - time.time()
    assert abs(skew_seconds - OFF_SECONDS) < 2, skew_seconds
    arena.hold(LASTS_SECONDS)


@fault("the hosts' clocks jump forward", arena="jumping", needs=FAKETIME, databases=POSTGRES)
def jump_forward(arena: Arena) -> None:
    jump(arena, OFF_SECONDS)


@fault("the hosts' clocks jump back", arena="jumping", needs=FAKETIME, databases=POSTGRES)
def jump_back(arena: Arena) -> None:
    jump(arena, -OFF_SECONDS)


def jump(arena: Arena, seconds: int) -> None:
    """Jump, and jump back."""
    try:
        arena.dial.turn(seconds)
        arena.hold(LASTS_SECONDS / 2)
        assert_skewed(arena, seconds)
    finally:
        arena.dial.turn(0)
    arena.hold(LASTS_SECONDS / 2)


def assert_skewed(arena: Arena, seconds: int) -> None:
    """Check that the fault is active, by the skew that the system reports."""
    skew_ms = arena.stats()["skew_ms"]
    assert abs(skew_ms - seconds * 1000) < TOLERANCE_MS, skew_ms
