"""Find a job with its events: in the tables or, if its row was pruned, in the archive."""

import os
from datetime import UTC
from typing import NamedTuple

from django.db.models import QuerySet

from .. import conf
from ..exceptions import ArchiveUnreadable
from ..models import Job, JobEvent
from ..pipeline.addresses import local_path


class JobHistory(NamedTuple):
    """A job and its events.

    job        read-only if it comes from the archive: never save it
    archived   the job's events, oldest first, if it comes from the archive; None: job and events are in the tables
    """

    job: Job
    archived: list[JobEvent] | None = None

    @property
    def events(self) -> list[JobEvent]:
        """The job's events, oldest first."""
        if self.archived is not None:
            return self.archived
        return list(JobEvent.objects.using(self.job._state.db).filter(job_id=self.job.pk).order_by("id"))


def find(
    jobs: QuerySet[Job], job_id: int | None = None, topic: str = "", key: str = "", *, lake: str | None = None
) -> JobHistory | None:
    """Return the job with this id, or the live or last ended job of this topic and key; None if there is none.

    jobs   the jobs in the tables that the user may see. The archive is searched without regard to permissions, so
           a caller that serves a user has to check the topic of an archived job
    lake   the path or URI of the lake with the archive; None: the LAKE setting

    Raises ArchiveUnreadable if the archive is needed and cannot be read.
    """
    row = _find_row(jobs, job_id, topic, key)
    if row and (job_id is not None or row.ended_at is None):
        return JobHistory(row)
    since = str(row.ended_at.astimezone(UTC).date()) if row and row.ended_at else ""
    archived = _find_archived(lake_directory(jobs.db, lake), jobs.db, job_id, topic, key, since)
    if row and not (archived and _end_order(archived.job) > _end_order(row)):
        return JobHistory(row)
    return archived


def lake_directory(using: str, lake: str | None = None) -> str | None:
    """Return this database's directory in `lake` or in the LAKE setting; None if neither is set."""
    lake = lake or conf.get().lake
    return f"{lake.rstrip('/')}/{using}" if lake else None


def _find_row(jobs: QuerySet[Job], job_id: int | None, topic: str, key: str) -> Job | None:
    if job_id is not None:
        return jobs.filter(pk=job_id).first()
    same_key = jobs.filter(topic=topic, key=key)
    return same_key.filter(ended_at__isnull=True).first() or same_key.order_by("-ended_at", "-id").first()


def _end_order(job: Job) -> tuple[object, int]:
    return job.ended_at, job.pk


def _find_archived(
    root: str | None, using: str, job_id: int | None, topic: str, key: str, since: str
) -> JobHistory | None:
    if root is None:
        return None
    try:
        from ..pipeline.tables import archived_history, lake  # needs the extra delaytasks[pipeline]
    except ModuleNotFoundError as error:
        path = local_path(root)
        if path is not None and not os.path.isdir(f"{path}/archive"):
            return None  # nothing has been archived
        raise ArchiveUnreadable(
            f"The archive in {root} cannot be read: {error.name} is not installed. "
            'Run pip install "delaytasks[pipeline]".'
        ) from error
    try:
        source = lake.Lake(root)
        if job_id is None:
            found = archived_history.by_key(source, topic, key, since)
        else:
            found = archived_history.by_id(source, job_id)
    except (lake.LakeError, OSError, ValueError) as error:
        raise ArchiveUnreadable(f"The archive cannot be read: {error}") from error
    if found is None:
        return None
    job = Job(**found.job)
    job._state.db = using
    return JobHistory(job, [JobEvent(**event) for event in found.events])
