"""Validate the arguments of the public functions, before anything is written."""

from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from .. import clock, conf, handlers, validators
from ..db.transitions import NewJob
from ..exceptions import BadDelay, UnknownTopic, short_repr
from ..querysets import has_topic_row
from .subjects import to_subject

Delay = timedelta | float | int


def check_name(topic: object, key: object) -> tuple[str, str]:
    """Return topic and key if they are valid. Raises BadTopic, BadKey."""
    return validators.check_topic(topic), validators.check_key(key)


def check_known(using: str, topic: str) -> None:
    """Raise UnknownTopic unless the topic has a handler, a setting or a Topic row."""
    known = handlers.known()
    if topic not in known and not has_topic_row(using, topic):
        raise UnknownTopic(
            f"Topic {topic!r} is unknown: no @handler is registered for it, DELAYTASKS['TOPICS'] does not name it "
            f"and no Topic row exists. Known here: {', '.join(known) or 'none'}."
        )


def check_actor(by: object, *, what: str = "by") -> str:
    """Return `by`, a text for a job's event, if it is valid. Raises BadInput.

    what   the name of the argument, for the message: "by" or "reason"
    """
    return validators.check_line(by, what=what, expected="the name of a person" if what == "by" else "one line")


def to_body(body: Any) -> str:
    """Return the body as JSON text; None becomes {}, JSON_NULL becomes null. Raises BadBody, BodyTooLarge."""
    return validators.to_body(body, max_bytes=conf.get().max_body_bytes)


def to_when(delay: Delay | None, due_at: datetime | None) -> tuple[int | None, int | None]:
    """Return (due_ms, delay_ms), in milliseconds; one of the two is None. Raises BadDelay, NaiveDatetime."""
    if (delay is None) == (due_at is None):
        given = "neither was given" if delay is None else "both were given"
        raise BadDelay(f"Give exactly one of delay and due_at; {given}.")
    max_seconds = conf.get().max_delay_seconds
    if due_at is None:
        assert delay is not None
        return None, validators.to_delay_ms(delay, max_seconds=max_seconds)
    if not isinstance(due_at, datetime):
        raise BadDelay(f"due_at is {short_repr(due_at)}: give an aware datetime.")
    return validators.to_due_ms(due_at, now_ms=clock.to_ms(timezone.now()), max_seconds=max_seconds), None


def to_key(topic: str, key: str | None, subject: Any) -> tuple[str, str, str]:
    """Return the label and the primary key of the subject, "" without one, and the key. Raises BadKey, BadInput."""
    label = pk = ""
    if subject is not None:
        found = to_subject(subject, saved=True)
        handlers.check_subject(topic, found.label)
        (label, pk), key = found, found.key if key is None else key
    return label, pk, validators.check_key(key)


def to_new_job(
    topic: str,
    *,
    key: str | None = None,
    subject: Any = None,
    delay: Delay | None = None,
    due_at: datetime | None = None,
    body: Any = None,
    ttr: Delay | None = None,
    expires: Delay | None = None,
    priority: int = 0,
) -> NewJob:
    """Return a validated job to insert. Raises subclasses of BadInput. Does not check that the topic is known."""
    topic = validators.check_topic(topic)
    label, pk, key = to_key(topic, key, subject)
    due_ms, delay_ms = to_when(delay, due_at)
    ttr_ms = handlers.ttr_ms(topic) if ttr is None else validators.to_ttr_ms(ttr)
    expires_ms = None if expires is None else validators.to_expires_ms(expires)
    level = validators.check_priority(priority)
    return NewJob(topic, key, due_ms, delay_ms, ttr_ms, to_body(body), label, pk, expires_ms, priority=level)
