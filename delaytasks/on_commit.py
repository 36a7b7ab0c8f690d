"""What the rest hears of a change, once it is committed: the mirror, and who listens to the signals."""

from collections.abc import Iterable

from django.db import transaction
from django.dispatch import Signal

from . import conf, engine
from .models import Job
from .places import GONE, Entry, Settlement

OVERLAP_MS = 300_000  # what is told reaches this far beyond the horizon; the feeder reads as far back below its mark


def enter(using: str, entries: Iterable[Entry], *, mark: bool) -> None:
    """Add to the mirror; jobs beyond the horizon are rows only, the feeder brings them in. Judged at the commit."""

    def tell() -> None:
        until_ms = engine.now_ms(using) + conf.get().horizon_ms + OVERLAP_MS
        engine.tell(using).add((entry for entry in entries if entry.at_ms <= until_ms), mark=mark)

    transaction.on_commit(tell, using=using, robust=True)


def remove(using: str, *seen: Entry) -> None:
    """Remove the entries of jobs that have ended, where they still are as they were seen."""
    gone = [Settlement(entry.id, entry.topic, entry.at_ms, GONE) for entry in seen]
    transaction.on_commit(lambda: engine.tell(using).settle(gone), using=using, robust=True)


def send(using: str, signal: Signal, job_id: int) -> None:
    """Send the signal with the job as it is then. Nothing is asked while nobody listens."""

    def tell() -> None:
        job = Job.objects.using(using).filter(pk=job_id).first()
        if job is not None:
            signal.send_robust(sender=job.topic, job=job)

    if signal.receivers:
        transaction.on_commit(tell, using=using, robust=True)
