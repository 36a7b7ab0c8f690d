"""Hold a topic while its target is unavailable: its jobs stay ready, and now and then one of them probes the target.

The topic's row has the start of the hold (held_since), its reason (held_why) and the time of the next probe
(held_until). Until then no run of the topic is started, as if it was paused (delaytasks.topics). A hold is independent
of `paused`, which staff set.
"""

import math
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import TypeVar

from django.db.models import Q

from .. import databases, topics
from ..db.retries import retry_conflicts, try_twice
from ..models import Topic

FIRST_PROBE_SECONDS = 5
LAST_PROBE_SECONDS = 300
WHY_CHARS = 500
Result = TypeVar("Result")


class Turn(Enum):
    """What may be sent of a topic's jobs."""

    ALL = "all"
    PROBE = "probe"  # one job, which tests the target
    NONE = "none"


def hold(using: str, topic: str, why: str | None, retry_seconds: float | None) -> float:
    """Hold the topic, or extend its hold. Return the seconds until the next probe.

    why             the reason; None: a hold that has not ended meanwhile is extended, with its former reason
    retry_seconds   the wait that the target asked for. None: as long as the topic has been held so far, at least
                    FIRST_PROBE_SECONDS and at most LAST_PROBE_SECONDS
    """
    return _retrying(lambda: _hold(using, topic, why, retry_seconds), using)


def _hold(using: str, topic: str, why: str | None, retry_seconds: float | None) -> float:
    now = databases.now(using)
    rows = Topic.objects.using(using).filter(name=topic)
    if why is not None:
        Topic.objects.using(using).bulk_create([Topic(name=topic)], ignore_conflicts=True)
        rows.filter(held_since=None).update(held_since=now)
    since = rows.values_list("held_since", flat=True).first() or now
    seconds = max(_interval_seconds(since, now) if retry_seconds is None else retry_seconds, 1.0)
    reason = {} if why is None else {"held_why": why[:WHY_CHARS].replace("\x00", "")}
    until = now + timedelta(milliseconds=math.ceil(seconds * 1000))
    rows.exclude(held_since=None).update(held_until=until, **reason)
    topics.clear_cache()
    return seconds


def _interval_seconds(since: datetime, now: datetime) -> float:
    return min(max((now - since).total_seconds(), FIRST_PROBE_SECONDS), LAST_PROBE_SECONDS)


def turn(using: str, topic: str, ttr_ms: int) -> Turn:
    """Return what may be sent of the topic's jobs. The first call after the time of the next probe returns PROBE.

    ttr_ms   TTR of the probe: no other probe is sent before it is over, or before LAST_PROBE_SECONDS
    """
    return _retrying(lambda: _turn(using, topic, ttr_ms), using)


def _turn(using: str, topic: str, ttr_ms: int) -> Turn:
    row = Topic.objects.using(using).filter(name=topic).values_list("held_since", "held_until").first()
    if row is None or row[0] is None:
        return Turn.ALL
    now = databases.now(using)
    if row[1] is None or row[1] <= now:
        due = Topic.objects.using(using).filter(Q(held_until=None) | Q(held_until__lte=now), name=topic)
        if due.update(held_until=now + timedelta(seconds=min(ttr_ms / 1000, LAST_PROBE_SECONDS))):
            topics.clear_cache()
            return Turn.PROBE
    return Turn.NONE


def release(using: str, topic: str) -> None:
    """End the hold of a topic. Writes nothing if the topic is not held."""
    held = Topic.objects.using(using).filter(name=topic, held_since__isnull=False)
    if _retrying(lambda: held.update(held_since=None, held_why="", held_until=None), using):
        topics.clear_cache()


def _retrying(call: Callable[[], Result], using: str) -> Result:
    """Return call(). Repeat it after a conflict, or over a new connection if the old one is broken.

    The connection may have been lost while a target was called.
    """
    return try_twice(lambda: retry_conflicts(call, using), using)
