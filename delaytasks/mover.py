"""The mover: what is due becomes ready, and somebody is told. Next: mirror/lua/promote_due.lua, then worker.py.

Two things call it: a thread in each worker, which sleeps until the next due time; and the
Celery beat task move_due, each second while no such thread looks. Any number may run, because the
script is atomic. A pass returns how long to rest, so a lost notification costs one guard
tick and no more.
"""

import logging
from collections.abc import Callable, Sequence

from .exceptions import MirrorDown
from .places import Places, Promotion

logger = logging.getLogger("delaytasks")


class Mover:
    """Moves what is due.

    places   where to look now: the mirror, or its stand-in while Redis is away
    now_ms   the database's time in ms, as exact as it gets
    topics   the topics that are known here
    ring     tells somebody that a topic has ready jobs
    """

    def __init__(
        self,
        places: Callable[[], Places],
        now_ms: Callable[[], float],
        topics: Callable[[], Sequence[str]],
        ring: Callable[[str], None],
        guard_tick_ms: int,
    ) -> None:
        self._places = places
        self._now_ms = now_ms
        self._topics = topics
        self._ring = ring
        self._guard_tick_ms = guard_tick_ms
        self._looked_ms = 0

    def move_due(self) -> float:
        """One pass; returns how many ms to rest: 0 if there is more to move at once."""
        try:
            promotion = self._pass(self._places())
        except MirrorDown:
            promotion = self._pass(self._places())  # the mirror counts as down now: the database answers
        if promotion.full:
            return 0
        if promotion.next_ms is None:
            return self._guard_tick_ms
        return max(0, min(promotion.next_ms - self._now_ms(), self._guard_tick_ms))

    def _pass(self, places: Places) -> Promotion:
        now_ms, topics = int(self._now_ms()), self._topics()
        # Once a tick at all that is ready: a bell may have been lost. The clock may have been set back.
        look = not 0 <= now_ms - self._looked_ms < self._guard_tick_ms
        promotion = places.promote_due(now_ms, topics, look=look)
        if look:
            self._looked_ms = now_ms
        for topic in sorted(promotion.topics):
            self._ring_for(topic)
        return promotion

    def _ring_for(self, topic: str) -> None:
        try:
            self._ring(topic)
        except MirrorDown:
            raise
        except Exception:  # one topic's trouble keeps no other waiting; the next look rings again
            logger.exception("mover: topic %s could not be rung for", topic)
