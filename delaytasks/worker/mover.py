"""The mover makes due jobs ready and dispatches their topics to workers.

The steps of a job: promote_due.lua in mirror/redis/lua makes it ready, dispatch.py wakes or starts a runner for its
topic, and runner.py runs it.

A thread in each worker calls the mover and sleeps until the next due time. While no such thread is alive, Celery beat
sends the task move_due every GUARD_TICK_MS, which calls it. Any number of movers may run at the same time. A mover
never rests longer than GUARD_TICK_MS, so a lost notification delays a job by at most that time.
"""

import logging
from collections.abc import Callable, Sequence

from ..exceptions import MirrorDown
from ..mirror.base import DueIndex, Promotion

logger = logging.getLogger("delaytasks")


class Mover:
    """Moves due jobs from delayed to ready.

    choose_index    returns the index to use now: the mirror, or the database while Redis is down or not configured
    now_ms          returns the database's time in ms since 1970, as exact as possible
    topics          returns the topics that this process serves
    dispatch        called with each topic that has ready jobs
    guard_tick_ms   the longest rest between two passes
    """

    def __init__(
        self,
        choose_index: Callable[[], DueIndex],
        now_ms: Callable[[], float],
        topics: Callable[[], Sequence[str]],
        dispatch: Callable[[str], None],
        guard_tick_ms: int,
    ) -> None:
        self._choose_index = choose_index
        self._now_ms = now_ms
        self._topics = topics
        self._dispatch = dispatch
        self._guard_tick_ms = guard_tick_ms
        self._checked_all_ms = 0

    def move_due(self) -> float:
        """Make one pass. Return the milliseconds to rest until the next pass, 0 if more jobs are due now."""
        try:
            promotion = self._pass(self._choose_index())
        except MirrorDown:
            # The mirror is marked as down now, so this is the database.
            promotion = self._pass(self._choose_index())
        if promotion.full:
            return 0
        if promotion.next_ms is None:
            return self._guard_tick_ms
        return max(0, min(promotion.next_ms - self._now_ms(), self._guard_tick_ms))

    def _pass(self, index: DueIndex) -> Promotion:
        now_ms, topics = int(self._now_ms()), self._topics()
        # Once a tick, list all topics with ready jobs, as a message may have been lost. "not 0 <=": the clock may have
        # been set back.
        check_all = not 0 <= now_ms - self._checked_all_ms < self._guard_tick_ms
        promotion = index.promote_due(now_ms, topics, list_ready=check_all)
        if check_all:
            self._checked_all_ms = now_ms
        for topic in sorted(promotion.topics):
            self._try_dispatch(topic)
        return promotion

    def _try_dispatch(self, topic: str) -> None:
        try:
            self._dispatch(topic)
        except MirrorDown:
            raise
        except Exception:  # go on with the other topics; this one is dispatched again within a tick
            logger.exception("mover: topic %s could not be dispatched", topic)
