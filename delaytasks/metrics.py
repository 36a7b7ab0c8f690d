"""What is going on, in numbers: for the stats command, the admin and whoever scrapes."""

from collections.abc import Collection
from typing import Any

from django.db.models import Count, Min, Q

from . import conf, engine, forecast, topics
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
    """snapshot()'s numbers of these topics alone, of those of them that exist; counted at a bounded cost.

    at_least   there was no time to count all: delayed, ready and dead are at least so many
    """
    using = engine.alias(using)
    found = forecast.standing_now(using, names, within_ms=conf.get().horizon_ms)
    rows = set(Topic.objects.using(using).filter(name__in=found).values_list("name", flat=True))
    return {
        name: {
            "delayed": now.delayed.number,
            "ready": now.ready.number,
            "reserved": now.reserved,
            "dead": now.dead.number,
            "at_least": not (now.delayed.whole and now.ready.whole and now.dead.whole),
            "oldest_ready_ms": now.oldest_ready_ms,
            "paused": now.paused,
            "handled": topics.find(name) is not None,
        }
        for name, now in found.items()
        if now.known or name in rows or now.delayed.number or now.ready.number or now.reserved or now.dead.number
    }


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
    found = {row["topic"]: row for row in live.order_by()}
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
        for topic in sorted(found.keys() | dead.keys() | paused.keys() | set(topics.known()))
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
