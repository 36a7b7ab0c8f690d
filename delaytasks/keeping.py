"""What was worked out is kept for a moment in Django's cache, for everybody who asks.

The cache may be missing, a process's own memory, or away with the Redis that is being looked into:
then it is worked out each time.
"""

import functools
import hashlib
import logging
import time
from collections.abc import Callable, Collection
from typing import Any

from django.core.cache import cache

from . import conf

logger = logging.getLogger("delaytasks")
KEPT_SECONDS = 3600  # shown to all but one while that one works out the next
FORMAT = 2  # of what is kept: another one when a class in it changes
WORKING_SECONDS = 15
WORTH = 10  # what took a second to work out is good for ten
PAUSE_SECONDS = 10  # a cache that failed is left alone for so long

_left_alone_until = 0.0


def name_of(*parts: Any, topics: Collection[str] | None = None) -> str:
    """A name for keep(): short, whatever the topics are called and however many there are."""
    among = "all" if topics is None else hashlib.sha256("\n".join(sorted(topics)).encode()).hexdigest()[:24]
    return ":".join([conf.get().prefix, f"numbers{FORMAT}", *map(str, parts), among])


def keep(name: str, seconds: float | Callable[[Any], float], make: Callable[[Any], Any]) -> Any:
    """What `make(what it was before, or None)` gave at most `seconds` ago, or gives now.

    seconds   or how to tell it from what was made

    While one caller works it out, others get what it was before. What takes long to work out is
    kept longer: nobody who leaves a page open can make this a load.
    """
    kept = get(name)
    before = kept[2] if kept else None
    if kept:
        fresh = seconds(before) if callable(seconds) else seconds
        if time.time() < kept[0] + max(fresh, WORTH * kept[1]):
            return before
    if kept and not _call(functools.partial(cache.add, f"{name}:working", 1, WORKING_SECONDS), True):
        return before
    began = time.monotonic()
    try:
        made = make(before)
        _call(functools.partial(cache.set, name, (time.time(), time.monotonic() - began, made), KEPT_SECONDS), None)
    finally:
        _call(functools.partial(cache.delete, f"{name}:working"), None)
    return made


def get(name: str) -> tuple[float, float, Any] | None:
    found = _call(functools.partial(cache.get, name), None)
    return found if isinstance(found, tuple) and len(found) == 3 else None


def _call(ask: Callable[[], Any], otherwise: Any) -> Any:
    """What the cache answers, or `otherwise` if it cannot: whatever it raises is no reason to show nothing."""
    global _left_alone_until
    if time.monotonic() < _left_alone_until:
        return otherwise
    try:
        return ask()
    except Exception as error:  # each cache has errors of its own
        _left_alone_until = time.monotonic() + PAUSE_SECONDS
        logger.warning("the cache does not answer, numbers are worked out each time: %r", error)
        return otherwise
