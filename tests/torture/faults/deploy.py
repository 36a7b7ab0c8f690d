"""Deploys under load: old and new code side by side, missing handlers and old bodies."""

import time

from django.db import connection
from django.db.models import Q, QuerySet

from delaytasks import retry_dead
from delaytasks.models import Job, JobEvent
from delaytasks.states import Outcome, State
from tests.support.servers import wait_until

from ..constants import BODY, BODY_ATTEMPTS, LEAVING, TTR_SECONDS
from ..deploys import NEW_COUNTER, deploy, new_code, promise
from ..environment import Arena
from ..postgresql import JOBS
from . import fault

TOGETHER_SECONDS = 5
ENDS_SECONDS = 40
MANY = 20


@fault("old and new code run at once", uses="worker", arena="deploys")
def side_by_side(arena: Arena) -> None:
    """The new code has changed scripts and a new column, which is added while everything runs."""
    add_column()
    try:
        deploy(arena, "worker2", **new_code(arena))
        arena.hold(TOGETHER_SECONDS)
        assert arena.stats()["counters"].get(NEW_COUNTER), "the new code has moved no job"
    finally:
        deploy(arena, "worker2")


@fault("all workers are replaced by new code, one by one", uses="worker", arena="deploys", quick=True)
def rolling(arena: Arena) -> None:
    """And back to the old code. No attempt is wasted: workers finish running jobs and release reserved ones."""
    add_column()
    last = JobEvent.objects.order_by("-id").values_list("id", flat=True).first() or 0
    try:
        deploy(arena, **new_code(arena))
    finally:
        deploy(arena)
    arena.hold(TTR_SECONDS + 2)
    assert_nothing_wasted(JobEvent.objects.filter(~Q(job__topic="torture.http"), id__gt=last))


@fault("a topic's handler is not there any more", uses="worker", arena="deploys")
def without_handler(arena: Arena) -> None:
    """Its jobs stay ready, the stats report it, and they run when the handler is back."""
    keys = names("leaving")
    jobs = Job.objects.filter(topic=LEAVING, key__in=keys)
    arena.env["TORTURE_WITHOUT"] = LEAVING
    try:
        deploy(arena)
        promise(arena, LEAVING, keys)
        wait_until(lambda: says_unhandled(arena), seconds=ENDS_SECONDS, what="the stats to name the topic")
        assert jobs.filter(state=State.DELAYED, attempt=0).count() == MANY, list(jobs.values_list("state", "attempt"))
    finally:
        del arena.env["TORTURE_WITHOUT"]
        deploy(arena)
    await_state(jobs, State.FINISHED)


@fault("bodies are of an older version of the handler", uses="worker", arena="deploys")
def old_bodies(arena: Arena) -> None:
    """Old bodies fail until dead, with a traceback; new ones run at once. Then old ones are retried successfully."""
    old, new = names("old"), names("new")
    olds, news = (Job.objects.filter(topic=BODY, key__in=keys) for keys in (old, new))
    arena.env["TORTURE_BODY"] = "new"
    try:
        deploy(arena)
        promise(arena, BODY, old, {"order": 7})
        promise(arena, BODY, new, {"order_id": 7})
        await_state(news, State.FINISHED)
        await_state(olds, State.DEAD)
        assert_tracebacks(olds)
    finally:
        del arena.env["TORTURE_BODY"]
        deploy(arena)
    assert not news.exclude(failures=0).exists()
    for key in old:
        retry_dead(BODY, key)
    await_state(olds, State.FINISHED)


def add_column() -> None:
    """Run the SQL of an additive migration."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {JOBS} LIMIT 0")
        if "extra" not in {column[0] for column in cursor.description}:
            cursor.execute(f"ALTER TABLE {JOBS} ADD COLUMN extra integer NULL")


def names(kind: str) -> list[str]:
    return [f"{kind}-{time.monotonic_ns()}-{i}" for i in range(MANY)]


def await_state(jobs: QuerySet[Job], state: State) -> None:
    def all_are() -> bool:
        return jobs.filter(state=state).count() == MANY

    wait_until(all_are, seconds=ENDS_SECONDS, what=lambda: f"{state!r}: {list(jobs.values_list('state', 'attempt'))}")


def says_unhandled(arena: Arena) -> bool:
    stats = arena.stats()
    topic = stats["topics"][LEAVING]
    return topic["ready"] == MANY and not topic["handled"] and stats["counters"].get("unhandled", 0) >= MANY


def assert_tracebacks(jobs: QuerySet[Job]) -> None:
    for job in jobs:
        failed = JobEvent.objects.filter(job=job).exclude(error="")  # it may have been released in between
        traces = list(failed.order_by("id").values_list("outcome", "error"))
        assert [outcome for outcome, _ in traces] == [Outcome.FAILED] * (BODY_ATTEMPTS - 1) + [Outcome.DEAD], traces
        assert all("Traceback" in trace and "KeyError: 'order_id'" in trace for _, trace in traces), traces
        assert job.error == "KeyError: 'order_id'", job.error


def assert_nothing_wasted(events: QuerySet[JobEvent]) -> None:
    # On SQLite an attempt may wait for the write lock until its TTR is over.
    wasted = events.filter(outcome=Outcome.EXPIRED).exclude(error__contains="database is locked")
    expired = list(wasted.values_list("job_id", "attempt", "error"))
    assert not expired, f"attempts expired: {expired}"
    released = set(events.filter(outcome=Outcome.RELEASED).values_list("job_id", flat=True))
    for job in Job.objects.filter(pk__in=released):
        failed = JobEvent.objects.filter(job=job, outcome=Outcome.FAILED).count()
        assert job.failures == failed, f"{job} was released, but has {job.failures - failed} failures too many"
