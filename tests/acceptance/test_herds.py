"""Many slow jobs at once begin at once, and a long handler that touches its job keeps it."""

from datetime import timedelta

import pytest
from django.db.models import F, Max

from delaytasks import schedule, schedule_many
from delaytasks.models import Job, Topic, Touch
from delaytasks.states import State

from ..support.installation import World

SLOTS = 8
BEGUN_WITHIN = timedelta(seconds=5)  # on an idle machine 0.3; one slot a second would need seven


@pytest.mark.only_on("postgresql")
def test_slow_jobs_that_are_due_together_begin_together_on_an_idle_pool(world: World) -> None:
    Topic.objects.update_or_create(name="takes-seconds", defaults={"concurrency": SLOTS})
    world.start_all(concurrency=SLOTS)
    schedule_many({"topic": "takes-seconds", "key": f"k{n}", "delay": 1, "ttr": 60} for n in range(SLOTS))

    world.until(lambda: world.ended(SLOTS, state=State.RESERVED), seconds=30, what="all jobs to run")
    late = Job.objects.aggregate(late=Max(F("reserved_at") - F("due_at")))["late"]
    (world.directory / "resume").touch()
    world.until(lambda: world.ended(SLOTS, state=State.FINISHED), seconds=30, what="the jobs to end")
    assert late < BEGUN_WITHIN


@pytest.mark.only_on("postgresql")
def test_a_handler_that_touches_its_job_in_its_transaction_keeps_it_beyond_its_ttr(world: World) -> None:
    world.start_all(concurrency=2)
    schedule("touches", key="a", delay=0)
    world.until(lambda: world.mark("touches", "a", 1), seconds=20, what="the handler to begin")
    row = Job.objects.get()
    world.until(
        lambda: Touch.objects.filter(lease_until__gt=row.lease_until + timedelta(seconds=3)).exists(),
        seconds=20, what="touches for longer than the TTR",
    )  # fmt: skip
    assert Job.objects.get().lease_until == row.lease_until, "the row is not written"
    (world.directory / "resume").touch()
    world.until(lambda: world.ended(1, state=State.FINISHED), seconds=20, what="the job to end")
    assert world.outcomes("a") == [("finished", 1)]
    assert len(world.effects("touches")) == 1
