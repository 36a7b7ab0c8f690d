"""A handler for each form. Each one records its start; some also update a row."""

from typing import Any

from django.db import connection

from benchmarks.contestants import sink
from delaytasks import handler

TOPICS = {
    "noop": "bench.noop",
    "update": "bench.update",
    "update-relaxed": "bench.relaxed",
    "one-commit": "bench.shared",
    "batch": "bench.batch",
}


def started(*jobs: Any) -> None:
    sink.ran_all([(job.body["n"], job.body.get("due", 0)) for job in jobs])


def add_one(job: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE bench_row SET n = n + 1 WHERE id = %s", [job.body["n"]])


@handler("bench.noop")
def noop(job: Any) -> None:
    started(job)


@handler("bench.update")
def update(job: Any) -> None:
    started(job)
    add_one(job)


@handler("bench.relaxed", relaxed_commit=True)
def relaxed(job: Any) -> None:
    started(job)
    add_one(job)


@handler("bench.shared", one_commit=True)
def shared(job: Any) -> None:
    started(job)


@handler("bench.batch", batch=200)
def batch(jobs: Any) -> None:
    started(*jobs)
