"""Jobs whose rows are gone, from the archive, as the models have them; to look at, never to save."""

import logging
from typing import Any, NamedTuple

from . import conf
from .models import Job, JobEvent

logger = logging.getLogger("delaytasks")


class Story(NamedTuple):
    job: Job
    events: list[JobEvent]  # the oldest first


def folder(using: str, lake: str | None = None) -> str | None:
    """Where this database's files of the data pipeline are, in the given lake or the settings'; None: nowhere."""
    lake = lake or conf.get().lake
    return f"{lake.rstrip('/')}/{using}" if lake else None


def by_id(job_id: int, using: str) -> Story | None:
    """The whole story of a job that was archived; None if it was not, or where nothing is archived."""
    return _story(using, "by_id", job_id)


def by_key(topic: str, key: str, using: str) -> Story | None:
    """The same of the job that had this topic and key and ended last."""
    return _story(using, "by_key", topic, key)


def _story(using: str, how: str, *asked: Any) -> Story | None:
    root = folder(using)
    if root is None:
        return None
    try:
        from .pipeline import lake, story  # the extra may not be installed
    except ModuleNotFoundError as error:
        logger.warning("the archive cannot be read, as %s is missing: install delaytasks[pipeline]", error.name)
        return None
    try:
        found = getattr(story, how)(lake.Lake(root), *asked)
    except (lake.LakeError, OSError, ValueError) as error:  # what is wrong with a disk is no reason to show nothing
        logger.error("the archive cannot be read: %s", error)
        return None
    if found is None:
        return None
    job = Job(**found.job)
    job._state.db = using
    return Story(job, [JobEvent(**event) for event in found.events])
