"""The countdown of a service level: HTML with the value of now, and the data with which sla.js continues it."""

import json
from collections.abc import Sequence
from datetime import timedelta
from itertools import islice

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from ...calendars.calendar import Calendar
from ...clock import from_ms, to_ms
from ...service_levels.clocks import MS, PAUSED, RUNNING
from ...service_levels.service_level import SlaStatus

# Limits of the open times that a page gets. After the last one, its countdown stops until the page is reloaded.
SPANS = 8
DAYS = timedelta(days=60)


def open_spans(calendar: Calendar | None, now_ms: int) -> list[tuple[int, int]]:
    """Return the next open times as (opens, closes) in ms since 1970; the first may have begun already."""
    now = from_ms(now_ms)
    spans = iter([(now, now + DAYS)]) if calendar is None else calendar.open_times(now, now + DAYS)
    return [(to_ms(opens), to_ms(closes)) for opens, closes in islice(spans, SPANS)]


def html(status: SlaStatus, spans: Sequence[tuple[int, int]], now_ms: int, name: str) -> SafeString:
    """Return HTML with the state of a service level and the working time left, which is negative after the breach."""
    word, style = _badge(status)
    return format_html(
        '{name}<span class="dt-state dt-{style}">{word}</span> '
        '<span class="dt-sla" title="{title}" data-left-ms="{left}" data-now-ms="{now}" data-open="{spans}" '
        'data-breached="{breached}">'
        "{text}</span>",
        name=format_html('<span class="dt-name">{}</span> ', name) if name else "",
        style=style, word=word, title=_("working time left"), left=status.remaining // MS, now=now_ms,
        breached=_breached(),
        spans=json.dumps(spans if status.state == RUNNING else []), text=digits(status.remaining // MS),
    )  # fmt: skip


def _badge(status: SlaStatus) -> tuple[str, str]:
    if status.is_breached:
        return _breached(), "dead"
    if status.state == RUNNING:
        return pgettext("state of a service level's clock", "running"), "delayed"
    if status.state == PAUSED:
        return pgettext("state of a service level's clock", "paused"), "ready"
    return pgettext("state of a service level's clock", "stopped"), "finished"


def _breached() -> str:
    return pgettext("state of a service level", "breached")


def digits(ms: int) -> str:
    """Format working time as hours, minutes and seconds: "7:59:59", "-0:00:01". Rounds towards zero, as sla.js does."""
    seconds = abs(ms) // 1000
    sign = "-" if ms < 0 and seconds else ""
    return f"{sign}{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"
