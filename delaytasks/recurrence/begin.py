"""Decide whether a firing runs when it begins, by the options missed=, within= and running= of its schedule.

A firing is a job that a schedule has made. The executor calls all handlers through call(), which makes no query for
other jobs.
"""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from django.db import transaction
from django.db.models import Q
from django.db.models.functions import Coalesce

from .. import clock, databases, handlers
from ..calendars.wall_time import to_zone
from ..db import schedules, transitions
from ..exceptions import BadInput, BadTimeZone
from ..handlers import Handler, Skip
from ..jobs.series import FIRING, firing_prefix, former_prefixes, name_of
from ..states import Outcome
from ..worker.attempt import Defer
from ..worker.coroutines import await_result
from .definition import times_of_row
from .wall_times import first_wall, parse_label

if TYPE_CHECKING:
    from ..models import Schedule, ScheduleRun
    from ..worker.attempt import RunningJob

logger = logging.getLogger("delaytasks")
QUEUE_MS = 1_000  # how long a firing with running="queue" waits before it looks again
ON_TIME_MS = 60_000  # a firing that begins later is overdue; the default of within= if missed="none"


def call(handler: Handler, argument: Any) -> Any:
    """Call the handler's function with a job, or with those jobs of a list that are not skipped. Return its result."""
    if isinstance(argument, list):
        return _call_batch(handler, argument)
    decision = decide(argument)
    return handler.function(argument) if decision is None else decision.result


def _call_batch(handler: Handler, jobs: "list[RunningJob]") -> Any:
    decisions = {job.id: decision.result for job in jobs if (decision := decide(job)) is not None}
    if not decisions:
        return handler.function(jobs)
    rest = [job for job in jobs if job.id not in decisions]
    result = await_result(handler.function(rest)) if rest else None
    results = result if isinstance(result, Mapping) else dict.fromkeys((job.id for job in rest), result)
    return {**results, **decisions}


class Decision(NamedTuple):
    """The result of a job whose handler is not called, as if the handler had returned it."""

    result: Any


def decide(job: "RunningJob") -> Decision | None:
    """Return None if the handler is to be called, otherwise the result to use instead. Raises Defer if it must wait."""
    match = FIRING.fullmatch(job.key)
    if match is None:
        return None
    name = match["name"] or name_of(job.topic, match["series"])
    row = _find(job.using, name, job.topic, is_series=match["name"] is None)
    if row is None:
        return None
    try:
        due_ms = _planned_ms(row, job, match["label"])
    except BadTimeZone:
        raise
    except ValueError:  # not a time, so the schedule has not made this key
        return None
    reason = "" if due_ms is None else _missed(row, job, match["label"], due_ms)
    if not reason and _has_expired(job, match["label"], due_ms):
        reason = "late"
    if not reason and row.running != "allow" and _occupied(row, job):
        if row.running == "queue" or not _may_be_skipped(row, job, match["label"], due_ms):
            raise Defer(delay_ms=QUEUE_MS)
        reason = "running"
    if reason or job.attempt == 1 or due_ms is not None:
        late_ms = max(0, job.reserved_ms - (job.due_ms if due_ms is None else due_ms))
        run = Run(row.name, row.series_key is not None, late_ms, reason)
        for observer in observers:
            observer(run)
    return Decision(end_as_skipped(job, reason)) if reason else None


class Run(NamedTuple):
    """A run of a schedule that begins or is skipped. Passed to observers."""

    schedule: str
    is_series: bool
    late_ms: int
    skipped: str  # the reason; "": it is not skipped


observers: list[Callable[[Run], None]] = []  # called when a run begins or is skipped; they must not raise


def end_as_skipped(job: "RunningJob", reason: str) -> Skip:
    """Log why a job is skipped: "paused", "late", "missed" or "running". Return the handler's result."""
    logger.info("%s %s is skipped: %s", job.topic, job.key, reason)
    return Skip(reason)


def _find(using: str, name: str, topic: str, *, is_series: bool = False) -> "Schedule | None":
    """Return the schedule that has this name, or had it before it was renamed."""
    from ..models import Schedule

    rows = Schedule.objects.using(using).filter(topic=topic)
    found = rows.filter(name=name).first()
    if found is not None or is_series:
        return found
    renamed = rows.exclude(former_names="").order_by("pk")
    return next((row for row in renamed if name in row.former_names.split()), None)


def _planned_ms(row: "Schedule", job: "RunningJob", label: str) -> int | None:
    """Return the time for which the schedule made the firing, if its handler has not been called yet.

    Return None for a retry, a backfill, and a firing that a person moved or ran now. Raises BadTimeZone, and ValueError
    for a label that is not a time.
    """
    if label.startswith("now:"):
        return None
    parse_label(label, to_zone(row.tz))
    if job.planned_ms is None or (job.attempt == 1 and job.due_ms == job.planned_ms):
        return job.planned_ms  # the usual case, without a query
    return None if _was_begun_or_moved(job) else job.planned_ms


