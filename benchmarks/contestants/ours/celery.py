"""The Celery app of the measured project: `celery -A benchmarks.contestants.ours worker`."""

import os
import time

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")

from project.celery import app

__all__ = ["app"]


@app.task(name="bench.prune", ignore_result=True)
def prune(end: float) -> None:
    """Delete ended jobs in a thread of this process, as after a sweep, until `end` in seconds since 1970."""
    from delaytasks.maintenance import retention  # imported late: it needs the models

    retention.prune_in_thread("default", stopping=lambda: time.time() >= end)
