"""What the parts of the engine share: which databases, which clock, and where to look for due jobs."""

import functools

from django.db import router

from . import conf, dialect, mirror
from .clock import DatabaseClock
from .exceptions import BadInput
from .mirror.index import Mirror
from .models import Job
from .places import Places
from .without_mirror import WithoutMirror


def aliases() -> list[str]:
    """The database aliases whose jobs are moved, run and guarded."""
    return list(conf.get().databases or [router.db_for_write(Job)])


def alias(using: str | None = None) -> str:
    """The alias in which a job lives: `using`, or the router's write database, never a replica. Raises BadInput."""
    known = aliases()
    using = using or router.db_for_write(Job)
    if using not in known:
        raise BadInput(
            f"using is {using!r}, but only the jobs of {', '.join(known)} are run: "
            f"add it to DELAYTASKS['DATABASES'], or they would wait for ever."
        )
    return using


def now_ms(using: str) -> int:
    """Now, in ms, by the database's clock; asks the database only now and then."""
    if dialect.fixed():
        return int(dialect.now_ms(using))
    return clock(using).now_ms()


def exact_ms(using: str) -> float:
    """now_ms() with its fraction, for who waits for a moment."""
    return dialect.now_ms(using) if dialect.fixed() else clock(using).exact_ms()


@functools.cache
def clock(using: str) -> DatabaseClock:
    return DatabaseClock(functools.partial(dialect.now_ms, using))


def mirror_of(using: str) -> Mirror | None:
    """The mirror of this database's jobs, up or down; None if no Redis is configured."""
    return mirror.connect(using)


def places(using: str) -> Places:
    """The mirror, or the database while no Redis is configured or it does not answer."""
    found = mirror_of(using)
    return WithoutMirror(using) if found is None or found.down else found


def tell(using: str) -> Places:
    """Whom to tell of a change: the mirror even while it is down (it says so in the log), or nobody."""
    return mirror_of(using) or WithoutMirror(using)