def _was_begun_or_moved(job: "RunningJob") -> bool:
    """Return whether an earlier attempt has called the handler, or a person has moved the job.

    Attempts that were put off, or given back by a worker that stopped, have no event.
    """
    from ..models import JobEvent

    events = JobEvent.objects.using(job.using).filter(job_id=job.id)
    return events.filter(Q(reserved_ms__isnull=False) | Q(outcome=Outcome.RESCHEDULED)).exists()


def _missed(row: "Schedule", job: "RunningJob", label: str, due_ms: int) -> str:
    """Return the reason to skip a firing that was due at `due_ms` as missed, or ""."""
    if row.paused:
        return "paused"
    now_ms = databases.now_ms(job.using)
    within_ms = ON_TIME_MS if row.within_ms is None and row.missed == "none" else row.within_ms
    if within_ms is not None and now_ms - due_ms > within_ms:
        return "late"
    return "missed" if row.missed == "last" and _has_later(row, job, label, due_ms, now_ms) else ""


def _has_expired(job: "RunningJob", label: str, due_ms: int | None) -> bool:
    """Return whether a firing that has waited must not begin any more by its expires=.

    The claim has compared that with the end of the last wait only. What has waited has no event of it, so its newest
    event has the due time before.
    """
    from ..models import JobEvent

    expires_ms = handlers.expires_ms(job.topic, job.expires_ms)
    if expires_ms is None or job.attempt == 1:
        return False
    if due_ms is None:
        events = JobEvent.objects.using(job.using).newest_of(job.id)
        due_ms = events.values_list(Coalesce("next_due_ms", "due_ms"), flat=True).first()
    if due_ms is None and label.startswith("now:"):
        due_ms = job.created_ms
    return due_ms is not None and databases.now_ms(job.using) - due_ms > expires_ms


def _may_be_skipped(row: "Schedule", job: "RunningJob", label: str, due_ms: int | None) -> bool:
    """Return whether running="skip" applies to this attempt.

    It applies to a firing at its scheduled time and to a backfill. Retries, and firings that a person moved or ran now,
    wait instead, and so do overdue firings if missed="all": those more than a minute late, or whose next one is due.
    """
    if due_ms is None:  # a job that a person has moved is due after its creation
        return job.attempt == 1 and job.due_ms <= job.created_ms and not label.startswith("now:")
    if row.missed != "all":
        return True
    now_ms = databases.now_ms(job.using)
    return now_ms - due_ms <= ON_TIME_MS and not _is_next_due(row, clock.from_ms(due_ms), now_ms)


def _is_next_due(row: "Schedule", moment: datetime, now_ms: int) -> bool:
    """Return whether the schedule's first time after the moment has come."""
    try:
        later = times_of_row(row).next_after(moment)
    except BadInput:
        return False
    return later is not None and clock.to_ms(later.due) <= now_ms


def _has_later(row: "Schedule", job: "RunningJob", label: str, due_ms: int, now_ms: int) -> bool:
    """Return whether a firing of the schedule later than this one, due at `due_ms`, is due as well.

    Firings cancelled before they began do not count, nor do times for which none was made: after a pause or a change of
    the times, the schedule goes on from that moment.
    """
    if _is_next_due(row, max(clock.from_ms(due_ms), row.made_until), now_ms):
        return True  # it is made in a moment
    prefixes = [firing_prefix(row), *former_prefixes(row)]
    # Both this job and a later one may have been made for a former zone, or only this one.
    start = min(label, first_wall(to_zone(row.tz), clock.from_ms(due_ms)).isoformat(timespec="seconds"))
    return any(schedules.has_later(job.using, job.topic, job.id, each, start, due_ms, now_ms) for each in prefixes)


def _occupied(row: "Schedule", job: "RunningJob") -> bool:
    """Return whether another job of the schedule is running. If not, store this job as the running one.

    An atomic handler's transaction keeps the ScheduleRun row locked to its end: another job that finds the row locked
    knows that this one is running. For other handlers, the stored job counts as running while its lease is held.
    """
    with transaction.atomic(job.using):
        run = _lock_run(job.using, row)
        if run is None:
            return True
        if run.job_id is not None and run.job_id != job.id and _is_held(job.using, run.job_id, run.attempt):
            return True
        run.job_id, run.attempt = job.id, job.attempt
        run.save(using=job.using, update_fields=["job_id", "attempt"])
    return False


def _lock_run(using: str, row: "Schedule") -> "ScheduleRun | None":
    """Lock the schedule's ScheduleRun row and return it; add it if it is missing. None: another run has locked it."""
    from ..models import ScheduleRun

    runs = ScheduleRun.objects.using(using)
    free = runs.select_for_update(skip_locked=True).filter(schedule_id=row.pk)
    found = free.first()
    if found is None and not runs.filter(schedule_id=row.pk).exists():
        runs.bulk_create([ScheduleRun(schedule_id=row.pk)], ignore_conflicts=True)
        found = free.first()
    return found


def _is_held(using: str, job_id: int, attempt: int) -> bool:
    found = transitions.find_attempt(using, job_id)
    return found is not None and found.held_by(attempt)
