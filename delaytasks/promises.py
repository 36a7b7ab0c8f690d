"""What callers ask for, checked by the rules: every bad input gets a clear exception before anything is written."""

import time
import unicodedata
from datetime import datetime, timedelta
from typing import Any

from . import conf, rules, topics
from .exceptions import BadDelay, BadInput, shown
from .rules import MAX_KEY, UNPRINTABLE, check_key
from .statements import NewJob

Delay = timedelta | float | int


def check_name(topic: object, key: object) -> None:
    """Whether this could name a job. Raises BadTopic, BadKey."""
    topics.check_topic(topic)
    check_key(key)


def check_actor(by: object, *, what: str = "by") -> str:
    """The person's name for the event, or what they say why. Raises BadInput."""
    if not isinstance(by, str) or len(by) > MAX_KEY or any(unicodedata.category(c) in UNPRINTABLE for c in by):
        asked = "the name of a person" if what == "by" else "a line"
        raise BadInput(f"{what} is {shown(by)}: give {asked}, up to {MAX_KEY} printable characters, or ''.")
    return by


def to_body(body: Any) -> str:
    """The body as JSON text; None is {}, JSON_NULL is null. Raises BadBody, BodyTooLarge."""
    return rules.to_body(body, max_bytes=conf.get().max_body_bytes)


def to_when(delay: Delay | None, due_at: datetime | None) -> tuple[int | None, int | None]:
    """(due_ms, delay_ms), exactly one of them set. Raises BadDelay, NaiveDatetime."""
    if (delay is None) == (due_at is None):
        found = "neither" if delay is None else "both"
        raise BadDelay(f"Give exactly one of delay and due_at; {found} was given.")
    most = conf.get().max_delay_seconds
    if due_at is None:
        assert delay is not None
        return None, topics.to_delay_ms(delay, max_seconds=most)
    if not isinstance(due_at, datetime):
        raise BadDelay(f"due_at is {shown(due_at)}: give an aware datetime.")
    return rules.to_due_ms(due_at, now_ms=int(time.time() * 1000), max_seconds=most), None


def to_new_job(
    topic: str,
    *,
    key: str,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    body: Any = None,
    ttr: Delay | None = None,
) -> NewJob:
    """A promise ready to insert. Raises BadInput in one of its kinds; whether the topic is known is asked elsewhere."""
    topics.check_topic(topic)
    check_key(key)
    due_ms, delay_ms = to_when(delay, due_at)
    ttr_ms = topics.ttr_ms(topic) if ttr is None else topics.to_ttr_ms(ttr)
    return NewJob(topic, key, due_ms, delay_ms, ttr_ms, to_body(body))
