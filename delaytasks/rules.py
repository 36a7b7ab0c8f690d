"""What a promise may consist of: names, bodies, times. Plain: neither Django nor settings, which callers bring along.

One list for schedule(), the API and the pipeline's load, which judges rows where no Django is.
"""

import json
import math
import re
import unicodedata
from datetime import datetime, timedelta
from typing import Any

from .clock import to_ms
from .exceptions import BadBody, BadDelay, BadKey, BadTopic, BadTTR, BodyTooLarge, NaiveDatetime, shown

MAX_KEY = 255
MAX_TTR_MS = 7 * 86_400_000
MAX_DEPTH = 100
JSON_NULL: Any = object()  # as a body: JSON's null. None is no body, and kept as {}
UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TO_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Strings, and all that is no bracket. A string that nothing closes matches as well, to the end: a pattern that could
# fail there would be tried again from each quote, and a few kilobytes of them would keep a web process busy for hours.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)


def check_topic(topic: object) -> str:
    """The topic's name, if it is one. Raises BadTopic."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise BadTopic(
            f"{shown(topic)} is not a topic's name: use 1 to 100 of A-Z a-z 0-9 . _ -, "
            "the first a letter or digit, for example 'order.close'."
        )
    return topic


def check_key(key: object) -> str:
    """The key, if it is one. Raises BadKey."""
    if not isinstance(key, str) or not key.strip():
        raise BadKey(f"key is {shown(key)}: give 1 to {MAX_KEY} printable characters, for example 'order:1042'.")
    if len(key) > MAX_KEY:
        raise BadKey(f"key {key[:40]!r}... has {len(key)} characters; at most {MAX_KEY} are possible.")
    if not key.isprintable() and (bad := next((c for c in key if unicodedata.category(c) in UNPRINTABLE), None)):
        raise BadKey(f"key {shown(key)} contains the control character {bad!r}; use printable characters.")
    return key


def to_delay_ms(delay: timedelta | float | int, *, max_seconds: float, what: str = "delay") -> int:
    """Milliseconds of a delay given as timedelta or seconds, rounded up. Raises BadDelay."""
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise BadDelay(f"{what} is {shown(delay)}: give a timedelta or a number of seconds.")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds <= max_seconds:  # NaN fails this too
        raise BadDelay(f"{what} is {shown(delay)}: it must be from 0 to {max_seconds:,.0f} seconds.")
    return math.ceil(round(seconds * 1000, 3))


def to_ttr_ms(ttr: timedelta | float | int) -> int:
    """Milliseconds of a TTR given as timedelta or seconds. Raises BadTTR."""
    try:
        ms = to_delay_ms(ttr, max_seconds=MAX_TTR_MS / 1000, what="ttr")
    except BadDelay as error:
        raise BadTTR(str(error)) from None
    if ms == 0:
        raise BadTTR("ttr is 0: a job needs more than 0 seconds to run.")
    return ms


def to_body(body: Any, *, max_bytes: int) -> str:
    """The body as JSON text; None is {}, JSON_NULL is null. Raises BadBody, BodyTooLarge."""
    if body is JSON_NULL:
        return "null"
    try:
        text = _TO_JSON.encode({} if body is None else body)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadBody(f"The body is not JSON: {error}. Use dicts, lists, strings, finite numbers, booleans.") from None
    if size > max_bytes:
        raise BodyTooLarge(
            f"The body has {size:,} bytes of JSON; at most {max_bytes:,} are allowed (MAX_BODY_BYTES). "
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


def to_due_ms(due_at: datetime, *, now_ms: int, max_seconds: float) -> int:
    """A due time in ms; one before 1970 is 1970. Raises NaiveDatetime, BadDelay."""
    if due_at.tzinfo is None or due_at.utcoffset() is None:
        raise NaiveDatetime(
            f"due_at {due_at.isoformat()} has no time zone: say which, for example with django.utils.timezone."
        )
    due_ms = to_ms(due_at)
    if due_ms > now_ms + max_seconds * 1000:
        raise _too_far(due_at.isoformat(), max_seconds)
    return max(due_ms, 0)


def limited_due_ms(due_ms: int, *, now_ms: int, max_seconds: float) -> int:
    """The same of a due time that was worked out. Raises BadDelay."""
    if due_ms > now_ms + max_seconds * 1000:
        raise _too_far(f"{due_ms} ms since 1970", max_seconds)
    return max(due_ms, 0)


def _too_far(said: str, max_seconds: float) -> BadDelay:
    return BadDelay(f"due_at {said} is more than {max_seconds:,} seconds ahead (MAX_DELAY_SECONDS).")
