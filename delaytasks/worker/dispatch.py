"""Send the Celery message run_topic when a topic has ready jobs.

The message names no job, so it may be lost or delivered twice. If it has started no runner within RESEND_MS, for
example because a busy worker has fetched it, it is sent again, at growing intervals. After each GUARD_TICK_MS the mover
dispatches the topics that still have ready jobs. A runner that was woken does not answer the message, which is still in
the queue: otherwise messages would pile up there while all processes run jobs.
"""

import functools
import hashlib
import os
from collections.abc import Callable

from celery import current_app
from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, handlers, mirror, topics
from ..mirror.base import CallResult
from .mover import Mover
from .sender import Message, Sender, apply


def group_topics(using: str, topic: str, max_age_seconds: float = topics.TARGET_SECONDS) -> list[str]:
    """Return the topics that one runner serves together: those that are served here, with the same Celery queue."""
    queue = _queue(topic)
    return [name for name in topics.handled(using, max_age_seconds) if _queue(name) == queue]


def runner_group(using: str, topic: str, max_age_seconds: float = topics.TARGET_SECONDS) -> str:
    """Return a short name of the topic's runner group, the same in every process that serves the same topics."""
    digest = hashlib.sha256(" ".join(group_topics(using, topic, max_age_seconds)).encode()).hexdigest()[:12]
    return f"{_queue(topic) or ''}:{digest}"


def _queue(topic: str) -> str | None:
    """Return the Celery queue of a topic. None: the default queue, also of topics whose only handler is a target."""
    handler = handlers.find(topic)
    return handler.queue if handler else None


class Dispatcher:
    """Starts a runner for a topic that is served here, is not paused and has a free run slot.

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
        handler = topics.find(self._using, topic)
        if handler is None:  # other workers may have one; the jobs stay ready
            return
        paused, concurrency = topics.topic_settings(self._using, topic)
        if paused or self._call_runner(topic, concurrency) is not CallResult.SEND:
            return
        self._send(topic, handler.queue)

    def _call_runner(self, topic: str, concurrency: int) -> CallResult:
        now_ms, group = databases.now_ms(self._using), runner_group(self._using, topic)
        return mirror.read(self._using, lambda index: index.call_runner(topic, group, now_ms, concurrency))


def send_run_topic(using: str, topic: str, queue: str | None) -> None:
    """Let the sender's thread send the message run_topic. Returns at once.

    If the message is not sent, the mover dispatches the topic again. With task_always_eager the task runs here.
    """
    message = Message(current_app._get_current_object(), using, topic, queue)
    if message.app.conf.task_always_eager:
        message.app.loader.import_default_modules()  # only a registered task runs eagerly
        apply(message)
    else:
        sender().submit(message)


def forget(message: Message) -> None:
    """Let the mover send a message again at its next tick, because this one was not sent. Makes no query."""
    index = mirror.connect(message.using)
    if index is not None and not index.down:
        index.forget_message(message.topic)


def is_unanswered(message: Message) -> bool:
    """Return whether to send the message again: no runner has come for it, jobs are ready and a run slot is free.

    The sender's thread calls it, so it makes no query. Without a mirror it returns False; the mover dispatches again.
    """
    index = mirror.connect(message.using)
    if index is None or index.down:
        return False
    using, topic = message.using, message.topic
    if not index.has_unanswered_message(topic) or not index.ready_counts([topic]):
        return False
    limit, now_ms = topics.topic_settings(using, topic, topics.CACHED).concurrency, databases.last_known_ms(using)
    return index.call_runner(topic, runner_group(using, topic, topics.CACHED), now_ms, limit) is CallResult.SEND


@functools.cache
def sender() -> Sender:
    """Return this process's sender."""
    return Sender(is_unanswered=is_unanswered, dropped=forget)


_parents: list[Sender] = []  # kept forever: a forked process must neither use nor close its parent's connections


def _forget_parents() -> None:
    _parents.append(sender())
    sender.cache_clear()  # threads do not survive a fork


os.register_at_fork(after_in_child=_forget_parents)


@functools.cache
def dispatcher(using: str) -> Dispatcher:
    """Return this process's dispatcher for a database."""
    return Dispatcher(using, functools.partial(send_run_topic, using))


def new_mover(using: str) -> Mover:
    return Mover(
        functools.partial(mirror.choose, using),
        functools.partial(databases.exact_ms, using),
        functools.partial(topics.handled, using),
        dispatcher(using).dispatch,
        conf.get().guard_tick_ms,
    )


@functools.cache
def mover(using: str) -> Mover:
    """Return this process's mover for a database."""
    return new_mover(using)
