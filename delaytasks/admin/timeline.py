"""The timeline on a job's page: its events as text, newest first."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from .. import clock, formatting
from ..models import Job, JobEvent
from ..states import Outcome, State
from . import display

NEWEST = 200  # events shown; a job that is retried every ten minutes may have thousands
LONG_MS = 10_000  # durations from this length on are also shown in larger units


class Entry(NamedTuple):
    at: datetime
    css: str
    title: Any
    facts: list[Any]
    error: str = ""
    reason: str = ""

    @property
    def when(self) -> SafeString:
        return display.stamp(self.at, ms=True)

    @property
    def shown_error(self) -> SafeString | str:
        return display.error(self.error)


def build(job: Job, now: datetime) -> tuple[list[Entry], bool]:
    """Return the entries of a job's timeline, and whether older events were left out."""
    events = _newest_events(job)
    entries = list(_running(job, now))
    for event in events[:NEWEST]:
        entries += _entries(event)
    if len(events) <= NEWEST and not any(_is_creation(event) for event in events):
        entries.append(Entry(job.created_at, "scheduled", _("scheduled"), []))
    return entries, len(events) > NEWEST


def _is_creation(event: JobEvent) -> bool:
    """Return whether the event records the job's creation; one with an attempt records a schedule() while it ran."""
    return event.outcome == Outcome.SCHEDULED and not event.attempt


def _newest_events(job: Job) -> list[JobEvent]:
    """Return the newest events, one more than are shown, so that build() knows whether there are older ones.

    A job from the archive has its events attached.
    """
    archived: list[JobEvent] | None = getattr(job, "archived_events", None)
    if archived is not None:
        return archived[: -NEWEST - 2 : -1]
    return list(JobEvent.objects.using(job._state.db).newest_of(job.pk)[: NEWEST + 1])


def _running(job: Job, now: datetime) -> Iterator[Entry]:
    """Yield the entry of the running attempt, if there is one: it has no event yet."""
    if job.state != State.RESERVED or job.reserved_at is None:
        return
    reserved_ms = clock.to_ms(job.reserved_at)
    facts = list(_attempt_facts(job.attempt, reserved_ms - job.due_ms, job.worker))
    if job.lease_until is not None:
        facts.append(_("its lease ends %(when)s") % {"when": formatting.relative(job.lease_until, now)})
    yield _reserved(reserved_ms, facts)


def _entries(event: JobEvent) -> Iterator[Entry]:
    """Yield the entry of an event and, if the event ended an attempt, the entry of that attempt's start."""
    yield Entry(
        clock.from_ms(event.done_ms),
        event.outcome,
        formatting.OUTCOMES.get(_outcome(event), event.outcome),
        list(_facts(event)),
        event.error,
        event.reason,
    )
    if event.reserved_ms is not None and event.late_ms is not None:
        yield _reserved(event.reserved_ms, list(_attempt_facts(event.attempt, event.late_ms, event.worker)))


def _reserved(reserved_ms: int, facts: list[Any]) -> Entry:
    return Entry(clock.from_ms(reserved_ms), State.RESERVED.word, formatting.STATES[State.RESERVED], facts)


def _attempt_facts(attempt: int, late_ms: int, worker: str) -> Iterator[Any]:
    yield _("attempt %(number)d") % {"number": attempt}
    if worker:
        yield _("by %(worker)s") % {"worker": worker}
    yield _("%(ms)s ms late") % {"ms": f"{late_ms:,}"} + _rounded(late_ms)


def _outcome(event: JobEvent) -> Any:
    return Outcome(event.outcome) if event.outcome in set(Outcome) else event.outcome


def _facts(event: JobEvent) -> Iterator[Any]:
    if event.ran_ms is not None:
        yield _("ran for %(ms)s ms") % {"ms": f"{event.ran_ms:,}"} + _rounded(event.ran_ms)
    if event.next_due_ms is not None:
        due = display.stamp(clock.from_ms(event.next_due_ms), ms=True)
        yield format_html(_("due {when}"), when=due)
    if event.actor:
        yield _("by %(who)s") % {"who": event.actor}


def _rounded(ms: int) -> str:
    return f" ({formatting.duration(ms)})" if ms >= LONG_MS else ""
