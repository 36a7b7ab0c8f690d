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


def connect() -> "Mirror | None":
    """The mirror of the settings in force, one per process; None if no REDIS_URL is configured."""
    settings = conf.get()
    return _mirror(settings.redis_url, settings.prefix, settings.buckets) if settings.redis_url else None


@functools.lru_cache(maxsize=8)
def _mirror(*_: object) -> "Mirror":
    from .index import Mirror  # not before it is needed: importing redis takes 100 ms

    return Mirror(conf.get())
