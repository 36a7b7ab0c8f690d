"""The mirror: a disposable Redis index of due times. Only this package imports redis and spells a key.

It says when to look, never what is true. A job is in at most one place of it, a bucket's due
zset or its topic's ready zset, and its entry may be early, never late.
"""

import functools
from typing import TYPE_CHECKING

from .. import conf

if TYPE_CHECKING:
    from .index import Mirror

__all__ = ["connect"]


def connect(using: str = "default") -> "Mirror | None":
    """The mirror of a database's jobs by the settings in force; None if no REDIS_URL is configured.

    One per process, settings and alias. Connects when it is first used.
    """
    settings = conf.get()
    return _mirror(id(settings), using) if settings.redis_url else None


@functools.lru_cache(maxsize=8)
def _mirror(_: int, using: str) -> "Mirror":
    from .index import Mirror  # not before it is needed: importing redis takes 100 ms

    return Mirror(conf.get(), using)
