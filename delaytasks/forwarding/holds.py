"""Hold a topic while its target is unavailable: its jobs are snoozed, and now and then one of them probes the target.

The topic's row has the start of the hold (held_since), its reason (held_why) and the time of the next probe
(held_until). A hold is independent of `paused`, which staff set.
"""

from datetime import datetime, timedelta

from django.db.models import Q

from .. import databases
from ..models import Topic

FIRST_PROBE_SECONDS = 5
LAST_PROBE_SECONDS = 300
WHY_CHARS = 500


def hold(using: str, topic: str, why: str | None, retry_seconds: float | None) -> float:
    """Hold the topic, or extend its hold. Return the seconds until the next probe.

    why             the reason; None: a hold that has not ended meanwhile is extended, with its former reason
    retry_seconds   the wait that the target asked for. None: as long as the topic has been held so far, at least
                    FIRST_PROBE_SECONDS and at most LAST_PROBE_SECONDS
    """
    now = databases.now(using)
    rows = Topic.objects.using(using).filter(name=topic)
    if why is not None:
        Topic.objects.using(using).bulk_create([Topic(name=topic)], ignore_conflicts=True)
        rows.filter(held_since=None).update(held_since=now)
    since = rows.values_list("held_since", flat=True).first() or now
    seconds = max(_interval_seconds(since, now) if retry_seconds is None else retry_seconds, 1.0)
    reason = {} if why is None else {"held_why": why[:WHY_CHARS].replace("\x00", "")}
    rows.exclude(held_since=None).update(held_until=now + timedelta(seconds=seconds), **reason)
    return seconds


def _interval_seconds(since: datetime, now: datetime) -> float:
    return min(max((now - since).total_seconds(), FIRST_PROBE_SECONDS), LAST_PROBE_SECONDS)


def wait_seconds(using: str, topic: str, ttr_ms: int) -> float | None:
    """Return the seconds that the topic's jobs must wait. None: the topic is not held. 0: send one job as the probe.

    ttr_ms   TTR of the probe: no other probe is sent before it is over, or before LAST_PROBE_SECONDS

    The first call after the time of the next probe returns 0. While that probe may be on its way, other calls return
    one interval between two probes at most: the probe may end the hold at once.
    """
    row = Topic.objects.using(using).filter(name=topic).values_list("held_since", "held_until").first()
    if row is None or row[0] is None:
        return None
    now, probe_seconds = databases.now(using), min(ttr_ms / 1000, LAST_PROBE_SECONDS)
    if row[1] is None or row[1] <= now:
        due = Topic.objects.using(using).filter(Q(held_until=None) | Q(held_until__lte=now), name=topic)
        if due.update(held_until=now + timedelta(seconds=probe_seconds)):
            return 0.0
        return float(FIRST_PROBE_SECONDS)
    rest = max((row[1] - now).total_seconds(), 0.001)
    return rest if rest > probe_seconds else min(rest, _interval_seconds(row[0], now))


def release(using: str, topic: str) -> None:
    """End the hold of a topic. Writes nothing if the topic is not held."""
    held = Topic.objects.using(using).filter(name=topic, held_since__isnull=False)
    held.update(held_since=None, held_why="", held_until=None)
