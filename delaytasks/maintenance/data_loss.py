"""Detect that Redis lost data: its masters' run ids or its tick then differ from those stored in the database.

After a check without differences, the database is not read again for ten seconds, as long as Redis returns the same
ticks over the same connections. So if only another process noticed an outage, this process notices it at most ten
seconds later. During these seconds, the guard's probe still finds missing overdue jobs every second.
"""

import time
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from django.db.models import Q

from ..db import dialects
from ..db.retries import retry_conflicts
from ..mirror.redis.index import Mirror
from ..models import MirrorMark

TICK_EVERY_MS = 10_000


class Check(NamedTuple):
    """The state of Redis at the last check that found no difference from the database."""

    at: float  # the time of the check, by time.monotonic()
    connection_count: int
    ticks: list[int | None]


_last_checks: WeakKeyDictionary[Mirror, Check] = WeakKeyDictionary()


def lost_data(index: Mirror, using: str) -> bool:
    """Return whether Redis is new, empty, rewound, or was down since it was filled.

    If Redis is none of these, one process increments the tick about every ten seconds.
    """
    ticks = index.ticks()
    connection_count = index.connection_count  # read between ticks and masters, so that no reconnect is missed
    last = _last_checks.pop(index, None)
    if last and last[1:] == (connection_count, ticks) and time.monotonic() - last.at < TICK_EVERY_MS / 1000:
        _last_checks[index] = last
        return False
    mark = get_or_create_mark(using)
    if index.masters() != mark.masters or any(tick != mark.tick for tick in ticks):
        return True
    if index.lock("tick", TICK_EVERY_MS * 9 // 10).acquire():
        tick = increment_tick(using)
        index.write_tick(tick)
        ticks = [tick] * len(ticks)
    _last_checks[index] = Check(time.monotonic(), connection_count, ticks)
    return False


def drop_cached_check(index: Mirror) -> None:
    """Delete the cached check: an outage loses writes, even if Redis then returns the same ticks."""
    _last_checks.pop(index, None)


def get_or_create_mark(using: str, **defaults: Any) -> MirrorMark:
    """Return the MirrorMark row. It is created, with these values, if it does not exist."""
    return retry_conflicts(lambda: MirrorMark.objects.using(using).get_or_create(pk=1, defaults=defaults)[0], using)


def increment_tick(using: str) -> int:
    """Increment the tick in the database and return it.

    A caller that writes the tick to Redis does so afterwards: a crash between the two only causes a rebuild.
    """
    sql = f"""INSERT INTO {MirrorMark._meta.db_table} AS mark (id, tick, masters) VALUES (1, 1, '{{}}')
        ON CONFLICT (id) DO UPDATE SET tick = mark.tick + 1 RETURNING tick"""
    return int(dialects.run(using, sql, [])[0][0])


def update_mark(using: str, *conditions: Q, **values: Any) -> bool:
    """Update the MirrorMark row if it meets the conditions. Return False if there is no such row."""
    rows = MirrorMark.objects.using(using).filter(*conditions, pk=1)
    return bool(retry_conflicts(lambda: rows.update(**values), using))
