"""Series: the jobs that one call of schedule() with period=, cron= or rrule= makes again and again.

A series is a row of Schedule whose series_key is the key of the call. Its jobs have the keys "<key>#<wall time>".
recurrence/series.py starts a series; here it is cancelled.
"""

import hashlib
import re
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models.functions import Substr

from ..db.retries import in_transaction, retry_conflicts
from ..outcomes import Result

if TYPE_CHECKING:
    from ..models import Job, Schedule
    from ..querysets import JobQuerySet
    from .inputs import Delay

SEPARATOR = "#"
LABEL = r"(?:\d{4}-\d\d-\d\dT[\d:.]+(?:/2)?|now:\d+)"  # in a job's key, after the series' key or the schedule's name
FIRING = re.compile(rf"(?:(?P<name>[A-Za-z0-9._-]{{1,100}})@|(?P<series>.{{1,228}})#)(?P<label>{LABEL})", re.ASCII)


class NewSeries(NamedTuple):
    """The arguments of schedule() for a series; key and subject are checked."""

    topic: str
    key: str
    subject_label: str
    subject_pk: str
    delay: "Delay | None"
    due_at: datetime | None
    period: "Delay | None"
    repeat: int | None
    cron: str
    rrule: str
    tz: str | ZoneInfo
    body: Any
    ttr: "Delay | None"
    on_conflict: str
    by: str


def is_firing(key: str) -> bool:
    """Return whether this may be the key of a job that a schedule or a series has made."""
    return FIRING.fullmatch(key) is not None


Starter = Callable[[str, NewSeries], "Job"]
_starter: Starter | None = None


def set_starter(starter: Starter) -> None:
    """Let `starter(using, new)` start series; it returns the first job. Called by AppConfig.ready()."""
    global _starter
    _starter = starter


def start(using: str, new: NewSeries) -> "Job":
    assert _starter is not None, "series are started after the apps are loaded"
    return _starter(using, new)


def name_of(topic: str, key: str) -> str:
    """Return the name of the Schedule row of a series."""
    return f"series.{hashlib.sha256(f'{topic} {key}'.encode()).hexdigest()[:40]}"


def prefix_of(key: str) -> str:
    """Return the prefix of the keys of a series' jobs."""
    return f"{key}{SEPARATOR}"


def cancel(using: str, topic: str, key: str, *, by: str, reason: str) -> Result:
    """End a series and cancel its jobs that are not running, in one transaction.

    Returns RUNNING if one of its jobs is running: that job continues, and no further job is made.
    """
    if not _rows(using).filter(name=name_of(topic, key)).exists():  # the usual case, which needs no transaction
        return Result.NOT_FOUND
    return in_transaction(using, lambda: _cancel(using, topic, key, by, reason))


def _cancel(using: str, topic: str, key: str, by: str, reason: str) -> Result:
    from .cancellation import cancel_ids

    row = _rows(using).filter(name=name_of(topic, key)).select_for_update().first()
    if row is None:
        return Result.NOT_FOUND
    ids = sorted(job_id for _due_at, job_id in live_jobs(using, topic, key))
    counts = cancel_ids(using, ids, by=by, reason=reason)
    if row.ended and not (counts.cancelled or counts.running):
        return Result.ALREADY_FINISHED
    _rows(using).filter(pk=row.pk).delete()
    return Result.RUNNING if counts.running else Result.CANCELLED


def live_jobs(using: str, topic: str, key: str) -> list[tuple[datetime, int]]:
    """Return (due time, id) of the live jobs of a series, in this order."""
    return sorted(firings(using, topic, prefix_of(key)).live().values_list("due_at", "id"))


def firings(using: str, topic: str, prefix: str) -> "JobQuerySet":
    """Return the live and ended jobs that a schedule or series has made, by the prefix of their keys.

    Keys of other jobs may begin in the same way, because any key may contain the prefix.
    """
    from ..models import Job

    jobs = Job.objects.using(using).key_starts(prefix, topics=[topic])
    return jobs.alias(label=Substr("key", len(prefix) + 1)).filter(label__regex=f"^{LABEL}$")


def delete_matching(using: str, **conditions: Any) -> None:
    """Delete the rows of all series that match. Their jobs stay, and no more are made."""
    retry_conflicts(lambda: _rows(using).filter(**conditions).delete(), using)


def _rows(using: str) -> Any:
    from ..models import Schedule

    return Schedule.objects.using(using).filter(series_key__isnull=False)


def firing_prefix(row: "Schedule") -> str:
    """Return the prefix of the keys of a schedule's jobs: "report.daily@", or "order:1042#" for a series."""
    return f"{row.name}@" if row.series_key is None else prefix_of(row.series_key)


def former_prefixes(row: "Schedule") -> list[str]:
    """Return the prefixes of the keys of jobs that a schedule made under its former names."""
    return [f"{name}@" for name in row.former_names.split()]
