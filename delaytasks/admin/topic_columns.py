"""The columns of a topic in the admin: its statistics, its handler and its retry policy."""

import inspect
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from .. import conf, formatting, handlers
from ..backoff import DEFAULT_BACKOFF, Backoff
from ..models import Topic
from ..monitoring import forecast
from ..monitoring import last_hour as hourly
from ..monitoring.forecast import TopicStatus
from ..monitoring.last_hour import EventCounts, LastHour
from ..states import Outcome
from . import display, target_form
from .lateness import STUCK_MS

MAX_DELAYS = 5  # the number of retry delays that are listed
OUTCOMES = {  # without SCHEDULED: most jobs have no such event
    outcome: word for outcome, word in formatting.OUTCOMES.items() if outcome is not Outcome.SCHEDULED
}


class TopicStats(NamedTuple):
    now: TopicStatus
    tally: EventCounts
    hour: LastHour


def annotate(rows: Iterable[Any], using: str) -> None:
    """Set `stats` on each topic, with two lookups for all topics together. The values may be a few seconds old."""
    names = [row.name for row in rows]
    if not names:
        return
    statuses, hour = forecast.topic_statuses(using, names), hourly.last_hour(using)
    tallies = hour.topics(set(names))
    for row in rows:
        row.stats = TopicStats(statuses[row.name], tallies.get(row.name, EventCounts()), hour)


def oldest(now: TopicStatus) -> SafeString | str:
    """Return the waiting time of the oldest ready job, highlighted if it is too long; a dash if no job is ready."""
    if now.oldest_ready_ms is None:
        return display.EMPTY
    css = "dt-overdue" if now.oldest_ready_ms >= STUCK_MS else "dt-late"
    return format_html('<span class="{}">{}</span>', css, formatting.duration(now.oldest_ready_ms))


def throughput(stats: TopicStats) -> str:
    """Return the number of finished jobs per minute; a dash if there are none."""
    finished = stats.tally.outcomes[Outcome.FINISHED]
    return f"{finished / stats.hour.minutes_counted:,.1f}" if finished else display.EMPTY


def lateness(stats: TopicStats) -> str:
    p50, p99 = stats.tally.late_ms(0.5), stats.tally.late_ms(0.99)
    return display.EMPTY if p50 is None or p99 is None else f"{formatting.duration(p50)} / {formatting.duration(p99)}"


def last_hour(stats: TopicStats) -> str:
    """Return the number of events per outcome, and how many minutes were counted if not all were."""
    counted = [(word, stats.tally.outcomes[outcome]) for outcome, word in OUTCOMES.items()]
    text = formatting.join(f"{word} {count:,}" for word, count in counted if count) or _("nothing")
    if stats.hour.complete:
        return text
    minutes = int(stats.hour.minutes_counted)
    part = ngettext("%(what)s (in the last minute)", "%(what)s (in the last %(n)d minutes)", minutes)
    return part % {"what": text, "n": minutes}


# -- the handler --------------------------------------------------------------------------------


def handler_name(topic: Topic) -> str:
    handler = handlers.find(topic.name)
    if handler is not None:
        return handler.name
    if topic.target is not None:
        return target_form.description(topic.target)
    return _("in the settings") if topic.name in conf.get().topics else _("none here")


def short_name(topic: Topic) -> str:
    """Return the name of the handler without its module, or where the topic is forwarded."""
    handler = handlers.find(topic.name)
    if handler is None and topic.target is not None:
        return target_form.short_description(topic.target)
    name = handler_name(topic)
    return name if "(" in name else name.rpartition(".")[2]


def docstring(topic: str) -> str:
    handler = handlers.find(topic)
    return (inspect.getdoc(handler.function) if handler else None) or ""


def run_slots(topic: Topic) -> str:
    own = handlers.concurrency(topic.name)
    if topic.concurrency is None or topic.concurrency == own:
        return str(own)
    return _("%(here)d instead of %(own)d") % {"here": topic.concurrency, "own": own}


def policy(topic: Topic) -> Iterator[str]:
    """Yield sentences about the time limit of an attempt and about what happens after a failure."""
    yield _("An attempt may take at most %(span)s.") % {"span": formatting.duration(handlers.ttr_ms(topic.name))}
    handler, max_attempts = handlers.find(topic.name), handlers.max_attempts(topic.name)
    if max_attempts == 1:
        yield _("If it fails or takes longer, the job is dead.")
        return
    if handler is not None or topic.target is not None:
        backoff = handler.backoff if handler else DEFAULT_BACKOFF
        yield _retry_delays(backoff, max_attempts)
        if backoff.jitter:
            yield _("Each delay varies by up to %(percent)d %%.") % {"percent": round(backoff.jitter * 100)}
    else:
        yield _("The consumer decides when a failed attempt is retried.")
    dead = ngettext(
        "The job is dead after %(n)d failed attempt.", "The job is dead after %(n)d failed attempts.", max_attempts
    )
    yield dead % {"n": max_attempts}


def _retry_delays(backoff: Backoff, max_attempts: int) -> str:
    """Return a sentence with the delays before each retry."""
    exact = Backoff(backoff.base_seconds, backoff.factor, backoff.cap_seconds, jitter=0)
    delays = [formatting.duration(exact.delay_ms(failures)) for failures in range(1, min(max_attempts, MAX_DELAYS + 1))]
    if max_attempts > MAX_DELAYS + 1:
        return _("A failed attempt is retried after %(delays)s and so on, at most %(cap)s.") % {
            "delays": formatting.join(delays),
            "cap": formatting.duration(round(backoff.cap_seconds * 1000)),
        }
    return _("A failed attempt is retried after %(delays)s.") % {"delays": formatting.join(delays)}
