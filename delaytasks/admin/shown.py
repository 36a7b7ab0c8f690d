"""HTML for the admin's cells. Everything stored is escaped here or by the template."""

import json
import re
import zoneinfo
from datetime import datetime, tzinfo
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import conf, dialect, words
from ..redaction import redacted
from ..states import State

EMPTY = "–"
ZONE_COOKIE = "delaytasks_zone"  # written by static/delaytasks/times.js
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+){0,2}")


def seen_at(request: HttpRequest, using: str) -> datetime:
    """One "now" per request, so that a page does not contradict itself."""
    now = getattr(request, "_delaytasks_now", None)
    if now is None:
        now = dialect.database_now(using)
        request._delaytasks_now = now  # type: ignore[attr-defined]
    return now


def viewer_zone(request: HttpRequest) -> tzinfo:
    """The zone that the project activated for this person, or else their browser's, or else the server's."""
    active = timezone.get_current_timezone()
    return active if _activated(active) else _browser_zone(request) or active


def _activated(active: tzinfo) -> bool:
    """Whether the project chose a zone for this request, a middleware of its own for example."""
    return active is not timezone.get_default_timezone()


def _browser_zone(request: HttpRequest) -> tzinfo | None:
    name = request.COOKIES.get(ZONE_COOKIE, "")
    if len(name) > 64 or not _ZONE.fullmatch(name):
        return None
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # a zone that is not known here; a directory of zones; not a zone's file
        return None


def zone_notice(request: HttpRequest) -> SafeString:
    """In which zone a page's times are. times.js turns them into the browser's, unless the project chose one."""
    zone = timezone.get_current_timezone_name()
    said = _("Times are in %(zone)s.") % {"zone": zone}
    if _activated(timezone.get_current_timezone()):
        return format_html('<p class="dt-zone dt-quiet">{}</p>', said)
    return format_html(
        '<p class="dt-zone dt-quiet" data-cookie="{}" data-path="{}" data-text="{}">{}</p>',
        ZONE_COOKIE,
        reverse("admin:index", current_app=getattr(request, "current_app", None)),
        _("Times are in %(zone)s, as in this browser.") % {"zone": "{zone}"},
        said,
    )


def labelled(css: str, text: Any) -> SafeString:
    """A word in a coloured frame; `css` says which colour."""
    return format_html('<span class="dt-state dt-{}">{}</span>', css, text)


def state(shown: State) -> SafeString:
    return labelled(shown.word, words.STATES[shown])


def stamp(at: datetime, *, ms: bool = False) -> SafeString:
    """A time in the active time zone, which its title names; to the millisecond with `ms`."""
    text = words.absolute(at, ms=ms)
    title = f"{text} {timezone.get_current_timezone_name()}"
    return format_html('<time class="dt-time" datetime="{}" title="{}">{}</time>', at.isoformat(), title, text)


def moment(at: datetime | None, now: datetime | None = None, *, ms: bool = False) -> SafeString | str:
    """A time and, with `now`, how far off it is."""
    if at is None:
        return EMPTY
    if now is None:
        return stamp(at, ms=ms)
    return format_html('{} <span class="dt-relative">{}</span>', stamp(at, ms=ms), words.relative(at, now))


def late(ms: int | None, *, overdue: bool = False) -> SafeString | str:
    """How late, in at most two units; what that means, and exactly how much, in the title."""
    if ms is None:
        return EMPTY
    text = _("overdue for %(ms)s ms") if overdue else _("the last attempt began %(ms)s ms late")
    css, title = "dt-overdue" if overdue else "dt-late", text % {"ms": f"{ms:,}"}
    return format_html('<span class="{}" title="{}">{}</span>', css, title, words.span(ms))


def pretty_json(value: Any) -> SafeString:
    """JSON for people; what a key's name says is secret is not shown."""
    seen = redacted(value, conf.get().redact)
    return format_html('<pre class="dt-pre" tabindex="0">{}</pre>', json.dumps(seen, indent=2, ensure_ascii=False))


def error(text: str) -> SafeString | str:
    """The last line, and the whole of it folded underneath if there is more."""
    text = words.error(text)
    line = words.one_line(text)
    if not line:
        return EMPTY
    if line == text.strip():
        return format_html('<span class="dt-error">{}</span>', line)
    return format_html(
        '<details class="dt-details"><summary class="dt-error">{}</summary>'
        '<pre class="dt-pre" tabindex="0">{}</pre></details>',
        line,
        text,
    )
