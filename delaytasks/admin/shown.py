"""HTML for the admin's cells. Everything stored is escaped here or by the template."""

import json
from datetime import datetime
from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString

from .. import clock, dialect, words
from ..states import State

EMPTY = "–"


def database_now(using: str) -> datetime:
    """The database's time, aware, cut to the millisecond: the clock that decides what is ready."""
    return clock.from_ms(int(dialect.now_ms(using)))


def seen_at(request: HttpRequest, using: str) -> datetime:
    """One "now" per request, so that a page does not contradict itself."""
    now = getattr(request, "_delaytasks_now", None)
    if now is None:
        now = database_now(using)
        request._delaytasks_now = now  # type: ignore[attr-defined]
    return now


def state(shown: State) -> SafeString:
    return format_html('<span class="dt-state dt-{}">{}</span>', shown.word, words.STATES[shown])


def moment(at: datetime | None, now: datetime | None = None, *, ms: bool = False) -> SafeString | str:
    """A time in the active time zone and, with `now`, how far off it is; to the millisecond with `ms`."""
    if at is None:
        return EMPTY
    stamp = format_html('<time datetime="{}">{}</time>', at.isoformat(), words.absolute(at, ms=ms))
    if now is None:
        return stamp
    return format_html('{} <span class="dt-relative">{}</span>', stamp, words.relative(at, now))


def pretty_json(value: Any) -> SafeString:
    return format_html('<pre class="dt-pre">{}</pre>', json.dumps(value, indent=2, ensure_ascii=False))


def error(text: str) -> SafeString | str:
    """The last line, and the whole of it folded underneath if there is more."""
    line = words.one_line(text)
    if not line:
        return EMPTY
    if line == text.strip():
        return format_html('<span class="dt-error">{}</span>', line)
    return format_html(
        '<details class="dt-details"><summary class="dt-error">{}</summary><pre class="dt-pre">{}</pre></details>',
        line,
        text,
    )
