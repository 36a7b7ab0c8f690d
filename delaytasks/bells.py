"""Ringing for a topic: a Celery message says "there are ready jobs", and carries none of them."""

import time
from collections.abc import Callable
from typing import NamedTuple

from . import engine, topics
from .exceptions import MirrorDown
from .models import Topic
from .places import Call

_FRESH_SECONDS = 1.0


class Terms(NamedTuple):
    paused: bool
    concurrency: int


_terms: dict[tuple[str, str], tuple[float, Terms]] = {}


def terms(using: str, topic: str) -> Terms:
    """What staff say about the topic: paused, run slots. At most a second old."""
    known = _terms.get((using, topic))
    if known and time.monotonic() - known[0] < _FRESH_SECONDS:
        return known[1]
    row = Topic.objects.using(using).filter(name=topic).values_list("paused", "concurrency").first()
    paused, concurrency = row or (False, None)
    found = Terms(paused, concurrency if concurrency is not None else topics.concurrency(topic))
    _terms[using, topic] = (time.monotonic(), found)
    return found


def forget_terms() -> None:
    """Ask the Topic rows again. For tests."""
    _terms.clear()


class Bells:
    """Rings for a topic if it has a handler here, is not paused and has a free run slot.

    send   what rings: send(topic, queue). Celery's apply_async, in production.
    """

    def __init__(self, using: str, send: Callable[[str, str | None], None]) -> None:
        self._using = using
        self._send = send

    def ring(self, topic: str) -> None:
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
            return engine.places(self._using).call_runner(topic, now_ms, concurrency)
        except MirrorDown:
            return engine.places(self._using).call_runner(topic, now_ms, concurrency)
