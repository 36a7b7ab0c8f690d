"""Translatable text for states, outcomes, results, errors and durations, for the admin and the commands.

Machine-readable output (--json) uses `State.word`, milliseconds and RFC 3339 times instead.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.utils import timezone, translation
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

from . import outcomes
from .states import Outcome, State

STATES = {
    State.DELAYED: pgettext_lazy("state of a job", "delayed"),
    State.READY: pgettext_lazy("state of a job", "ready"),
    State.RESERVED: pgettext_lazy("state of a job", "reserved"),
    State.FINISHED: pgettext_lazy("state of a job", "finished"),
    State.CANCELLED: pgettext_lazy("state of a job", "cancelled"),
    State.DEAD: pgettext_lazy("state of a job", "dead"),
}

OUTCOMES = {
    Outcome.SCHEDULED: gettext_lazy("scheduled"),
    Outcome.FINISHED: gettext_lazy("finished"),
    Outcome.FAILED: gettext_lazy("failed"),
    Outcome.SNOOZED: gettext_lazy("snoozed"),
    Outcome.RELEASED: gettext_lazy("released"),
    Outcome.EXPIRED: gettext_lazy("timed out"),
    Outcome.RESCHEDULED: gettext_lazy("rescheduled"),
    Outcome.CANCELLED: gettext_lazy("cancelled"),
    Outcome.SKIPPED: gettext_lazy("skipped"),
    Outcome.RETRIED: gettext_lazy("retried"),
    Outcome.DEAD: gettext_lazy("dead"),
}

MAX_LINE = 160  # characters


def duration(ms: int) -> str:
    """Format a duration in at most two units: "340 ms", "12 s", "3 h 20 min", "2 d 4 h". Rounds down."""
    if ms < 1000:
        return _("%(count)d ms") % {"count": ms}
    seconds = ms // 1000
    if seconds < 60:
        return _("%(count)d s") % {"count": seconds}
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if hours == 0:
        return _("%(count)d min") % {"count": minutes}
    if days == 0:
        return _("%(hours)d h %(minutes)d min") % {"hours": hours, "minutes": minutes % 60}
    return _("%(days)d d %(hours)d h") % {"days": days, "hours": hours % 24}


def relative(moment: datetime, now: datetime) -> str:
    """Format the time from `now` to `moment`: "in 12 min", "4 s ago", or "now" if it is less than a second."""
    ms = (moment - now) // timedelta(milliseconds=1)
    if -1000 < ms < 1000:
        return _("now")
    return _("in %(span)s") % {"span": duration(ms)} if ms > 0 else _("%(span)s ago") % {"span": duration(-ms)}


def absolute(moment: datetime, *, ms: bool = False) -> str:
    """Format an aware datetime in the active time zone: to the second, or with `ms` to the millisecond."""
    local = timezone.localtime(moment)
    return local.strftime("%Y-%m-%d %H:%M:%S") + (f".{local.microsecond // 1000:03d}" if ms else "")


def join(parts: Iterable[str]) -> str:
    """Join parts with the comma of the active language: "one, two, three"."""
    return pgettext("between the parts of a list", ", ").join(parts)


def error(stored: str) -> str:
    """Translate a stored error code of the engine. Other errors, such as tracebacks, are returned unchanged."""
    if outcomes.error_code(stored) is None:
        return stored
    return translation.gettext(outcomes.error_text(stored))  # marked for translation in outcomes


def result(stored: str) -> str:
    """Translate a stored result of a bulk change. Unknown values are returned unchanged."""
    code = outcomes.to_result_code(stored)
    if code.startswith(outcomes.ERROR):
        return _("failed: %(error)s") % {"error": code.removeprefix(outcomes.ERROR)}
    if code not in outcomes.RESULT_TEXTS:
        return stored
    return translation.gettext(outcomes.result_text(code))  # marked for translation in outcomes


def last_line(error: str) -> str:
    """Return the last non-empty line of an error (of a traceback: the exception), cut to 160 characters."""
    last = next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")
    return last if len(last) <= MAX_LINE else last[: MAX_LINE - 1] + "…"
