"""Handlers that write one row for each job that they finish."""

import os
from pathlib import Path

from delaytasks import Retry, Snooze, handler

from .models import Effect


def record(job):
    Effect.objects.create(
        job_id=job.id, topic=job.topic, key=job.key, attempt=job.attempt, due_at=job.due_at,
        release=os.environ["PARCELS_RELEASE"],
    )  # fmt: skip


@handler("parcel.note")
def note(job):
    record(job)


@handler("parcel.share", one_commit=True)
def share(job):
    record(job)


@handler("parcel.batch", batch=20)
def batch(jobs):
    for job in jobs:
        record(job)


@handler("parcel.by-old", queue="from-new")
def run_by_the_old_worker(job):
    """Only the old release's worker consumes this queue."""
    record(job)


@handler("parcel.by-new", queue="from-old")
def run_by_the_new_worker(job):
    record(job)


@handler("parcel.snooze")
def snooze(job):
    if job.attempt == 1:
        return Snooze(0.3)
    record(job)


@handler("parcel.retry")
def retry(job):
    record(job)  # rolled back in the first attempt
    if job.attempt == 1:
        raise Retry("the carrier is closed", delay=0.3)


@handler("parcel.refuse", max_attempts=1)
def refuse(job):
    """The job is dead after the first attempt and finishes after a retry."""
    record(job)
    if job.attempt == 1:
        raise ValueError("there is no such address")


@handler("parcel.wait", atomic=False, ttr=600)
def wait(job):
    """Wait until the named pipe with the job's key is opened for writing."""
    with (Path(os.environ["PARCELS_DIRECTORY"]) / job.key).open("rb"):
        pass
    with job.finishing():
        record(job)
