"""Validate a job's topic, key, body and times.

Used by schedule(), the API and the pipeline's load. Because the load runs without Django, this module imports
neither Django nor the settings; the limits are parameters.
"""

import json
import math
import re
import unicodedata
from datetime import datetime, timedelta
from typing import Any

from .clock import to_ms
from .exceptions import BadBody, BadDelay, BadInput, BadKey, BadTopic, BadTTR, BodyTooLarge, NaiveDatetime, short_repr
from .states import MAX_PRIORITY

MAX_KEY = 255
MAX_TTR_MS = 7 * 86_400_000
MAX_EXPIRES_SECONDS = 366 * 86_400
MAX_DEPTH = 100
JSON_NULL: Any = object()  # stands for a body that is JSON's null; None stands for no body, which is stored as {}
UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TO_JSON = json.JSONEncoder(allow_nan=False, ensure_ascii=False, separators=(",", ":"))
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
# Matches strings, and all other text without brackets. An unclosed string matches up to the end of the text: otherwise
# the pattern would be tried again from each quote, and a few kilobytes of quotes would take hours.
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^][{}"]+', re.DOTALL)
# Matches strings and numbers; group 1 is a positive exponent.
_NUMBERS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\d.]+(?:e\+(\d+))?', re.DOTALL)


def check_topic(topic: object) -> str:
    """Return `topic` if it is a valid name of a topic. Raises BadTopic."""
    if not isinstance(topic, str) or not _TOPIC.fullmatch(topic):
        raise BadTopic(
            f"{short_repr(topic)} is not a topic's name: use 1 to 100 of A-Z a-z 0-9 . _ -, "
            "beginning with a letter or digit, for example 'order.close'."
        )
    return str.__str__(topic)  # of a member of an Enum its value, which is not its str()


def check_key(key: object) -> str:
    """Return `key` if it is valid. Raises BadKey."""
    if not isinstance(key, str) or not key.strip():
        raise BadKey(f"key is {short_repr(key)}: give 1 to {MAX_KEY} printable characters, for example 'order:1042'.")
    if len(key) > MAX_KEY:
        raise BadKey(f"key {key[:40]!r}... has {len(key)} characters; at most {MAX_KEY} are allowed.")
    if not key.isprintable() and (bad := next((c for c in key if unicodedata.category(c) in UNPRINTABLE), None)):
        raise BadKey(f"key {short_repr(key)} contains the control character {bad!r}; use printable characters.")
    return str.__str__(key)


def prefix_end(prefix: str) -> str:
    """Return a text that sorts directly after all keys that start with `prefix`, byte by byte."""
    return prefix.ljust(MAX_KEY + 1, "\U0010ffff")


def check_line(text: object, *, what: str, expected: str = "one line") -> str:
    """Return `text` if it is one line of up to 255 printable characters, or "". Raises BadInput.

    what   the name of the argument, for the message
    """
    if not isinstance(text, str) or len(text) > MAX_KEY or any(unicodedata.category(c) in UNPRINTABLE for c in text):
        raise BadInput(f"{what} is {short_repr(text)}: give {expected} of up to {MAX_KEY} printable characters, or ''.")
    return text


def to_line(text: str) -> str:
    """Shorten a text to one line that check_line() accepts. Unprintable characters become spaces."""
    line = "".join(" " if unicodedata.category(c) in UNPRINTABLE else c for c in text[: MAX_KEY + 1])
    return line if len(line) <= MAX_KEY else f"{line[: MAX_KEY - 3]}..."


def to_delay_ms(delay: timedelta | float | int, *, max_seconds: float, what: str = "delay") -> int:
    """Convert a timedelta or seconds to milliseconds, rounded up. Raises BadDelay."""
    if isinstance(delay, bool) or not isinstance(delay, timedelta | int | float):
        raise BadDelay(f"{what} is {short_repr(delay)}: give a timedelta or a number of seconds.")
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    if not 0 <= seconds <= max_seconds:  # NaN fails this too
        raise BadDelay(f"{what} is {short_repr(delay)}: it must be from 0 to {max_seconds:,.0f} seconds.")
    return math.ceil(round(seconds * 1000, 3))


