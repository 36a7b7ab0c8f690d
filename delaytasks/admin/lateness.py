"""How late a job is: how long it has been overdue, or how long after its due time its last attempt began."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import F

from ..models import Job, JobEvent
from ..states import State

MOST_ATTEMPTS = 50  # a job that asks a bank every ten minutes has thousands of events: a list does not read these
SLOW_MS, STUCK_MS = 5_000, 60_000  # what waits longer is worth a look; so long, something is wrong
_MS = timedelta(milliseconds=1)


def note(jobs: Iterable[Any], now: datetime) -> None:
    """Set late_ms on each job: milliseconds, or None where nothing is late yet or it cannot be told cheaply.

    Costs one query if a job waits for another attempt, for its due time is the next one's already.
    """
    waiting = []
    for job in jobs:
        job.late_ms = _by_its_row(job, now)
        if job.late_ms is None and job.state == State.DELAYED and 0 < job.attempt <= MOST_ATTEMPTS:
            waiting.append(job)
    if waiting:
        late = _last_attempts(waiting)
        for job in waiting:
            job.late_ms = late.get(job.pk)


def _by_its_row(job: Job, now: datetime) -> int | None:
    state = job.shown_state(now)
    if state is State.READY:
        return (now - job.due_at) // _MS
    if state in (State.RESERVED, State.FINISHED, State.DEAD) and job.reserved_at is not None:
        late = (job.reserved_at - job.due_at) // _MS
        return late if late >= 0 else None
    return None


def _last_attempts(jobs: list[Any]) -> dict[int, int | None]:
    events = JobEvent.objects.using(jobs[0]._state.db).filter(
        job_id__in=[job.pk for job in jobs], attempt=F("job__attempt"), reserved_ms__isnull=False
    )
    return {event.job_id: event.late_ms for event in events.only("job_id", "reserved_ms", "due_ms")}
