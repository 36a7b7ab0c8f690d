"""Handlers: `quick` is well behaved; others hang, exceed their TTR or ignore the interrupt."""

import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

from django.conf import settings

from delaytasks import clock, handler, poll
from delaytasks.db import dialects
from delaytasks.models import Job
from delaytasks.states import State

from .models import Effect
from .tasks import backend

FOREVER_SECONDS = 600


def store_effects(*jobs):
    now_ms = int(dialects.now_ms("default"))
    Effect.objects.bulk_create(
        Effect(
            job_id=job.id, topic=job.topic, key=job.key, attempt=job.attempt,
            due_ms=clock.to_ms(job.due_at), at_ms=now_ms, pid=os.getpid(),
        )
        for job in jobs
    )  # fmt: skip


def mark(job):
    """Write a file with the pid of this attempt's process. Unlike a row, it survives a rollback."""
    path = Path(settings.VAR) / f"{job.topic}-{job.key}-{job.attempt}"
    half = path.with_suffix(".half")
    half.write_text(str(os.getpid()))
    half.rename(path)


@handler("quick")
def quick(job):
    store_effects(job)


@handler("backend")
def store_backend(job):
    """Store an effect whose pid is the database server's process."""
    store_effects(job)
    Effect.objects.filter(job_id=job.id).update(pid=backend())


@handler("steady")
def steady(job):
    """Take some time."""
    store_effects(job)
    mark(job)
    time.sleep(0.05)


@handler("batched", batch=50)
def batched(jobs):
    store_effects(*jobs)
    mark(jobs[0])
    time.sleep(0.2)


@handler("hangs-once")
def hangs_once(job):
    store_effects(job)
    mark(job)
    if job.attempt == 1:
        time.sleep(FOREVER_SECONDS)


@handler("overruns-once")
def overruns_once(job):
    store_effects(job)
    mark(job)
    if job.attempt == 1:
        try:
            time.sleep(FOREVER_SECONDS)
        except Exception:  # the interrupt is not an Exception
            pass


def ignore_interrupts():
    while True:
        try:
            time.sleep(FOREVER_SECONDS)
        except BaseException:  # no handler should do this
            pass


@handler("deaf-once")
def deaf_once(job):
    store_effects(job)
    mark(job)
    if job.attempt == 1:
        ignore_interrupts()


@handler("deaf", max_attempts=2)
def deaf(job):
    store_effects(job)
    mark(job)
    ignore_interrupts()


@handler("neighbours", max_attempts=2)
def neighbours(job):
    """The job `killer` kills its process; `slow` waits for the test."""
    if job.key == "killer":
        mark(job)
        os.kill(os.getpid(), signal.SIGKILL)
    while job.key == "slow" and not (Path(settings.VAR) / "resume").exists():
        mark(job)
        time.sleep(0.02)
    store_effects(job)


def created(path, group):
    """Write the keys of the group to a new file. Return False if another process has made the file."""
    try:
        with path.open("x") as file:
            json.dump(list(group.values_list("key", flat=True)), file)
    except FileExistsError:
        return False
    return True


@handler("groupmates", one_commit=True)
def groupmates(job):
    """The first job of the first group of several waits for the test, before the others of its group are called."""
    group = Job.objects.filter(topic=job.topic, worker=job.worker, state=State.RESERVED).order_by("id")
    if group.count() > 1 and group[0].pk == job.id and created(Path(settings.VAR) / "groupmates", group):
        while not (Path(settings.VAR) / "resume").exists():
            time.sleep(0.02)
    store_effects(job)


@handler("late-finisher", atomic=False)
def late_finisher(job):
    """The first attempt waits for the test, then tries to finish a job that it no longer holds."""
    mark(job)
    while job.attempt == 1 and not (Path(settings.VAR) / "resume").exists():
        time.sleep(0.02)
    with job.finishing():
        store_effects(job)


@poll("polled", every=["300ms", "500ms", "1h"], until=timedelta(days=1))
def polled(job):
    """The second attempt kills its process; the third poll settles the question."""
    store_effects(job)
    if job.attempt == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.polls == 2


def give_up(job):
    """Kill the process in the first of two attempts to give up."""
    store_effects(job)
    mark(job)
    if job.attempt == 2:
        os.kill(os.getpid(), signal.SIGKILL)


@poll("gives-up", every=["1h"], until="1s", on_give_up=give_up, atomic=False)
def never_settled(job):
    return False


@handler("takes-seconds", concurrency=8)
def takes_seconds(job):
    """Take as long as the test says."""
    resume = Path(settings.VAR) / "resume"
    while not resume.exists():
        time.sleep(0.05)


@handler("touches", ttr=2)
def touches(job):
    """Run for longer than the TTR, and touch the job all the time."""
    mark(job)
    resume = Path(settings.VAR) / "resume"
    while not resume.exists():
        time.sleep(0.05)
        job.touch()
    store_effects(job)
