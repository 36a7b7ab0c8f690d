"""Procrastinate on PostgreSQL: `defer` and `batch_defer`, and two workers with concurrency 10."""

import logging
import os
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import psycopg
from procrastinate.jobs import Job

from benchmarks.contestants import rows
from benchmarks.contestants.lines import chunks, serve, timed
from benchmarks.contestants.procrastinate_app import app, noop, update

CONFIGURATION = (
    "two workers with concurrency 10, async tasks, listening and polling every 0.2 s (with its default of 5 s a"
    " due job would wait that long); finished jobs are kept (default); deferred synchronously on one psycopg connection"
    " (`connection=`, faster than its pool and its Django connector); bulk is batch_defer with 1,000 jobs, which takes"
    " one due time per call"
)
CAN = ["schedule.one", "schedule.ten", "schedule.bulk", "burst", "burst.update", "punctual", "pending", "cancel.one"]
PROGRAM = ["-m", "procrastinate", "--app", "benchmarks.contestants.procrastinate_app.app", "--log-level", "warning"]
WORKER = ["worker", "--concurrency", "10", "--fetch-job-polling-interval", "0.2"]
BATCH = 1000

scheduled: list[int] = []  # the ids of the last `schedule`
connection = psycopg.connect(os.environ["BENCH_POSTGRES"], autocommit=True)


def describe() -> dict[str, Any]:
    worker = [sys.executable, *PROGRAM, *WORKER]
    return {
        "name": "Procrastinate on PostgreSQL",
        "version": f"procrastinate {version('procrastinate')}, psycopg {psycopg.__version__}",
        "configuration": CONFIGURATION,
        "workers": [worker, worker],
        "extra": [],
        "can": CAN,
    }


def setup() -> None:
    app.open()
    app.schema_manager.apply_schema()
    schedule("one", 20, 600)  # psycopg prepares a statement at its fifth use
    clear()


def schedule(how: str, count: int, delay: float) -> dict[str, Any]:
    with timed() as answer:
        scheduled[:] = SCHEDULE[how](count, delay)
    return answer


def _one(count: int, delay: float) -> list[int]:
    return [_defer(n, delay) for n in range(count)]


def _ten(count: int, delay: float) -> list[int]:
    ids: list[int] = []
    for start in range(0, count, 10):
        with connection.transaction():
            ids += [_defer(n, delay) for n in range(start, min(start + 10, count))]
    return ids


def _bulk(count: int, delay: float) -> list[int]:
    ids: list[int] = []
    for numbers in chunks(list(range(count)), BATCH):
        jobs = noop.configure(schedule_in={"seconds": round(delay)}, connection=connection)
        ids += jobs.batch_defer(*({"n": n, "due": 0} for n in numbers))
    return ids


def _defer(n: int, delay: float) -> int:
    return noop.configure(schedule_in={"seconds": round(delay)}, connection=connection).defer(n=n, due=0)


SCHEDULE = {"one": _one, "ten": _ten, "bulk": _bulk}


def fill(due: list[float], kind: str = "noop") -> dict[str, Any]:
    """Use the job manager directly: jobs of one `batch_defer` all have the same due time."""
    if kind == "update":
        rows.make(len(due))
    task = update if kind == "update" else noop
    with timed() as answer:
        for numbers in chunks(list(range(len(due))), BATCH):
            jobs = [_job(task, n, due[n]) for n in numbers]
            app.job_manager.batch_defer_jobs(jobs, connection=connection)
    return answer


def _job(task: Any, n: int, at: float) -> Job:
    deferrer = task.configure(schedule_at=datetime.fromtimestamp(at, UTC))
    return deferrer.make_new_job(n=n, due=round(at * 1e6))


def cancel(how: str, count: int) -> dict[str, Any]:
    with timed() as answer:
        results = [app.job_manager.cancel_job_by_id(job, connection=connection) for job in scheduled[:count]]
    return answer | {"cancelled": sum(results)}


def left() -> dict[str, Any]:
    row = connection.execute("SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')").fetchone()
    return {"left": row[0] if row else None}


def clear() -> None:
    connection.execute("TRUNCATE procrastinate_jobs, procrastinate_events, procrastinate_periodic_defers")


if __name__ == "__main__":
    logging.disable(logging.INFO)  # one line per deferred job
    serve({f.__name__: f for f in (describe, setup, schedule, fill, cancel, left, clear)})
