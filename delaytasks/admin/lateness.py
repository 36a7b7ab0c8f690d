"""The lateness of jobs: from the due time until now, or until the start of the last attempt."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from ..models import Job, JobEvent
from ..states import State

MAX_ATTEMPTS = 50  # the events of jobs with more attempts are not read: there may be thousands
SLOW_MS, STUCK_MS = 5_000, 60_000  # lateness from which a job is marked with a warning, and with an error
_MS = timedelta(milliseconds=1)


def annotate(jobs: Iterable[Any], now: datetime) -> None:
    """Set late_ms on each job: its lateness in ms; None if it is not late, or if finding the lateness is expensive.

    The row of a job that waits for a retry has the due time of the next attempt already. For all such jobs, one query
    reads the lateness of the last attempt from the events.
    """
    waiting = []
    for job in jobs:
        job.late_ms = _from_row(job, now)
        if job.late_ms is None and job.state == State.DELAYED and 0 < job.attempt <= MAX_ATTEMPTS:
            waiting.append(job)
    if waiting:
        late = _from_events(waiting)
        for job in waiting:
            job.late_ms = late.get(job.pk)


def _from_row(job: Job, now: datetime) -> int | None:
    state = job.shown_state(now)
    if state is State.READY:
        return (now - job.due_at) // _MS
    if state in (State.RESERVED, State.FINISHED, State.DEAD) and job.reserved_at is not None:
        late = (job.reserved_at - job.due_at) // _MS
        return late if late >= 0 else None
    return None


def _from_events(jobs: list[Any]) -> dict[int, int | None]:
    events = JobEvent.objects.using(jobs[0]._state.db).filter(
        job_id__in=[job.pk for job in jobs], attempt=F("job__attempt"), reserved_ms__isnull=False
    )
    return {event.job_id: event.late_ms for event in events.only("job_id", "reserved_ms", "due_ms")}
