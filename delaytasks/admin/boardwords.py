"""How the board and the topics say times and numbers."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from django.utils import dateformat, timezone
from django.utils.translation import gettext as _

from .. import clock, words
from ..counting import Count

NAMED = 3  # topics that a tile names


def local(ms: int) -> datetime:
    """In the active time zone, which is the viewer's."""
    return timezone.localtime(clock.from_ms(ms))


def clock_time(ms: int) -> str:
    return local(ms).strftime("%H:%M")


def day_and_time(ms: int) -> str:
    return dateformat.format(local(ms), "D H:i")


def number(count: Count | int) -> str:
    """ "40,000"; of what was not counted to its end "13,000+", cut to two digits."""
    if isinstance(count, int):
        return f"{count:,}"
    if count.whole:
        return f"{count.number:,}"
    step = 10 ** max(0, len(str(count.number)) - 2)
    return f"{count.number // step * step:,}+"


def span(ms: int | None) -> str:
    return "" if ms is None else words.span(ms)


def names(topics: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    rest = len(topics) - NAMED
    named = words.listed(topics[:NAMED])
    return named if rest <= 0 else _("%(names)s and %(n)d more") % {"names": named, "n": rest}


def who(topics: Iterable[tuple[str, Count]]) -> str:
    """Topics, each with its number."""
    return words.listed(f"{topic} {number(count)}" for topic, count in topics)
