"""What is going on, in numbers: for the stats command, the admin and whoever scrapes."""

from collections.abc import Collection
from typing import Any

from django.db.models import Count, Min, Q

from . import conf, engine, topics
from .clock import from_ms, to_ms
from .exceptions import MirrorDown
from .models import Job, Topic
from .states import State


def snapshot(using: str | None = None) -> dict[str, Any]:
    """Live and dead jobs per topic, the oldest that waits, the mirror and the fleet's counters.

    now_ms     the database's time          skew_ms    this host's clock minus the database's
    mirror     "up", "down" or "off"        counters   since the mirror was last emptied
    overdue    jobs due and not reserved    topics     delayed (within the horizon; what is later costs nothing
                                                       and is not counted), ready, reserved, dead,
                                                       oldest_ready_ms, paused, handled (a handler is here)
    """
    using = engine.alias(using)
    now_ms = engine.now_ms(using)
    per_topic = _per_topic(using, now_ms)
    state, counters = mirror_state(using)
    return {
        "now_ms": now_ms,
        "skew_ms": engine.clock(using).skew_ms(),
        "mirror": state,
        "counters": counters,
        "overdue": sum(numbers["ready"] for numbers in per_topic.values()),
        "topics": per_topic,
    }


def topics_snapshot(using: str, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """snapshot()'s numbers of these topics alone, of those of them that exist; others are not even counted."""
    using = engine.alias(using)
    return _per_topic(using, engine.now_ms(using), names)


def _per_topic(using: str, now_ms: int, only: Collection[str] | None = None) -> dict[str, dict[str, Any]]:
    jobs, rows = Job.objects.using(using), Topic.objects.using(using)
    if only is not None:
        jobs, rows = jobs.filter(topic__in=only), rows.filter(name__in=only)
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
    found = {row["topic"]: row for row in live.order_by()}
    known = {name for name in topics.known() if only is None or name in only}
    return {
        topic: {
            "delayed": found.get(topic, {}).get("delayed", 0),
            "ready": found.get(topic, {}).get("ready", 0),
            "reserved": found.get(topic, {}).get("reserved", 0),
            "dead": dead.get(topic, 0),
            "oldest_ready_ms": _age(found.get(topic, {}).get("oldest"), now_ms),
            "paused": paused.get(topic, False),
            "handled": topics.find(topic) is not None,
        }
        for topic in sorted(found.keys() | dead.keys() | paused.keys() | known)
    }


def _age(oldest: Any, now_ms: int) -> int | None:
    return None if oldest is None else now_ms - to_ms(oldest)


def mirror_state(using: str) -> tuple[str, dict[str, int]]:
    """("up", "down" or "off", the fleet's counters). A Redis that does not answer is waited for at most its timeout."""
    found = engine.mirror_of(using)
    if found is None:
        return "off", {}
    try:
        return "up", found.counters() | {"in_mirror_delayed": found.due_count()}
    except MirrorDown:
        return "down", {}
