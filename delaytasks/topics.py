"""The topics of a database that this process serves: those with a handler in code, and those whose row names a target.

One query reads all rows of Topic, and they are cached: for at most a second for a run, and for at most TARGET_SECONDS
for the mover, which reads them in each pass. So each process soon sees a change by staff, without a query for each job.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db import DatabaseError, InterfaceError

from . import databases, handlers
from .handlers import Handler

logger = logging.getLogger("delaytasks")
CACHE_SECONDS = 1.0
TARGET_SECONDS = 5.0
CACHED = math.inf  # as an age: rows of any age, without a query


class Row(NamedTuple):
    paused: bool = False
    concurrency: int | None = None
    target: Mapping[str, Any] | None = None
    held_until: datetime | None = None


class TopicSettings(NamedTuple):
    paused: bool  # by staff, or because its target is unavailable and the time of the next probe has not come
    concurrency: int


# Returns the handler of a topic whose row has this target; None if this process cannot use the target.
Builder = Callable[[str, str, Mapping[str, Any]], Handler | None]

_rows: dict[str, tuple[float, dict[str, Row]]] = {}
_built: dict[tuple[str, str], tuple[Mapping[str, Any], Handler | None]] = {}
_builder: Builder | None = None


def set_builder(builder: Builder) -> None:
    """Let `builder(using, topic, target)` make the handlers of topics whose rows name a target."""
    global _builder
    _builder = builder


def topic_settings(using: str, topic: str, max_age_seconds: float = CACHE_SECONDS) -> TopicSettings:
    """Return whether the topic is paused, and its number of run slots."""
    row = _read(using, max_age_seconds).get(topic, Row())
    held = row.held_until is not None and row.held_until > databases.now(using) and can_be_held(topic)
    concurrency = handlers.concurrency(topic) if row.concurrency is None else row.concurrency
    return TopicSettings(row.paused or held, concurrency)


def can_be_held(topic: str) -> bool:
    """Return False if a handler in code has replaced the topic's target: a hold that began before has no effect."""
    handler = handlers.find(topic)
    return handler is None or handler.forwards


def find(using: str, topic: str) -> Handler | None:
    """Return the topic's handler: the one in code, otherwise one that forwards to the target of its row.

    None: this process has no handler and leaves the topic's jobs to other processes.
    """
    return handlers.find(topic) or _of_row(using, topic, _read(using, CACHE_SECONDS).get(topic, Row()))


def handled(using: str, max_age_seconds: float = TARGET_SECONDS) -> list[str]:
    """Return the topics that this process serves, sorted. If the database fails, use the rows that were read last."""
    try:
        rows = _read(using, max_age_seconds)
    except (DatabaseError, InterfaceError) as error:  # must not stop the mover
        logger.warning("the targets of topics were not read from the database %s: %s", using, error)
        rows = _read(using, CACHED)
    forwarded = (name for name, row in rows.items() if row.target is not None and _of_row(using, name, row))
    return sorted({*handlers.handled(), *forwarded})


def known(using: str) -> set[str]:
    """Return the topics that have a handler in this process, a setting or a row. Reads the rows anew."""
    from .models import Topic

    return {*handlers.known(), *Topic.objects.using(using).values_list("name", flat=True)}


def clear_cache() -> None:
    """Clear the cache in this process, so that it sees a change at once. Others see it within CACHE_SECONDS."""
    _rows.clear()


def _read(using: str, max_age_seconds: float) -> dict[str, Row]:
    from .models import Topic  # here: a target may be declared before the models are loaded

    read_at, rows = _rows.get(using, (-math.inf, {}))
    if max_age_seconds != CACHED and time.monotonic() - read_at >= max_age_seconds:
        found = Topic.objects.using(using).values_list("name", "paused", "concurrency", "target", "held_until")
        rows = {name: Row(paused, slots, target, held_until) for name, paused, slots, target, held_until in found}
        _rows[using] = (time.monotonic(), rows)
    return rows


def _of_row(using: str, topic: str, row: Row) -> Handler | None:
    """Return a handler that forwards to the row's target. It is cached until the target changes."""
    if row.target is None or _builder is None or handlers.find(topic) is not None:
        return None
    target, handler = _built.get((using, topic), (None, None))
    if target != row.target:
        handler = _builder(using, topic, row.target)
        _built[using, topic] = (row.target, handler)
    return handler
