"""Start a series of jobs, for schedule() with period=, cron= or rrule=. jobs/series.py cancels series."""

import json
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from .. import clock, databases
from ..db import schedules as sql
from ..db import transitions
from ..db.retries import in_transaction
from ..db.transitions import Event
from ..exceptions import BadDelay, BadKey, BadSchedule, KeyIsLive
from ..jobs import series
from ..jobs.inputs import check_known, to_body, to_when
from ..jobs.series import NewSeries
from ..models import Schedule
from ..querysets import get_job
from ..states import Outcome
from . import maker, schedules
from .definition import Definition, times_of_row

if TYPE_CHECKING:
    from ..models import Job

MAX_KEY = 228  # characters; a job's key is this key and a wall time, at most 255 together
MILLISECOND = timedelta(milliseconds=1)
KEPT = timedelta(days=1)  # how long the row of an ended series is kept: its last jobs may still wait for each other
REST_SECONDS = 600.0
_passed: dict[str, float] = {}  # alias -> monotonic time of this process's last pass


def start(using: str, new: NewSeries) -> "Job":
    """Start a series and make its first job; return that job. Raises the exceptions of schedule()."""
    if len(new.key) > MAX_KEY:
        raise BadKey(
            f"key {new.key[:40]!r}... has {len(new.key)} characters; the key of a series has at most {MAX_KEY}."
        )
    now = databases.now(using)
    definition = _definition(new, now)
    check_known(using, new.topic)
    return in_transaction(using, lambda: _start(using, new, definition, now))


def _definition(new: NewSeries, now: datetime) -> Definition:
    _check(new)
    start = now if new.due_at is None else clock.from_ms(to_when(None, new.due_at)[0] or 0)
    times = bool(new.cron or new.rrule)
    return Definition(
        name=series.name_of(new.topic, new.key), topic=new.topic,
        tz=new.tz.key if isinstance(new.tz, ZoneInfo) else new.tz, cron=new.cron, rrule=new.rrule, period=new.period,
        delay=new.delay if new.delay is not None or times else 0, repeat=new.repeat,
        start=start if new.rrule else max(start, now), missed="last" if times or new.repeat is None else "all",
        running="queue", body=json.loads(to_body(new.body)), ttr=new.ttr,
    )  # fmt: skip


def _check(new: NewSeries) -> None:
    """Raise BadSchedule or BadDelay for combinations that are ambiguous for a series."""
    if new.period is None and new.repeat != 0:
        raise BadSchedule(f"repeat is {new.repeat!r} without period: give the time between two runs as period.")
    if new.period is not None and new.repeat == 0:
        raise BadSchedule("period is given without repeat: repeat=3 makes four runs, and repeat=None runs without end.")
    if new.delay is not None and new.due_at is not None:
        raise BadDelay("Give delay or due_at, not both.")
    if new.cron and new.due_at is not None:
        raise BadSchedule("Give due_at or cron, not both: with cron, a series begins at each of its times.")
    if new.delay is not None:
        to_when(new.delay, None)


def _start(using: str, new: NewSeries, definition: Definition, now: datetime) -> "Job":
    schedules.lock_name(using, definition.name)
    kept = _resolve_conflict(using, new)
    if kept is not None:
        return kept
    row = schedules.new_row(definition, source="call", start=definition.start or now, made_until=now - MILLISECOND)
    row.series_key = new.key
    row.subject_label, row.subject_pk = new.subject_label or None, new.subject_pk or None
    schedules.insert(using, row)
    job = _next_job(using, row)
    if job is None:
        raise BadSchedule(f"The series {str(row)!r} would never run: all of its jobs have run already.")
    job.is_new = True
    if new.by:
        due_ms, made_ms = clock.to_ms(job.due_at), clock.to_ms(job.created_at)
        transitions.record(
            using, [Event(job.pk, Outcome.SCHEDULED, 0, due_ms, made_ms, None, due_ms, "", new.by)]
        )  # fmt: skip
    return job


def _resolve_conflict(using: str, new: NewSeries) -> "Job | None":
    """Return the job to keep. Return None if the series can start, because its key is no longer in use."""
    plain = transitions.find_live(using, [(new.topic, new.key)]).get((new.topic, new.key))
    if plain is not None:
        if new.on_conflict == "keep":
            return get_job(using, plain.id)
        raise KeyIsLive(
            f"{new.topic} {new.key!r} is live already, as a single job, {plain.id}. Cancel it, or use another key."
        )
    name = series.name_of(new.topic, new.key)
    if new.on_conflict != "replace":
        row = Schedule.objects.using(using).select_for_update().filter(name=name).first()  # no concurrent cancel()
        job = _first_job(using, new.topic, new.key) if row is None or row.ended else _next_job(using, row)
        if job is not None and new.on_conflict == "keep":
            return job
        if job is not None:
            raise KeyIsLive(
                f"{new.topic} {new.key!r} is a series already; its next job is due at {job.due_at.isoformat()}. "
                "Use on_conflict='keep' or 'replace', or another key."
            )
    series.cancel(using, new.topic, new.key, by=new.by, reason="")
    series.delete_matching(using, name=name)  # a series that had ended before
    return None


def _next_job(using: str, row: "Schedule") -> "Job | None":
    """Return the live job of a series that is due first; without one, make the next job. Return None if there is none.

    A series has no live job while it is paused, or after a person ran the next firing early. This does not advance the
    series: when it reaches the job's time, it finds the job.
    """
    job = _first_job(using, row.topic, row.series_key or "")
    if job is not None:
        return job
    times, after = times_of_row(row), max(row.made_until, databases.now(using)) if row.paused else row.made_until
    while job is None and (firing := times.next_after(after)) is not None:
        maker.insert(using, [maker.new_firing(row, firing)])  # no job if it ran already
        job, after = _first_job(using, row.topic, row.series_key or ""), firing.due
    return job


def _first_job(using: str, topic: str, key: str) -> "Job | None":
    """Return the live job of a series that is due first."""
    jobs = series.live_jobs(using, topic, key)
    return get_job(using, jobs[0][1]) if jobs else None


def delete_ended_throttled(using: str) -> None:
    """Delete the rows of series that ended a day ago and of deleted schedules, at most every ten minutes."""
    if time.monotonic() - _passed.get(using, -REST_SECONDS) >= REST_SECONDS:
        _passed[using] = time.monotonic()
        delete_ended(using)
        sql.delete_orphaned_runs(using)


def delete_ended(using: str) -> None:
    """Delete the rows of series whose last job was due a day ago."""
    before = databases.now(using) - KEPT
    series.delete_matching(using, ended=True, problem="", made_until__lt=before)
