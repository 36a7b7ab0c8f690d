"""What a topic's row and page say of it, in words: its live numbers and the terms of its handler."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf, forecast, lasthour, topics, words
from ..backoff import Backoff
from ..forecast import Standing
from ..lasthour import LastHour, Tally
from ..models import Topic
from ..states import Outcome
from . import shown
from .lateness import STUCK_MS

DELAYS = 5  # of a retry policy that are told one by one
TOLD = (Outcome.FINISHED, Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD, Outcome.CANCELLED)


class Numbers(NamedTuple):
    now: Standing
    tally: Tally
    hour: LastHour


def note(rows: Iterable[Any], using: str) -> None:
    """Set .numbers on each topic: two questions for all of them, and answers that may be a few seconds old."""
    names = [row.name for row in rows]
    if not names:
        return
    standings, hour = forecast.standings(using, names), lasthour.last_hour(using)
    tallies = hour.topics(set(names))
    for row in rows:
        row.numbers = Numbers(standings[row.name], tallies.get(row.name, Tally()), hour)


def oldest(now: Standing) -> SafeString | str:
    """For how long the oldest one that is ready has been waiting; marked when that is too long."""
    if now.oldest_ready_ms is None:
        return shown.EMPTY
    css = "dt-overdue" if now.oldest_ready_ms >= STUCK_MS else "dt-late"
    return format_html('<span class="{}">{}</span>', css, words.span(now.oldest_ready_ms))


def throughput(numbers: Numbers) -> str:
    """Finished jobs a minute."""
    finished = numbers.tally.outcomes[Outcome.FINISHED]
    return f"{finished / numbers.hour.minutes_known:,.1f}" if finished else shown.EMPTY


def lateness(numbers: Numbers) -> str:
    p50, p99 = numbers.tally.late_ms(0.5), numbers.tally.late_ms(0.99)
    return shown.EMPTY if p50 is None or p99 is None else f"{words.span(p50)} / {words.span(p99)}"


def last_hour(numbers: Numbers) -> str:
    """How many finished, failed, ...; and of how much of the hour, if not of all."""
    counted = [(words.OUTCOMES[each], numbers.tally.outcomes[each]) for each in TOLD]
    said = words.listed(f"{word} {count:,}" for word, count in counted if count) or _("nothing")
    if numbers.hour.whole:
        return said
    minutes = numbers.hour.minutes_known
    return _("%(what)s (in the last %(n)d minutes)") % {"what": said, "n": minutes}


# -- its handler --------------------------------------------------------------------------------


def handler_name(topic: str) -> str:
    handler = topics.find(topic)
    if handler is not None:
        return handler.name
    return _("in the settings") if topic in conf.get().topics else _("none here")


def docstring(topic: str) -> str:
    handler = topics.find(topic)
    return (inspect.getdoc(handler.function) if handler else None) or ""


def run_slots(topic: Topic) -> str:
    own = topics.concurrency(topic.name)
    if topic.concurrency is None or topic.concurrency == own:
        return str(own)
    return _("%(here)d instead of %(own)d") % {"here": topic.concurrency, "own": own}


def policy(topic: str) -> Iterator[str]:
    """How long an attempt may take, and what happens after one that failed; in sentences."""
    yield _("An attempt may take %(span)s.") % {"span": words.span(topics.ttr_ms(topic))}
    handler, most = topics.find(topic), topics.max_attempts(topic)
    if most == 1:
        yield _("One that fails or takes longer makes the job dead.")
        return
    if handler is not None:
        yield _again(handler.backoff, most)
        if handler.backoff.jitter:
            yield _("Each of these times is up to %(percent)d %% shorter or longer.") % {
                "percent": round(handler.backoff.jitter * 100)
            }
    else:
        yield _("After one that failed, whoever took it says when it is tried again.")
    dead = ngettext("After %(n)d that failed it is dead.", "After %(n)d that failed it is dead.", most)
    yield dead % {"n": most}


def _again(backoff: Backoff, most: int) -> str:
    """After how long it is tried again, and again."""
    calm = Backoff(backoff.base_seconds, backoff.factor, backoff.cap_seconds, jitter=0)
    delays = [words.span(calm.delay_ms(failures)) for failures in range(1, min(most, DELAYS + 1))]
    if most > DELAYS + 1:
        return _("After one that failed it is tried again after %(delays)s and so on, at most %(cap)s.") % {
            "delays": words.listed(delays),
            "cap": words.span(round(backoff.cap_seconds * 1000)),
        }
    return _("After one that failed it is tried again after %(delays)s.") % {"delays": words.listed(delays)}
