"""Ringing for a topic: a Celery message says "there are ready jobs", and carries none of them."""

import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

from django.db import DatabaseError, InterfaceError, connections

from . import engine, topics
from .exceptions import MirrorDown
from .models import Topic
from .places import Call

_FRESH_SECONDS = 1.0


class Terms(NamedTuple):
    paused: bool
    concurrency: int


_rows: dict[str, tuple[float, dict[str, tuple[bool, int | None]]]] = {}


def terms(using: str, topic: str) -> Terms:
    """What staff say about the topic: paused, run slots. At most a second old."""
    read_at, rows = _rows.get(using, (0.0, {}))
    if not rows or time.monotonic() - read_at >= _FRESH_SECONDS:
        found = Topic.objects.using(using).values_list("name", "paused", "concurrency")
        rows = {name: (paused, concurrency) for name, paused, concurrency in found}
        _rows[using] = (time.monotonic(), rows)
    paused, concurrency = rows.get(topic, (False, None))
    return Terms(paused, concurrency if concurrency is not None else topics.concurrency(topic))


def forget_terms() -> None:
    """Ask the Topic rows again. For tests."""
    _rows.clear()


def crew_topics(topic: str) -> list[str]:
    """The topics that whoever runs `topic` here runs too: those with a handler and the same Celery queue."""
    handler = topics.find(topic)
    queue = handler.queue if handler else None
    return [name for name in topics.handled() if (found := topics.find(name)) and found.queue == queue]


def crew(topic: str) -> str:
    """A short name of the topic's crew, the same in every process with the same handlers."""
    handler = topics.find(topic)
    digest = hashlib.sha256(" ".join(crew_topics(topic)).encode()).hexdigest()[:12]
    return f"{(handler and handler.queue) or ''}:{digest}"


class Bells:
    """Rings for a topic if it has a handler here, is not paused and has a free run slot.

    send   what rings: send(topic, queue). Celery's apply_async, in production.
    """

    def __init__(self, using: str, send: Callable[[str, str | None], None]) -> None:
        self._using = using
        self._send = send

    def ring(self, topic: str) -> None:
        """Raises what the database or the broker raises; the connection can be used for the next topic all the same."""
        try:
            self._ring(topic)
        except (DatabaseError, InterfaceError):
            connections[self._using].close_if_unusable_or_obsolete()
            raise

    def _ring(self, topic: str) -> None:
        handler = topics.find(topic)
        if handler is None:  # for somebody else: it stays ready
            return
        paused, concurrency = terms(self._using, topic)
        if paused or self._call(topic, concurrency) is not Call.RING:
            return
        self._send(topic, handler.queue)

    def _call(self, topic: str, concurrency: int) -> Call:
        now_ms = engine.now_ms(self._using)
        try:
            return engine.places(self._using).call_runner(topic, crew(topic), now_ms, concurrency)
        except MirrorDown:  # it counts as down now: the database answers
            return engine.places(self._using).call_runner(topic, crew(topic), now_ms, concurrency)
