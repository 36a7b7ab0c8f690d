"""QuerySets and functions that read jobs, events and topics. The statements that change jobs are in db/transitions/.

The functions import the models when they are called, so that the modules that use them can be imported before
the app registry is ready.
"""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, Self

from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import connections, models, router

from .states import STORED_LIVE, State
from .validators import prefix_end

if TYPE_CHECKING:
    from .models import Job


def find_job(using: str, job_id: int) -> "Job | None":
    """Return the job with this id, or None if there is none."""
    from .models import Job

    return Job.objects.using(using).filter(pk=job_id).first()


def get_job(using: str, job_id: int) -> "Job":
    """Return the job with this id. Raises Job.DoesNotExist."""
    from .models import Job

    return Job.objects.using(using).get(pk=job_id)


def get_jobs(using: str, job_ids: Collection[int]) -> "dict[int, Job]":
    """Return the jobs with these ids as {id: job}, without those that do not exist."""
    from .models import Job

    return Job.objects.using(using).in_bulk(list(job_ids)) if job_ids else {}


def has_topic_row(using: str, topic: str) -> bool:
    from .models import Topic

    return Topic.objects.using(using).filter(name=topic).exists()


def find_subject(using: str, label: str | None, pk: str | None) -> Any:
    """Return the subject of a job of the database `using`, read by its base manager.

    Return None if there is no subject, or if its row or its model no longer exists. The row is read from the job's
    database if the model's table is there, otherwise from the router's database for writes.
    """
    if label is None or pk is None:
        return None
    try:
        model = apps.get_model(label)
        alias = using if router.allow_migrate_model(using, model) else router.db_for_write(model)
        return model._base_manager.using(alias).filter(pk=pk).first()
    except (LookupError, ValueError, ValidationError):  # the model is gone, or its primary key has another type now
        return None


def starts_with(using: str, field: str, prefix: str) -> dict[str, str]:
    """Return arguments of filter() for the rows whose field, a key, starts with `prefix`, case-sensitive."""
    if connections[using].vendor == "sqlite":  # its LIKE ignores case and cannot use the index; a range can
        return {f"{field}__gte": prefix, f"{field}__lt": prefix_end(prefix)}
    return {f"{field}__startswith": prefix}


# Columns of Job that lists of jobs do not read.
LARGE_COLUMNS = ("body", "again_body", "error")


class JobQuerySet(models.QuerySet):
    if TYPE_CHECKING:  # so that type checkers without Django's stubs know what it contains

        def __iter__(self) -> Iterator["Job"]: ...  # type: ignore[override]

    def live(self) -> "JobQuerySet":
        return self.filter(ended_at__isnull=True)

    def in_state(self, state: State, now: datetime) -> "JobQuerySet":
        """Return the jobs that are in `state` at `now` (aware). A stored delayed job is ready once it is due."""
        if state is State.READY:
            return self.live().filter(state=State.DELAYED, due_at__lte=now)
        if state is State.DELAYED:
            return self.live().filter(state=State.DELAYED, due_at__gt=now)
        if state in STORED_LIVE:
            return self.live().filter(state=state)
        if state is State.DEAD:
            return self.filter(died_at__isnull=False)
        return self.filter(state=state)

    def overdue(self, now: datetime) -> "JobQuerySet":
        return self.live().filter(due_at__lte=now)

    def key_starts(self, prefix: str, *, topics: list[str] | None = None) -> "JobQuerySet":
        """Return live and ended jobs whose key starts with `prefix`.

        topics   the topics to search; None: all topics of the Topic table. The index starts with the topic, so a
                 query without topics would read all rows
        """
        if topics is None:
            from .models import Topic  # here, because the models import this module

            topics = list(Topic.objects.using(self.db).values_list("name", flat=True))
        return self.filter(topic__in=topics, **starts_with(self.db, "key", prefix))


class EventQuerySet(models.QuerySet):
    def newest_of(self, job_id: int) -> Self:
        """Return the events of a job, newest first."""
        # Not ordered by the bare id: PostgreSQL would scan the primary key backwards through the events of all jobs.
        return self.filter(job_id=job_id).order_by((models.F("id") + 0).desc())

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only.")

    def delete(self) -> NoReturn:
        raise TypeError("JobEvent is append-only: it is deleted only with its job.")
