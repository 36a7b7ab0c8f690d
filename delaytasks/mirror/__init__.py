"""The mirror: an index of due times in Redis. It is disposable; the database can rebuild it at any time.

The mirror tells only when to read the database; the database alone decides whether a job is due. A job has at most
one entry, in its bucket's due zset or in its topic's ready zset. While the job is not reserved, the entry's time may
be earlier than the due time, never later. Without Redis, or while it is down, the database is used instead
(database.py). Only modules in redis/ import redis and contain names of keys.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from .. import conf
from ..exceptions import MirrorDown

if TYPE_CHECKING:
    from .base import DueIndex
    from .redis.index import Mirror

__all__ = ["choose", "connect", "read", "writable"]

Result = TypeVar("Result")

_mirrors: dict[str, "Mirror"] = {}  # by alias; never evicted, because each has a connection and a circuit breaker


def connect(using: str = "default") -> "Mirror | None":
    """Return the mirror of a database's jobs, even if it is down, or None if no REDIS_URL is configured.

    There is one mirror per process, settings object and alias. It connects to Redis on first use.
    """
    settings = conf.get()
    if not settings.redis_url:
        return None
    mirror = _mirrors.get(using)
    if mirror is None or mirror.settings is not settings:
        from .redis.index import Mirror  # imported late: importing redis takes 100 ms

        mirror = _mirrors[using] = Mirror(settings, using)
    return mirror


def choose(using: str) -> "DueIndex":
    """Return the index to read: the mirror, or the database while Redis is down or not configured."""
    mirror = connect(using)
    return _database(using) if mirror is None or mirror.down else mirror


def read(using: str, ask: Callable[["DueIndex"], Result]) -> Result:
    """Return ask(index) for the index to read. If Redis fails meanwhile, ask the database instead."""
    try:
        return ask(choose(using))
    except MirrorDown:
        return ask(_database(using))


def writable(using: str) -> "DueIndex":
    """Return the index to write: the mirror, even while it is down, because it then logs every lost write.

    If Redis is not configured, return the database's index, whose writes do nothing.
    """
    return connect(using) or _database(using)


def _database(using: str) -> "DueIndex":
    from .database import DatabaseIndex  # imported late: it needs the models

    return DatabaseIndex(using)
