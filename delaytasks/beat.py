"""What beat sends: the guards' messages; the mover's only while no mover's thread looks.

Imported before Django's apps are loaded, as bootsteps.py.
"""

import hashlib
import logging
from datetime import datetime
from typing import Any

import celery
from celery.schedules import schedstate, schedule

from . import conf, topics
from .exceptions import MirrorDown

logger = logging.getLogger("delaytasks")

# Before, a beat looks at no other entry as long as the first in its queue says that it is not due.
ENTRIES_IN_TURN = (5, 7)


class WhenNoneMoves(schedule):
    """Each tick while no mover's thread looks; not due, and next to free, while one does.

    Without Redis, or while it is down, nobody can say that a thread looks: then each tick. It is a
    plain interval to whoever stores schedules, such as django-celery-beat.
    """

    def is_due(self, last_run_at: datetime) -> Any:
        moving_ms = _moving_ms()
        if moving_ms > 0:  # look again when that is over, if nobody said it anew
            return schedstate(is_due=False, next=min(moving_ms / 1000, self.seconds))
        return super().is_due(last_run_at)


def _moving_ms() -> int:
    """For how long yet a mover's thread is taken to look after the jobs of every database."""
    from . import engine

    found = [engine.mirror_of(using) for using in engine.aliases()]
    try:
        return min(mirror.moving_ms(handlers()) if mirror else 0 for mirror in found)
    except MirrorDown:
        return 0
    except Exception:  # Celery would ask again after minutes; and a doubtful answer must be to send
        logger.exception("beat: it could not be told whether a mover looks; its message is sent")
        return 0


def handlers() -> str:
    """A short name of the handlers known here. A mover's thread that knows others rings for others."""
    return hashlib.sha256(" ".join(topics.handled()).encode()).hexdigest()[:12]


def add_entries(sender: celery.Celery, **_: Any) -> None:
    """Receiver of an app's on_after_finalize: its beat_schedule gets the engine's two entries."""
    settings = conf.get()
    tick_seconds = settings.guard_tick_ms / 1000
    in_turn = celery.VERSION[:2] >= ENTRIES_IN_TURN
    entries = {
        # The expiry is by the wall clocks of two hosts, and a pool may be busy when they come: it leaves room for both.
        "delaytasks.move_due": (WhenNoneMoves(tick_seconds) if in_turn else tick_seconds, max(tick_seconds * 2, 60)),
        "delaytasks.sweep": (settings.sweep_seconds, max(settings.sweep_seconds * 4, 60)),
    }
    for name, (when, expires) in entries.items():
        entry = {"task": name, "schedule": when, "options": {"expires": expires, "ignore_result": True}}
        sender.conf.beat_schedule = {**(sender.conf.beat_schedule or {}), name: entry}
