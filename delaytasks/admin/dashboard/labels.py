"""Format times and numbers for the board and the list of topics."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.utils import dateformat, timezone
from django.utils.translation import gettext as _

from ... import clock, formatting
from ...db.counts import Count

MAX_NAMES = 3  # topics named on a tile


def local(ms: int) -> datetime:
    """Convert ms since 1970 to a datetime in the active time zone, which is the viewer's."""
    return timezone.localtime(clock.from_ms(ms))


def clock_time(ms: int) -> str:
    return local(ms).strftime("%H:%M")


def day_and_time(ms: int) -> str:
    return dateformat.format(local(ms), "D H:i")


def number(count: Count | int) -> str:
    """Return the number as text: "40,000"; for an incomplete count "13,000+", rounded down to two digits."""
    if isinstance(count, int):
        return f"{count:,}"
    if count.complete:
        return f"{count.number:,}"
    step = 10 ** max(0, len(str(count.number)) - 2)
    return f"{count.number // step * step:,}+"


def span(ms: int | None) -> str:
    return "" if ms is None else formatting.duration(ms)


def names(topics: Sequence[str]) -> str:
    """Return a text with the first three topics and the number of the others."""
    rest = len(topics) - MAX_NAMES
    named = formatting.join(topics[:MAX_NAMES])
    return named if rest <= 0 else _("%(names)s and %(n)d more") % {"names": named, "n": rest}


def topic_counts(topics: Iterable[tuple[str, Count]]) -> str:
    """Return a text with the topics, each with its count."""
    return formatting.join(f"{topic} {number(count)}" for topic, count in topics)
