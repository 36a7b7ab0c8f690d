"""The entries for beat's schedule: the sweep, and move_due while no mover thread runs.

Like celery/bootsteps.py, this module is imported before Django's apps are loaded.
"""

import hashlib
import logging
from datetime import datetime
from typing import Any

import celery
from celery.schedules import schedstate, schedule

from .. import conf
from .. import handlers as registry
from ..exceptions import MirrorDown

logger = logging.getLogger("delaytasks")

# Before this version, beat checks no other entry while the first one in its heap is not due.
CELERY_WITH_FAIR_HEAP = (5, 7)


class FallbackSchedule(schedule):
    """A schedule that is due each tick while no mover thread runs, and not due while one runs.

    Each check costs one Redis command. Without Redis, or while it is down, no heartbeat can be read, and the schedule
    is due each tick. Code that stores schedules, such as django-celery-beat, treats it as a plain interval.
    """

    def is_due(self, last_run_at: datetime) -> Any:
        heartbeat_ms = _mover_heartbeat_ms()
        if heartbeat_ms > 0:  # check again when the heartbeat expires
            return schedstate(is_due=False, next=min(heartbeat_ms / 1000, self.seconds))
        return super().is_due(last_run_at)


def _mover_heartbeat_ms() -> int:
    """Return for how many ms the mover threads' heartbeats stay valid, or 0 if any database has none."""
    from .. import databases, mirror

    mirrors = [mirror.connect(using) for using in databases.aliases()]
    try:
        return min(mirror.mover_heartbeat_ms(handlers_digest()) if mirror else 0 for mirror in mirrors)
    except MirrorDown:
        return 0
    except Exception:  # raised, it would delay beat's next check by minutes; when in doubt, send move_due
        logger.exception("beat: the mover threads' heartbeats cannot be read; move_due is sent")
        return 0


def handlers_digest() -> str:
    """Return a digest of the topics handled in this process. A mover thread with another digest serves other topics."""
    return hashlib.sha256(" ".join(registry.handled()).encode()).hexdigest()[:12]


def add_entries(sender: celery.Celery, **_: Any) -> None:
    """Add the two entries to the app's beat_schedule; receiver of Celery's on_after_finalize."""
    settings = conf.get()
    # django-celery-beat stores whole seconds: a shorter interval would become 0, and beat would send without a pause.
    tick_seconds = max(settings.guard_tick_ms / 1000, 1)
    fair_heap = celery.VERSION[:2] >= CELERY_WITH_FAIR_HEAP
    entries = {
        # The expiry times leave room for a busy pool, and for the difference between the clocks of two hosts.
        "delaytasks.move_due": (
            FallbackSchedule(tick_seconds) if fair_heap else tick_seconds,
            max(tick_seconds * 2, 60),
        ),
        "delaytasks.sweep": (settings.sweep_seconds, max(settings.sweep_seconds * 4, 60)),
    }
    for name, (interval, expires) in entries.items():
        entry = {"task": name, "schedule": interval, "options": {"expires": expires, "ignore_result": True}}
        sender.conf.beat_schedule = {**(sender.conf.beat_schedule or {}), name: entry}