def to_ttr_ms(ttr: timedelta | float | int) -> int:
    """Convert a TTR, a timedelta or seconds, to milliseconds. Raises BadTTR."""
    try:
        ms = to_delay_ms(ttr, max_seconds=MAX_TTR_MS / 1000, what="ttr")
    except BadDelay as error:
        raise BadTTR(str(error)) from None
    if ms == 0:
        raise BadTTR("ttr is 0: a job needs more than 0 seconds to run.")
    return ms


def to_expires_ms(expires: timedelta | float | int) -> int:
    """Convert `expires`, the time after its due time in which a job must begin, to milliseconds. Raises BadDelay."""
    ms = to_delay_ms(expires, max_seconds=MAX_EXPIRES_SECONDS, what="expires")
    if ms == 0:
        raise BadDelay("expires is 0: no job begins in 0 seconds after its due time.")
    return ms


def check_priority(priority: object) -> int:
    """Return `priority` if it is valid. Raises BadInput."""
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= MAX_PRIORITY:
        raise BadInput(f"priority is {short_repr(priority)}: give an int from 0 to {MAX_PRIORITY}; 0 is the default.")
    return int(priority)


def to_body(body: Any, *, max_bytes: int) -> str:
    """Convert a body to JSON text; None becomes {}, JSON_NULL becomes null. Raises BadBody, BodyTooLarge."""
    if body is JSON_NULL:
        return "null"
    try:
        text = _TO_JSON.encode({} if body is None else body)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise BadBody(f"The body is not JSON: {error}. Use dicts, lists, strings, finite numbers, booleans.") from None
    if "e+" in text:
        size += _digits_added(text)
    if size > max_bytes:
        raise BodyTooLarge(
            f"The body has {size:,} bytes of JSON; at most {max_bytes:,} are allowed (MAX_BODY_BYTES). "
            "Keep the data in your own table and put its id into the body."
        )
    if "u0000" in text and _NUL.search(text):
        raise BadBody("The body contains the character NUL (\\u0000), which PostgreSQL cannot store in JSON.")
    if depth(text) > MAX_DEPTH:
        raise BadBody(f"The body is nested deeper than {MAX_DEPTH} levels.")
    return text


def _digits_added(text: str) -> int:
    """Return by how much JSON text grows in PostgreSQL, which writes 1e+308 as 309 digits."""
    return sum(int(found[1]) + 1 - len(found[0]) for found in _NUMBERS.finditer(text) if found[1])


def depth(text: str) -> int:
    """Return the nesting depth of JSON text, or 0 if the text has too few brackets to exceed MAX_DEPTH.

    The depth is limited because a program with a small stack may fail to parse what a larger one could write.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return 0  # fast path: it cannot be deeper
    depth = deepest = 0
    for bracket in _BRACKETS.sub("", text):
        depth += 1 if bracket in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


def check_aware(moment: datetime) -> datetime:
    """Return `moment` if it is an aware datetime. Raises NaiveDatetime."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        raise NaiveDatetime(f"{short_repr(moment)} has no time zone: give an aware datetime.")
    return moment


def to_due_ms(due_at: datetime, *, now_ms: int, max_seconds: float) -> int:
    """Convert a due time to milliseconds since 1970; one before 1970 becomes 0. Raises NaiveDatetime, BadDelay."""
    if due_at.tzinfo is None or due_at.utcoffset() is None:
        raise NaiveDatetime(
            f"due_at {due_at.isoformat()} has no time zone: give an aware datetime; see django.utils.timezone."
        )
    due_ms = to_ms(due_at)
    if due_ms > now_ms + max_seconds * 1000:
        raise _too_far(due_at.isoformat(), max_seconds)
    return max(due_ms, 0)


def check_due_ms(due_ms: int, *, now_ms: int, max_seconds: float) -> int:
    """Return `due_ms`, a due time in ms since 1970, if it is within the limit; a negative one becomes 0.

    Raises BadDelay.
    """
    if due_ms > now_ms + max_seconds * 1000:
        raise _too_far(f"{due_ms} ms since 1970", max_seconds)
    return max(due_ms, 0)


def _too_far(due_at: str, max_seconds: float) -> BadDelay:
    return BadDelay(f"due_at {due_at} is more than {max_seconds:,} seconds ahead (MAX_DELAY_SECONDS).")
