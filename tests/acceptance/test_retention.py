"""A worker whose processes are busy deletes old jobs all the same."""

from datetime import timedelta

from celery import Celery
from django.utils import timezone

from delaytasks import schedule
from delaytasks.models import Job
from delaytasks.states import State

from ..support.installation import World

TOPIC = "late-finisher"  # waits until the file "resume" exists
OLD_JOBS = 8_000  # with their pauses, the retention needs several seconds for them
ROWS = 1_000  # several transactions


def old_jobs_left() -> int:
    return Job.objects.filter(topic="old").count()


def test_the_retention_goes_on_while_each_process_of_the_pool_runs_a_job(world: World) -> None:
    ended = timezone.now() - timedelta(days=40)
    rows = (
        Job(
            topic="old", key=str(number), state=State.FINISHED, due_at=ended, created_at=ended, ended_at=ended,
            attempt=1, ttr_ms=1_000,
        )
        for number in range(OLD_JOBS)
    )  # fmt: skip
    Job.objects.bulk_create(rows, batch_size=2_000)
    world.env["RETENTION_DAYS"] = "30"
    world.start_worker(concurrency=1)
    world.await_workers()
    with Celery(broker=world.redis.url()) as celery:
        celery.send_task("delaytasks.sweep", ignore_result=True)
    world.until(lambda: old_jobs_left() < OLD_JOBS, seconds=15, what="the sweep to delete jobs")
    schedule(TOPIC, "a", delay=0, ttr=3600)
    world.until(lambda: world.mark(TOPIC, "a", 1), seconds=15, what="the handler to begin")
    left = old_jobs_left()
    assert left > ROWS, "the retention was quicker than the handler: use more jobs"
    world.until(lambda: old_jobs_left() <= left - ROWS, seconds=15, what="the retention to go on beside the handler")
    assert world.mark(TOPIC, "a", 2) is None
    assert Job.objects.get(topic=TOPIC).state == State.RESERVED
