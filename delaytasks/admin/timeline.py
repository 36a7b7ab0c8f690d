"""A job's events in words, newest first, as its page shows them."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from .. import clock, words
from ..models import Job, JobEvent
from ..states import Outcome, State
from . import shown

NEWEST = 200  # a job that asks a bank every ten minutes has thousands


class Entry(NamedTuple):
    at: datetime
    css: str
    title: Any
    facts: list[str]
    error: str = ""

    @property
    def when(self) -> str:
        return words.absolute(self.at, ms=True)

    @property
    def shown_error(self) -> str:
        return shown.error(self.error)


def of(job: Job, now: datetime) -> tuple[list[Entry], bool]:
    """The timeline of `job`, and whether older events were left out."""
    events = list(JobEvent.objects.using(job._state.db).filter(job_id=job.pk).order_by("-id")[: NEWEST + 1])
    entries = [*_running(job, now), *(_entry(event) for event in events[:NEWEST])]
    if len(events) <= NEWEST and not any(event.outcome == Outcome.SCHEDULED for event in events):
        entries.append(Entry(job.created_at, "scheduled", _("scheduled"), []))
    return entries, len(events) > NEWEST


def _running(job: Job, now: datetime) -> Iterator[Entry]:
    """What no event tells yet: the attempt that is under way."""
    if job.state != State.RESERVED or job.reserved_at is None:
        return
    facts = [_attempt(job.attempt)]
    if job.lease_until is not None:
        facts.append(_("its lease ends %(when)s") % {"when": words.relative(job.lease_until, now)})
    if job.worker:
        facts.append(_worker(job.worker))
    yield Entry(job.reserved_at, State.RESERVED.word, words.STATES[State.RESERVED], facts)


def _entry(event: JobEvent) -> Entry:
    return Entry(
        clock.from_ms(event.done_ms),
        event.outcome,
        words.OUTCOMES.get(_outcome(event), event.outcome),
        list(_facts(event)),
        event.error,
    )


def _outcome(event: JobEvent) -> Any:
    return Outcome(event.outcome) if event.outcome in set(Outcome) else event.outcome


def _facts(event: JobEvent) -> Iterator[str]:
    if event.late_ms is not None and event.ran_ms is not None:
        yield _attempt(event.attempt)
        yield _("%(ms)s ms late") % {"ms": f"{event.late_ms:,}"}
        yield _("ran for %(ms)s ms") % {"ms": f"{event.ran_ms:,}"}
    if event.next_due_ms is not None:
        due = words.absolute(clock.from_ms(event.next_due_ms), ms=True)
        yield _("due %(when)s") % {"when": due}
    if event.worker:
        yield _worker(event.worker)
    if event.actor:
        yield _("by %(who)s") % {"who": event.actor}


def _attempt(number: int) -> str:
    return _("attempt %(number)d") % {"number": number}


def _worker(name: str) -> str:
    return _("worker %(name)s") % {"name": name}
