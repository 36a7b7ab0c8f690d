"""Handlers: `quick` does what it is told; the others hang, overrun their TTR or do not listen."""

import os
import time
from pathlib import Path

from django.conf import settings

from delaytasks import clock, dialect, handler

from .models import Effect
from .tasks import backend

FOREVER_SECONDS = 600


def effects_of(*jobs):
    now_ms = int(dialect.now_ms("default"))
    Effect.objects.bulk_create(
        Effect(
            job_id=job.id, topic=job.topic, key=job.key, attempt=job.attempt,
            due_ms=clock.to_ms(job.due_at), at_ms=now_ms, pid=os.getpid(),
        )
        for job in jobs
    )  # fmt: skip


def mark(job):
    """A file that says which process is at which attempt: outside the transaction, so it stays when that is gone."""
    found = Path(settings.VAR) / f"{job.topic}-{job.key}-{job.attempt}"
    half = found.with_suffix(".half")
    half.write_text(str(os.getpid()))
    half.rename(found)


@handler("quick")
def quick(job):
    effects_of(job)


@handler("backend")
def says_its_backend(job):
    """The pid of its effect is the server's process behind the connection."""
    effects_of(job)
    Effect.objects.filter(job_id=job.id).update(pid=backend())


@handler("steady")
def steady(job):
    """Takes its time, as work does."""
    effects_of(job)
    mark(job)
    time.sleep(0.05)


@handler("batched", batch=50)
def batched(jobs):
    effects_of(*jobs)
    mark(jobs[0])
    time.sleep(0.2)


@handler("hangs-once")
def hangs_once(job):
    effects_of(job)
    mark(job)
    if job.attempt == 1:
        time.sleep(FOREVER_SECONDS)


@handler("overruns-once")
def overruns_once(job):
    effects_of(job)
    mark(job)
    if job.attempt == 1:
        try:
            time.sleep(FOREVER_SECONDS)
        except Exception:  # as careless handlers have; the interrupt is not an Exception
            pass


def do_not_listen():
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:  # what no handler should do
            pass


@handler("deaf-once")
def deaf_once(job):
    effects_of(job)
    mark(job)
    if job.attempt == 1:
        do_not_listen()


@handler("deaf", max_attempts=2)
def deaf(job):
    effects_of(job)
    mark(job)
    do_not_listen()


@handler("late-finisher", atomic=False)
def late_finisher(job):
    """The first attempt comes back when the test says so, and tries to finish what is no longer its own."""
    mark(job)
    while job.attempt == 1 and not (Path(settings.VAR) / "come-back").exists():
        time.sleep(0.02)
    with job.finishing():
        effects_of(job)
