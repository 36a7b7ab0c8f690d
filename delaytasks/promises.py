"""What callers ask for, checked: every bad input gets a clear exception before anything is written."""

import json
import re
import time
import unicodedata
from datetime import datetime, timedelta
from typing import Any

from . import conf, topics
from .clock import to_ms
from .exceptions import BadBody, BadDelay, BadInput, BadKey, BodyTooLarge, NaiveDatetime, shown
from .statements import NewJob

Delay = timedelta | float | int
MAX_KEY = 255
_TO_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Strings, and all that is no bracket. A string that nothing closes matches as well, to the end: a pattern that could
# fail there would be tried again from each quote, and a few kilobytes of them would keep a web process busy for hours.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)
MAX_DEPTH = 100
JSON_NULL: Any = object()  # as a body: JSON's null. None is no body, and kept as {}
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}


def check_key(key: object) -> str:
    """The key, if it is one. Raises BadKey."""
    if not isinstance(key, str) or not key.strip():
        raise BadKey(f"key is {shown(key)}: give 1 to {MAX_KEY} printable characters, for example 'order:1042'.")
    if len(key) > MAX_KEY:
        raise BadKey(f"key {key[:40]!r}... has {len(key)} characters; at most {MAX_KEY} are possible.")
    if not key.isprintable() and (bad := next((c for c in key if unicodedata.category(c) in _UNPRINTABLE), None)):
        raise BadKey(f"key {shown(key)} contains the control character {bad!r}; use printable characters.")
    return key


def check_name(topic: object, key: object) -> None:
    """Whether this could name a job. Raises BadTopic, BadKey."""
    topics.check_topic(topic)
    check_key(key)


def check_actor(by: object, *, what: str = "by") -> str:
    """The person's name for the event, or what they say why. Raises BadInput."""
    if not isinstance(by, str) or len(by) > MAX_KEY or any(unicodedata.category(c) in _UNPRINTABLE for c in by):
        asked = "the name of a person" if what == "by" else "a line"
        raise BadInput(f"{what} is {shown(by)}: give {asked}, up to {MAX_KEY} printable characters, or ''.")
    return by


def to_body(body: Any) -> str:
    """The body as JSON text; None is {}, JSON_NULL is null. Raises BadBody, BodyTooLarge."""
    if body is JSON_NULL:
        return "null"
    try:
        text = _TO_JSON.encode({} if body is None else body)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadBody(f"The body is not JSON: {error}. Use dicts, lists, strings, finite numbers, booleans.") from None
    most = conf.get().max_body_bytes
    if size > most:
        raise BodyTooLarge(
            f"The body has {size:,} bytes of JSON; at most {most:,} are allowed (MAX_BODY_BYTES). "
            "Keep the data in your own table and put its id into the body."
        )
    if "u0000" in text and _NUL.search(text):
        raise BadBody("The body contains the character NUL (\\u0000), which PostgreSQL cannot keep in JSON.")
    if depth(text) > MAX_DEPTH:
        raise BadBody(f"The body is nested deeper than {MAX_DEPTH} levels.")
    return text


def depth(text: str) -> int:
    """How deep the JSON is nested. What one stack can write another may not be able to read."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0  # cannot be deeper: the common case costs nothing
    depth = deepest = 0
    for bracket in _BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


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
    if due_at.tzinfo is None or due_at.utcoffset() is None:
        raise NaiveDatetime(
            f"due_at {due_at.isoformat()} has no time zone: say which, for example with django.utils.timezone."
        )
    due_ms = to_ms(due_at)
    if due_ms > (time.time() + most) * 1000:
        raise BadDelay(f"due_at {due_at.isoformat()} is more than {most:,} seconds ahead (MAX_DELAY_SECONDS).")
    return max(due_ms, 0), None


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
