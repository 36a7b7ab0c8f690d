"""Make next runs live that workers of an older version ignored when they ended the jobs."""

from ..db import transitions
from ..db.retries import in_transaction
from ..jobs import on_commit
from ..jobs.again import schedule_next
from ..mirror.base import Entry
from .feed import PAGE


def settle_left(using: str) -> int:
    """Make the next runs of up to PAGE jobs live that are no longer running. Return the number of these jobs.

    A job that waits takes over the terms of its next run; for an ended job a new one is scheduled. A next run is
    dropped, and not counted, if the job was cancelled meanwhile, or if its key has a newer job.
    """
    return in_transaction(using, lambda: _settle_left(using))


def _settle_left(using: str) -> int:
    waiting, ended = transitions.settle_ignored_next_runs(using, PAGE)
    if waiting:
        entries = [Entry(job.id, job.topic, job.due_ms, job.priority) for job in waiting]
        on_commit.add_to_mirror(using, entries, mark=True)
    schedule_next(using, ended)
    return len(waiting) + len(ended)
