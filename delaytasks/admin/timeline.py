"""A job's events in words, newest first, as its page shows them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import clock, words
from ..models import Job, JobEvent
from ..states import Outcome, State
from . import shown

NEWEST = 200  # a job that asks a bank every ten minutes has thousands
LONG_MS = 10_000  # what is at least this long is told in minutes and hours, too


class Entry(NamedTuple):
    at: datetime
    css: str
    title: Any
    facts: list[Any]
    error: str = ""
    reason: str = ""

    @property
    def when(self) -> SafeString:
        return shown.stamp(self.at, ms=True)

    @property
    def shown_error(self) -> SafeString | str:
        return shown.error(self.error)


def of(job: Job, now: datetime) -> tuple[list[Entry], bool]:
    """The timeline of `job`, and whether older events were left out."""
    events = _newest(job)
    entries = list(_running(job, now))
    for event in events[:NEWEST]:
        entries += _entries(event)
    if len(events) <= NEWEST and not any(event.outcome == Outcome.SCHEDULED for event in events):
        entries.append(Entry(job.created_at, "scheduled", _("scheduled"), []))
    return entries, len(events) > NEWEST


def _newest(job: Job) -> list[JobEvent]:
    """As many as are shown and one more; of a job from the archive those that came with it."""
    told: list[JobEvent] | None = getattr(job, "archived_events", None)
    if told is not None:
        return told[: -NEWEST - 2 : -1]
    return list(JobEvent.objects.using(job._state.db).newest_of(job.pk)[: NEWEST + 1])


def _running(job: Job, now: datetime) -> Iterator[Entry]:
    """What no event tells yet: the attempt that is under way."""
    if job.state != State.RESERVED or job.reserved_at is None:
        return
    reserved_ms = clock.to_ms(job.reserved_at)
    facts = list(_beginning(job.attempt, reserved_ms - job.due_ms, job.worker))
    if job.lease_until is not None:
        facts.append(_("its lease ends %(when)s") % {"when": words.relative(job.lease_until, now)})
    yield _reserved(reserved_ms, facts)


def _entries(event: JobEvent) -> Iterator[Entry]:
    """What an event tells, and before it how the attempt began that it ended."""
    yield Entry(
        clock.from_ms(event.done_ms),
        event.outcome,
        words.OUTCOMES.get(_outcome(event), event.outcome),
        list(_facts(event)),
        event.error,
        event.reason,
    )
    if event.reserved_ms is not None and event.late_ms is not None:
        yield _reserved(event.reserved_ms, list(_beginning(event.attempt, event.late_ms, event.worker)))


def _reserved(reserved_ms: int, facts: list[Any]) -> Entry:
    return Entry(clock.from_ms(reserved_ms), State.RESERVED.word, words.STATES[State.RESERVED], facts)


def _beginning(attempt: int, late_ms: int, worker: str) -> Iterator[Any]:
    yield _("attempt %(number)d") % {"number": attempt}
    if worker:
        yield _("by %(worker)s") % {"worker": worker}
    yield _("%(ms)s ms late") % {"ms": f"{late_ms:,}"} + _in_short(late_ms)


def _outcome(event: JobEvent) -> Any:
    return Outcome(event.outcome) if event.outcome in set(Outcome) else event.outcome


def _facts(event: JobEvent) -> Iterator[Any]:
    if event.ran_ms is not None:
        yield _("ran for %(ms)s ms") % {"ms": f"{event.ran_ms:,}"} + _in_short(event.ran_ms)
    if event.next_due_ms is not None:
        due = shown.stamp(clock.from_ms(event.next_due_ms), ms=True)
        yield format_html(_("due {when}"), when=due)
    if event.actor:
        yield _("by %(who)s") % {"who": event.actor}


def _in_short(ms: int) -> str:
    return f" ({words.span(ms)})" if ms >= LONG_MS else ""
