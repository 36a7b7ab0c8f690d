"""What people read, translatable: states, outcomes, spans of time, an error in one line.

For the admin and the commands. What a program reads (--json) has `State.word`,
milliseconds and RFC 3339 times instead.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext, pgettext_lazy

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
    Outcome.RELEASED: gettext_lazy("given back"),
    Outcome.EXPIRED: gettext_lazy("outlived its TTR"),
    Outcome.RESCHEDULED: gettext_lazy("rescheduled"),
    Outcome.CANCELLED: gettext_lazy("cancelled"),
    Outcome.RETRIED: gettext_lazy("retried"),
    Outcome.DEAD: gettext_lazy("dead"),
}

# What the engine itself writes where a traceback stands otherwise. Stored in English, as all errors are.
ERRORS = {
    "Its TTR was over and nobody had finished it.": gettext_lazy("Its TTR was over and nobody had finished it."),
    "Buried by its consumer.": gettext_lazy("Buried by its consumer."),
    "Who asked for this may not change jobs any more.": gettext_lazy(
        "Who asked for this may not change jobs any more."
    ),
}

ONE_LINE = 160  # characters


def span(ms: int) -> str:
    """A length of time in at most two units: "340 ms", "12 s", "3 h 20 min", "2 d 4 h". Cut, never rounded up."""
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
    """How far `moment` is from `now` (both aware): "in 12 min", "4 s ago", "now" within a second."""
    ms = (moment - now) // timedelta(milliseconds=1)
    if -1000 < ms < 1000:
        return _("now")
    return _("in %(span)s") % {"span": span(ms)} if ms > 0 else _("%(span)s ago") % {"span": span(-ms)}


def absolute(moment: datetime, *, ms: bool = False) -> str:
    """An aware datetime in the active time zone, to the second, or to the millisecond with `ms`."""
    local = timezone.localtime(moment)
    return local.strftime("%Y-%m-%d %H:%M:%S") + (f".{local.microsecond // 1000:03d}" if ms else "")


def listed(parts: Iterable[str]) -> str:
    """ "one, two, three", with the reader's own comma."""
    return pgettext("between the parts of a list", ", ").join(parts)


def error(stored: str) -> str:
    """A stored error in the reader's language if it is a sentence of the engine's; a traceback as it stands."""
    return str(ERRORS.get(stored, stored))


def one_line(error: str) -> str:
    """The last line of an error that says something (of a traceback: the exception), cut to 160 characters."""
    last = next((line.strip() for line in reversed(error.splitlines()) if line.strip()), "")
    return last if len(last) <= ONE_LINE else last[: ONE_LINE - 1] + "…"
