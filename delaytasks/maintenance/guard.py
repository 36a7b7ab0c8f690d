"""The guard: once a second, rebuild the mirror if Redis lost data, or add overdue jobs that the mirror lacks."""

import logging
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

from django.db import DatabaseError, InterfaceError, connections
from django.db.models import Q

from .. import conf, databases, mirror
from ..db import lookups
from ..exceptions import MirrorDown
from ..mirror.redis.index import Mirror
from . import passes
from .data_loss import TICK_EVERY_MS, drop_cached_check, get_or_create_mark, increment_tick, lost_data, update_mark
from .feed import PAGE, add_page, rebuild

Result = TypeVar("Result")
logger = logging.getLogger("delaytasks")
OVERDUE_AGE_MS = 500  # jobs due more recently are left out: they are probably being run
PROBE_OVERLAP_MS = 2_000  # a probe goes back this far, for jobs whose transactions committed late
PROBE_SECONDS = 0.1  # time limit of each scan: a large backlog must leave the CPUs to the workers
_noticed_outages: set[str] = set()  # aliases of the databases whose mirror this process knows to be down
_heartbeats: dict[str, float] = {}  # alias -> monotonic time of this process's last heartbeat


def guard(using: str) -> int:
    """Repair the mirror if Redis has lost data, and run the passes. Return how many overdue jobs probe() added to it.

    The heartbeat and the passes run in each process, the check of the mirror in one process at a time. The passes are
    last: they read the project's tables, where a migration may be missing or a lock be held. A step that fails is
    logged, and holds up no other.
    """
    _record_heartbeat(using)
    added = try_step(_check_mirror, using) or 0
    for each in passes:
        try_step(each, using)
    return added


def _check_mirror(using: str) -> int:
    index = mirror.connect(using)
    if index is None:
        return 0
    try:
        if index.down:
            raise MirrorDown
        if not index.lock("guard", conf.get().guard_tick_ms * 9 // 10).acquire():
            return 0
        if not lost_data(index, using):
            _noticed_outages.discard(using)
            return probe(index, using)
        logger.warning("mirror: Redis is new, empty, rewound, or was down")
        if rebuild(using) is None:  # another process is rebuilding, or died doing so: do not wait for it
            return probe(index, using)
        _noticed_outages.discard(using)  # an outage that begins before the next guard is a new one
        return 0
    except MirrorDown:
        if using not in _noticed_outages:
            _noticed_outages.add(using)
            drop_cached_check(index)
            increment_tick(using)  # Redis lacks this tick: the mirror is rebuilt even if Redis comes back unchanged
        return 0


def try_step(step: Callable[[str], Result], using: str) -> Result | None:
    """Return step(using), or None if it failed, which is logged. Raises the error if the database cannot be reached."""
    try:
        return step(using)
    except Exception as error:
        if isinstance(error, DatabaseError | InterfaceError) and not connections[using].is_usable():
            raise
        logger.exception("%s failed; it is called again by the next guard or sweep", step)
        return None


def _record_heartbeat(using: str) -> None:
    """Record every ten seconds that a mover runs. The admin shows the age of this heartbeat."""
    now = databases.now(using)
    if time.monotonic() - _heartbeats.get(using, -math.inf) < TICK_EVERY_MS / 1000:
        return
    _heartbeats[using] = time.monotonic()
    old = Q(heartbeat_at=None) | Q(heartbeat_at__lt=now - timedelta(milliseconds=TICK_EVERY_MS // 2))
    if not update_mark(using, old, heartbeat_at=now):  # another process has just recorded it, or there is no row
        get_or_create_mark(using, heartbeat_at=now)


def probe(index: Mirror, using: str) -> int:
    """Add the overdue jobs that are neither running nor in the mirror. Return how many were added.

    Each call scans overdue jobs for about 0.1 seconds, starting where the last call stopped. After the newest job, the
    next call starts with the oldest again. A call that cannot scan all overdue jobs also scans those that became
    overdue since the last call. So a missing job is found soon, even if the backlog of ready jobs is large.
    """
    now_ms = databases.now_ms(using)
    last_ms, due_ms, job_id = index.probe_cursor()
    missing, end = _scan(index, using, (due_ms, job_id))
    if (due_ms, job_id, *end) != (0, 0, 0, 0):
        missing += _scan(index, using, (max(last_ms - PROBE_OVERLAP_MS, 0), 0))[0]
    index.probe_cursor((now_ms - OVERDUE_AGE_MS, *end))
    if missing:
        index.count("repaired", missing)
        logger.warning("mirror: %s overdue jobs were missing and have been added", missing)
    return missing


def _scan(index: Mirror, using: str, after: tuple[int, int]) -> tuple[int, tuple[int, int]]:
    """Add missing jobs, a page at a time. Return (number added, next cursor): (0, 0) if there are no more pages."""
    missing, deadline = 0, time.monotonic() + PROBE_SECONDS
    while page := lookups.overdue(using, age_ms=OVERDUE_AGE_MS, after=after, limit=PAGE):
        missing += add_page(index, page)
        after = (page[-1].due_ms, page[-1].id)
        if len(page) < PAGE or time.monotonic() > deadline:
            break
    return missing, after if len(page) == PAGE else (0, 0)
