"""Is Redis still the one that we filled? Its masters' run ids and a tick that the database keeps say so.

The database is asked now and then: what agreed with it a moment ago still does as long as Redis
says the same on the same connections. Another process's outage is noticed ten seconds later at worst; what is overdue
meanwhile is found each second all the same (see probe in sweeper.py).
"""

import time
from typing import NamedTuple
from weakref import WeakKeyDictionary

from . import dialect
from .mirror.index import Mirror
from .models import MirrorMark

TICK_EVERY_MS = 10_000


class Agreed(NamedTuple):
    """What Redis said when it agreed with the database."""

    at: float  # by the monotonic clock
    connected: int
    ticks: list[int | None]


_agreed: WeakKeyDictionary[Mirror, Agreed] = WeakKeyDictionary()


def lost_data(found: Mirror, using: str) -> bool:
    """Whether Redis is another one, empty, rewound, or was away since it was last filled. Ticks on if not."""
    ticks = found.ticks()
    connected = found.connected  # after that question and before the next, so that no new connection stays unseen
    last = _agreed.pop(found, None)
    if last and last[1:] == (connected, ticks) and time.monotonic() - last.at < TICK_EVERY_MS / 1000:
        _agreed[found] = last
        return False
    known = mark(using)
    if found.masters() != known.masters or any(each != known.tick for each in ticks):
        return True
    if found.alone("tick", TICK_EVERY_MS * 9 // 10):
        tick = next_tick(using)
        found.write_tick(tick)
        ticks = [tick] * len(ticks)
    _agreed[found] = Agreed(time.monotonic(), connected, ticks)
    return False


def forget(found: Mirror) -> None:
    """After an outage the database is asked at once: writes were lost, whatever Redis says."""
    _agreed.pop(found, None)


def mark(using: str) -> MirrorMark:
    """What the database remembers of the mirror."""
    return MirrorMark.objects.using(using).get_or_create(pk=1)[0]


def next_tick(using: str) -> int:
    """The tick goes on; the database knows it first, so a crash in between only costs a rebuild."""
    with dialect.cursor(using) as cursor:
        cursor.execute(
            f"INSERT INTO {MirrorMark._meta.db_table} AS mark (id, tick, masters) VALUES (1, 1, '{{}}') "
            "ON CONFLICT (id) DO UPDATE SET tick = mark.tick + 1 RETURNING tick"
        )
        return int(cursor.fetchone()[0])
