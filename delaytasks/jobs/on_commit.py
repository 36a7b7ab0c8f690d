"""Side effects after a commit: update the mirror and send signals."""

from collections.abc import Collection, Iterable

from django.db import transaction
from django.dispatch import Signal

from .. import conf, databases, mirror, signals
from ..db.transitions import Cancelled, JobRow, StoredJob, produced_by
from ..mirror.base import GONE, Entry, Settlement
from ..querysets import find_job

# Jobs due up to this long after the horizon are added: feed() may have passed their due times before they committed.
OVERLAP_MS = 300_000


def stored(
    using: str, jobs: Collection[StoredJob | JobRow], signal: Signal = signals.job_scheduled, *, mark: bool = False
) -> None:
    """Add jobs to the mirror and send a signal for each, on commit.

    mark   as in add_to_mirror()
    """
    add_to_mirror(using, jobs, mark=mark)
    for job in jobs:
        send_signal(using, signal, job.id)


def add_to_mirror(using: str, jobs: Iterable[StoredJob | JobRow], *, mark: bool) -> None:
    """Add jobs to the mirror on commit, except those beyond the horizon, which the feeder adds later.

    mark   True for a change of a live job; see add.lua
    """
    entries = [Entry(job.id, job.topic, job.due_ms, job.priority) for job in jobs]

    def add() -> None:
        until_ms = databases.now_ms(using) + conf.get().horizon_ms + OVERLAP_MS
        mirror.writable(using).add((entry for entry in entries if entry.at_ms <= until_ms), mark=mark)

    if entries:
        transaction.on_commit(add, using=using, robust=True)


def cancelled(using: str, jobs: Collection[Cancelled]) -> None:
    """Send job_cancelled, and remove the jobs' entries in the mirror that have not moved meanwhile, on commit."""
    removals = [Settlement(job.id, job.topic, job.due_ms, GONE) for job in jobs]
    if removals:
        transaction.on_commit(lambda: mirror.writable(using).settle(removals), using=using, robust=True)
    for job in jobs:
        send_signal(using, signals.job_cancelled, job.id)


def send_signal(using: str, signal: Signal, job_id: int) -> None:
    """Send the signal on commit, with the job's row as read after the commit. Without receivers nothing is read."""

    def send_to_receivers() -> None:
        job = find_job(using, job_id)
        if job is not None:
            with produced_by(None):  # jobs that receivers schedule do not count towards the caller's limit
                signal.send_robust(sender=job.topic, job=job)

    if signal.receivers:
        transaction.on_commit(send_to_receivers, using=using, robust=True)
