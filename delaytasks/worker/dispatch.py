"""Send the Celery message run_topic when a topic has ready jobs.

The message names no job, so it may be lost or delivered twice. If no runner has come for it within RESEND_MS, for
example because a busy worker has fetched it, it is sent again, later and later. After each GUARD_TICK_MS the mover
dispatches the topics that still have ready jobs.
"""

import functools
import hashlib
import time
from collections.abc import Callable
from typing import NamedTuple

from celery import current_app
from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, handlers, mirror
from ..exceptions import MirrorDown
from ..mirror.base import CallResult
from ..models import Topic
from .mover import Mover
from .sender import Message, apply, sender

_CACHE_SECONDS = 1.0

_rows: dict[str, tuple[float, dict[str, tuple[bool, int | None]]]] = {}


class TopicSettings(NamedTuple):
    paused: bool
    concurrency: int


def topic_settings(using: str, topic: str) -> TopicSettings:
    """Return whether the topic is paused, and its number of run slots. Topic rows are cached for a second."""
    read_at, rows = _rows.get(using, (0.0, {}))
    if not rows or time.monotonic() - read_at >= _CACHE_SECONDS:
        topics = Topic.objects.using(using).values_list("name", "paused", "concurrency")
        rows = {name: (paused, concurrency) for name, paused, concurrency in topics}
        _rows[using] = (time.monotonic(), rows)
    paused, concurrency = rows.get(topic, (False, None))
    return TopicSettings(paused, concurrency if concurrency is not None else handlers.concurrency(topic))


def forget_topic_settings() -> None:
    """Clear the cache of Topic rows in this process. Other processes read the rows again within a second."""
    _rows.clear()


def group_topics(topic: str) -> list[str]:
    """Return the topics that one runner serves together: those with a handler here and the same Celery queue."""
    handler = handlers.find(topic)
    queue = handler.queue if handler else None
    return [name for name in handlers.handled() if (other := handlers.find(name)) and other.queue == queue]


def runner_group(topic: str) -> str:
    """Return a short name of the topic's runner group, the same in every process with the same handlers."""
    handler = handlers.find(topic)
    digest = hashlib.sha256(" ".join(group_topics(topic)).encode()).hexdigest()[:12]
    return f"{(handler and handler.queue) or ''}:{digest}"


class Dispatcher:
    """Starts a runner for a topic that has a handler here, is not paused and has a free run slot.

    send   send(topic, queue) sends the message that starts a runner
    """

    def __init__(self, using: str, send: Callable[[str, str | None], None]) -> None:
        self._using = using
        self._send = send

    def dispatch(self, topic: str) -> None:
        """Wake a waiting runner, or send a message that starts one. Raises errors of the database and of `send`.

        After a database error an unusable connection is closed, so that the next query opens a new one.
        """
        try:
            self._dispatch(topic)
        except (DatabaseError, InterfaceError):
            connections[self._using].close_if_unusable_or_obsolete()
            raise

    def _dispatch(self, topic: str) -> None:
        handler = handlers.find(topic)
        if handler is None:  # other workers may have one; the jobs stay ready
            return
        paused, concurrency = topic_settings(self._using, topic)
        if paused or self._call_runner(topic, concurrency) is not CallResult.SEND:
            return
        self._send(topic, handler.queue)

    def _call_runner(self, topic: str, concurrency: int) -> CallResult:
        now_ms = databases.now_ms(self._using)
        try:
            return mirror.choose(self._using).call_runner(topic, runner_group(topic), now_ms, concurrency)
        except MirrorDown:  # it is marked as down now: this is the database
            return mirror.choose(self._using).call_runner(topic, runner_group(topic), now_ms, concurrency)


def send_run_topic(using: str, topic: str, queue: str | None) -> None:
    """Let the sender's thread send the message run_topic. Returns at once.

    If the message is not sent, the mover dispatches the topic again. With task_always_eager the task runs here.
    """
    message = Message(current_app._get_current_object(), using, topic, queue)
    if message.app.conf.task_always_eager:
        message.app.loader.import_default_modules()  # only a registered task runs eagerly
        apply(message)
    else:
        sender().submit(message, is_unanswered)


def is_unanswered(message: Message) -> bool:
    """Return whether to send the message again: no runner has come for it, jobs are ready and a run slot is free.

    The sender's thread calls it, so it makes no query. Without a mirror the message is not sent again here.
    """
    index = mirror.connect(message.using)
    if index is None or index.down:
        return False
    topic, (_, rows) = message.topic, _rows.get(message.using, (0.0, {}))
    _, concurrency = rows.get(topic, (False, None))
    limit = handlers.concurrency(topic) if concurrency is None else concurrency
    if not index.has_unanswered_message(topic) or not index.ready_counts([topic]):
        return False
    now_ms = databases.last_known_ms(message.using)
    return index.call_runner(topic, runner_group(topic), now_ms, limit) is CallResult.SEND


@functools.cache
def dispatcher(using: str) -> Dispatcher:
    """Return this process's dispatcher for a database."""
    return Dispatcher(using, functools.partial(send_run_topic, using))


def new_mover(using: str) -> Mover:
    return Mover(
        functools.partial(mirror.choose, using),
        functools.partial(databases.exact_ms, using),
        handlers.handled,
        dispatcher(using).dispatch,
        conf.get().guard_tick_ms,
    )


@functools.cache
def mover(using: str) -> Mover:
    """Return this process's mover for a database."""
    return new_mover(using)
