"""Metrics for the stats command, the admin and the API."""

from collections.abc import Collection
from datetime import timedelta
from typing import Any, Literal

from django.db.models import Count, Min, Q

from .. import conf, databases, handlers, mirror, topics
from ..clock import from_ms, to_ms
from ..db.counts import LATE_PROBE_MS
from ..exceptions import MirrorDown
from ..models import Job, Topic
from ..states import State
from . import forecast

MirrorState = Literal["up", "read_only", "down", "off"]
ALWAYS_COUNTED = {"repaired": 0, "rebuilt": 0}  # Redis has the other counters from their first event on


def snapshot(using: str | None = None) -> dict[str, Any]:
    """Return job counts per topic, the state of the mirror and the counters of all workers.

    now_ms     the current time by the database's clock, in ms since 1970
    skew_ms    this host's clock minus the database's
    mirror     "up", "read_only" (Redis refuses writes), "down" or "off"
    counters   the counters of all workers since the mirror was last emptied, and in_mirror_delayed, the number of
               entries that it has now; {} if the mirror is down or off. A counter but repaired and rebuilt is absent
               until it is 1
    overdue    number of jobs that are due and not reserved
    topics     for each topic: delayed (only jobs due within the horizon), ready, reserved, dead, oldest_ready_ms
               (time since the oldest ready job was due; None: none is ready), paused, handled (whether this process
               has a handler, or can forward to the target of the topic's row)
    """
    using = databases.alias(using)
    now_ms = databases.now_ms(using)
    per_topic = _per_topic(using, now_ms)
    state, counters, _ = mirror_state(using)
    return {
        "now_ms": now_ms,
        "skew_ms": databases.clock(using).skew_ms(),
        "mirror": state,
        "counters": counters,
        "overdue": sum(numbers["ready"] for numbers in per_topic.values()),
        "topics": per_topic,
    }


def topics_snapshot(
    using: str, names: Collection[str], *, seconds: float = forecast.NOW_SECONDS
) -> dict[str, dict[str, Any]]:
    """Return the numbers of snapshot() for those of the named topics that exist, at a bounded cost.

    seconds  time limit of counting the live jobs, and again the dead ones

    at_least   True: the time limit was reached, and delayed, ready and dead are lower bounds
    held       True: the target is unavailable, and a probe is sent from time to time
    target     dict, the target stored in the topic's row, to which its jobs are forwarded (forwarding.stored); or None
    """
    using = databases.alias(using)
    statuses = forecast.uncached_status(using, names, within_ms=conf.get().horizon_ms, seconds=seconds)
    found = Topic.objects.using(using).filter(name__in=statuses).values_list("name", "target", "held_until")
    rows = {name: (target, held_until) for name, target, held_until in found}
    probed_since = databases.now(using) - timedelta(milliseconds=LATE_PROBE_MS)
    return {
        name: {
            "delayed": status.delayed.number,
            "ready": status.ready.number,
            "reserved": status.reserved,
            "dead": status.dead.number,
            "at_least": not (status.delayed.complete and status.ready.complete and status.dead.complete),
            "oldest_ready_ms": status.oldest_ready_ms,
            "paused": status.paused,
            "handled": topics.find(using, name) is not None,
            "held": held_until is not None and held_until > probed_since and topics.can_be_held(name),
            "target": target if isinstance(target, dict) else None,
        }
        for name, status in statuses.items()
        for target, held_until in [rows.get(name, (None, None))]
        if status.known or name in rows or _has_jobs(status)
    }


def _has_jobs(status: forecast.TopicStatus) -> bool:
    return bool(status.delayed.number or status.ready.number or status.reserved or status.dead.number)


def _per_topic(using: str, now_ms: int) -> dict[str, dict[str, Any]]:
    jobs, rows = Job.objects.using(using), Topic.objects.using(using)
    now = from_ms(now_ms)
    horizon = from_ms(now_ms + conf.get().horizon_ms)
    ready, delayed = Q(state=State.DELAYED, due_at__lte=now), Q(state=State.DELAYED, due_at__gt=now)
    live = (
        jobs.live()
        .filter(due_at__lte=horizon)
        .values("topic")
        .annotate(
            delayed=Count("id", filter=delayed),
            ready=Count("id", filter=ready),
            reserved=Count("id", filter=Q(state=State.RESERVED)),
            oldest=Min("due_at", filter=ready),
        )
    )
    died = jobs.in_state(State.DEAD, now)
    dead = dict(died.values_list("topic").annotate(n=Count("id")).order_by())
    paused = dict(rows.values_list("name", "paused"))
    counts = {row["topic"]: row for row in live.order_by()}
    return {
        topic: {
            "delayed": counts.get(topic, {}).get("delayed", 0),
            "ready": counts.get(topic, {}).get("ready", 0),
            "reserved": counts.get(topic, {}).get("reserved", 0),
            "dead": dead.get(topic, 0),
            "oldest_ready_ms": _age(counts.get(topic, {}).get("oldest"), now_ms),
            "paused": paused.get(topic, False),
            "handled": topics.find(using, topic) is not None,
        }
        for topic in sorted(counts.keys() | dead.keys() | paused.keys() | set(handlers.known()))
    }


def _age(oldest: Any, now_ms: int) -> int | None:
    return None if oldest is None else now_ms - to_ms(oldest)


def mirror_state(using: str) -> tuple[MirrorState, dict[str, int], str]:
    """Return the mirror's state, the counters of all workers, and why Redis refuses writes ("" if it does not).

    The state is "up", "read_only", "down" or "off". The counters are {} if it is "down" or "off", and for a moment
    after a refused write. Waits for Redis at most REDIS_TIMEOUT_SECONDS.
    """
    index = mirror.connect(using)
    if index is None:
        return "off", {}, ""
    refusal = ""
    try:
        refusal = index.refusal()
        counters = ALWAYS_COUNTED | index.counters() | {"in_mirror_delayed": index.due_count()}
    except MirrorDown:
        return "read_only" if refusal else "down", {}, refusal
    return "read_only" if refusal else "up", counters, refusal
