"""A job's whole story, wherever it lives now: in the tables or, when its row is gone, in the archive."""

import os
from datetime import UTC
from typing import NamedTuple
from urllib.parse import urlsplit

from django.db.models import QuerySet

from . import conf
from .exceptions import ArchiveUnreadable
from .models import Job, JobEvent


class Story(NamedTuple):
    """job       one from the archive is to look at, never to save
    archived  its events, the oldest first; None: they stand in the tables, as it does
    """

    job: Job
    archived: list[JobEvent] | None = None

    @property
    def events(self) -> list[JobEvent]:
        """The oldest first."""
        if self.archived is not None:
            return self.archived
        return list(JobEvent.objects.using(self.job._state.db).filter(job_id=self.job.pk).order_by("id"))


def find(
    jobs: QuerySet[Job], job_id: int | None = None, topic: str = "", key: str = "", *, lake: str | None = None
) -> Story | None:
    """The job of that number; else the one of that topic and key which is live or, when none is, ended last.

    jobs   those of the tables that whoever asks may see. The archive knows nobody's rights: what is found there may be
           of a topic that is hidden
    lake   if not the settings'

    None if there never was one. Raises ArchiveUnreadable if the archive would have to be asked and cannot be.
    """
    standing = _standing(jobs, job_id, topic, key)
    if standing and (job_id is not None or standing.ended_at is None):
        return Story(standing)
    since = str(standing.ended_at.astimezone(UTC).date()) if standing and standing.ended_at else ""
    archived = _archived(folder(jobs.db, lake), jobs.db, job_id, topic, key, since)
    if standing and not (archived and _ended(archived.job) > _ended(standing)):
        return Story(standing)
    return archived


def folder(using: str, lake: str | None = None) -> str | None:
    """Where this database's files of the data pipeline are, in the given lake or the settings'; None: nowhere."""
    lake = lake or conf.get().lake
    return f"{lake.rstrip('/')}/{using}" if lake else None


def _standing(jobs: QuerySet[Job], job_id: int | None, topic: str, key: str) -> Job | None:
    if job_id is not None:
        return jobs.filter(pk=job_id).first()
    named = jobs.filter(topic=topic, key=key)
    return named.filter(ended_at__isnull=True).first() or named.order_by("-ended_at", "-id").first()


def _ended(job: Job) -> tuple[object, int]:
    return job.ended_at, job.pk


def _archived(root: str | None, using: str, job_id: int | None, topic: str, key: str, since: str) -> Story | None:
    if root is None:
        return None
    try:
        from .pipeline import lake, story  # the extra may not be installed
    except ModuleNotFoundError as error:
        if not urlsplit(root).scheme and not os.path.isdir(f"{root}/archive"):
            return None  # nothing was ever archived
        raise ArchiveUnreadable(
            f'The archive in {root} cannot be read, as {error.name} is missing: pip install "delaytasks[pipeline]".'
        ) from error
    try:
        where = lake.Lake(root)
        found = story.by_key(where, topic, key, since) if job_id is None else story.by_id(where, job_id)
    except (lake.LakeError, OSError, ValueError) as error:
        raise ArchiveUnreadable(f"The archive cannot be read: {error}") from error
    if found is None:
        return None
    job = Job(**found.job)
    job._state.db = using
    return Story(job, [JobEvent(**event) for event in found.events])
