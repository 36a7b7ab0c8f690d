"""Add jobs from the database to the mirror: with feed() those that have come within the horizon, with rebuild() all.

rebuild() is called after Redis has lost data.
"""

import logging
from collections.abc import Iterator

from .. import conf, databases, mirror
from ..clock import from_ms, to_ms
from ..db import lookups
from ..db.lookups import JobSnapshot
from ..exceptions import MirrorDown
from ..mirror.base import Entry
from ..mirror.redis.index import Mirror
from ..mirror.redis.lock import Lock, LockLost
from .data_loss import get_or_create_mark, increment_tick, update_mark

logger = logging.getLogger("delaytasks")
PAGE = 500
REBUILD_LOCK_MS = 15_000  # the lock is extended before each page


def rebuild(using: str | None = None) -> int | None:
    """Add all jobs within the horizon to the mirror. Return how many entries were missing.

    Stale entries are not removed: each costs one refused claim. Runs in one process at a time. Returns None if another
    process is rebuilding, if the lock was lost, or without Redis. Raises MirrorDown.
    """
    using = databases.alias(using)
    index = mirror.connect(using)
    if index is None:
        return None
    lock = index.lock("rebuild", REBUILD_LOCK_MS)
    if not lock.acquire():
        return None
    try:
        added = _fill(index, using, lock)
    except LockLost:
        logger.warning("mirror: a rebuild lost its lock and stopped; the next guard rebuilds if necessary")
        return None
    finally:
        lock.release()
    index.record_rebuild(databases.last_known_ms(using))
    logger.info("mirror: rebuilt from the database, %s entries were missing", added)
    return added


def _fill(index: Mirror, using: str, lock: Lock) -> int:
    """Add all jobs within the horizon, then record in the database and in Redis that the mirror is complete.

    Returns how many entries were missing. Raises LockLost and MirrorDown. A rebuild without the lock must not record
    that the mirror is complete: Redis may have lost added pages, and the rebuild by another process that noticed the
    loss may not have added them again yet. The jobs on these pages would then run late.
    """
    masters = index.masters()  # read first, so that a restart of Redis during the rebuild is noticed
    until_ms = databases.now_ms(using) + conf.get().horizon_ms
    added = 0
    for page in window(using, 0, until_ms):
        lock.extend()
        added += add_page(index, page)
    lock.extend()
    tick = increment_tick(using)
    update_mark(using, masters=masters, fed_until=from_ms(until_ms))
    index.write_tick(tick)
    try:
        lock.extend()
    except (LockLost, MirrorDown):
        increment_tick(using)  # Redis lacks this tick, so the next guard rebuilds the mirror
        raise
    return added


def window(using: str, after_ms: int, until_ms: int) -> Iterator[list[JobSnapshot]]:
    """Yield pages of the live jobs due from `after_ms` to `until_ms`, oldest first."""
    after = (after_ms, 0)
    while page := lookups.window(using, until_ms=until_ms, after=after, limit=PAGE):
        yield page
        after = (page[-1].due_ms, page[-1].id)


def add_page(index: Mirror, page: list[JobSnapshot]) -> int:
    """Add a page of jobs to the mirror. Return how many had no entry before. Raises MirrorDown."""
    return index.feed(Entry(s.id, s.topic, s.entry_ms, s.priority) for s in page)


def feed(index: Mirror, using: str) -> int:
    """Add the jobs that have come within the horizon. Return how many had no entry before. Raises MirrorDown.

    Each job is read once. A job whose transaction commits after this has read its due time was added by that commit:
    jobs/on_commit.py adds all that are due up to OVERLAP_MS after the horizon.
    """
    mark = get_or_create_mark(using)
    now_ms = databases.now_ms(using)
    until_ms = now_ms + conf.get().horizon_ms
    fed_ms = to_ms(mark.fed_until) if mark.fed_until else now_ms
    added = sum(add_page(index, page) for page in window(using, fed_ms + 1, until_ms))
    update_mark(using, fed_until=from_ms(until_ms))
    return added
