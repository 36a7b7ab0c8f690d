"""What the parts of the engine share: which database, which clock, and where to look for due jobs."""

import functools

from django.db import router

from . import dialect, mirror
from .clock import DatabaseClock
from .models import Job
from .places import Places
from .without_mirror import WithoutMirror


def alias(using: str | None = None) -> str:
    """The database alias in which jobs live: `using`, or the router's write database, never a replica."""
    return using or router.db_for_write(Job)


def now_ms(using: str) -> int:
    """Now, in ms, by the database's clock; asks the database only now and then."""
    if dialect.fixed():
        return int(dialect.now_ms(using))
    return clock(using).now_ms()


@functools.cache
def clock(using: str) -> DatabaseClock:
    return DatabaseClock(functools.partial(dialect.now_ms, using))


def places(using: str) -> Places:
    """The mirror, or the database while no Redis is configured or it does not answer."""
    found = mirror.connect()
    return WithoutMirror(using) if found is None or found.down else found


def tell(using: str) -> Places:
    """Whom to tell of a change: the mirror even while it is down (it says so in the log), or nobody."""
    return mirror.connect() or WithoutMirror(using)
