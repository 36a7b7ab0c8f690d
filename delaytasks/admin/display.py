"""HTML for the admin's table cells and fields. Stored values are escaped here or by the template."""

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

from .. import conf, formatting
from ..db import dialects
from ..redaction import HIDDEN, redacted
from ..states import State

EMPTY = "–"
ZONE_COOKIE = "delaytasks_zone"  # set by static/delaytasks/times.js
_ZONE = re.compile(r"[A-Za-z0-9_+\-]+(/[A-Za-z0-9_+\-]+){0,2}")


def request_time(request: HttpRequest, using: str) -> datetime:
    """Return the time of the request by the database's clock: the same for everything on a page."""
    now = getattr(request, "_delaytasks_now", None)
    if now is None:
        now = dialects.database_now(using)
        request._delaytasks_now = now  # type: ignore[attr-defined]
    return now


def viewer_zone(request: HttpRequest) -> tzinfo:
    """Return the time zone that the project activated for this request, or else the browser's, or the server's."""
    active = timezone.get_current_timezone()
    return active if _activated(active) else _browser_zone(request) or active


def _activated(active: tzinfo) -> bool:
    """Return whether the project activated a zone for this request, for example in a middleware."""
    return active is not timezone.get_default_timezone()


def _browser_zone(request: HttpRequest) -> tzinfo | None:
    name = request.COOKIES.get(ZONE_COOKIE, "")
    if len(name) > 64 or not _ZONE.fullmatch(name):
        return None
    try:
        return zoneinfo.ZoneInfo(name)
    except (ValueError, OSError, KeyError):  # unknown zone, a directory, or not a zone file
        return None


def zone_notice(request: HttpRequest) -> SafeString:
    """Return a note about the time zone. times.js converts times to the browser's zone unless the project chose one."""
    zone = timezone.get_current_timezone_name()
    text = _("Times are in %(zone)s.") % {"zone": zone}
    if _activated(timezone.get_current_timezone()):
        return format_html('<p class="dt-zone dt-quiet">{}</p>', text)
    return format_html(
        '<p class="dt-zone dt-quiet" data-cookie="{}" data-path="{}" data-text="{}">{}</p>',
        ZONE_COOKIE,
        reverse("admin:index", current_app=getattr(request, "current_app", None)),
        _("Times are in %(zone)s, as in this browser.") % {"zone": "{zone}"},
        text,
    )


def labelled(css: str, text: Any) -> SafeString:
    """Return a badge; `css` selects the colour."""
    return format_html('<span class="dt-state dt-{}">{}</span>', css, text)


def state(shown: State) -> SafeString:
    return labelled(shown.word, formatting.STATES[shown])


def stamp(at: datetime, *, ms: bool = False) -> SafeString:
    """Return the HTML of a time in the active time zone, with the zone in its title; with milliseconds if `ms`."""
    text = formatting.absolute(at, ms=ms)
    title = f"{text} {timezone.get_current_timezone_name()}"
    return format_html('<time class="dt-time" datetime="{}" title="{}">{}</time>', at.isoformat(), title, text)


def moment(at: datetime | None, now: datetime | None = None, *, ms: bool = False) -> SafeString | str:
    """Return the HTML of a time and, if `now` is given, of its distance from now; a dash if `at` is None."""
    if at is None:
        return EMPTY
    if now is None:
        return stamp(at, ms=ms)
    return format_html('{} <span class="dt-relative">{}</span>', stamp(at, ms=ms), formatting.relative(at, now))


def late(ms: int | None, *, overdue: bool = False) -> SafeString | str:
    """Return the lateness in at most two units, with the exact value in the title; a dash if `ms` is None."""
    if ms is None:
        return EMPTY
    text = _("overdue for %(ms)s ms") if overdue else _("the last attempt began %(ms)s ms late")
    css, title = "dt-overdue" if overdue else "dt-late", text % {"ms": f"{ms:,}"}
    return format_html('<span class="{}" title="{}">{}</span>', css, title, formatting.duration(ms))


def pretty_json(value: Any, *, hidden: bool = False) -> SafeString:
    """Return formatted JSON without its secrets; if `hidden`, only a placeholder."""
    shown = HIDDEN if hidden else redacted(value, conf.get().redact)
    return format_html('<pre class="dt-pre" tabindex="0">{}</pre>', json.dumps(shown, indent=2, ensure_ascii=False))


def error(text: str) -> SafeString | str:
    """Return the last line of an error, with the full text in a <details> element if there is more."""
    text = formatting.error(text)
    line = formatting.last_line(text)
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
