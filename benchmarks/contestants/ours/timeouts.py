"""A handler for each form. Each one records its start; some also update a row. Topics that are forwarded have none."""

import time
from typing import Any

from django.db import connection

from benchmarks.contestants import sink
from benchmarks.contestants.ours.durations import HERD_SECONDS, SLOW_NUMBER, SLOW_SECONDS
from delaytasks import conf, forward, handler
from delaytasks.forwarding import Amqp, Kafka

TOPICS = {
    "noop": "bench.noop",
    "update": "bench.update",
    "update-relaxed": "bench.relaxed",
    "one-commit": "bench.shared",
    "batch": "bench.batch",
    "herd": "bench.herd",
    "call": "bench.call",
    "call-one-commit": "bench.call-shared",
}
FORWARDED = {"amqp": "bench.amqp", "kafka": "bench.kafka"}  # by the name of the broker, if there is one


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


@handler("bench.herd")
def herd(job: Any) -> None:
    started(job)
    time.sleep(HERD_SECONDS)


@handler("bench.call")
def call(job: Any) -> None:
    started(job)
    if job.body["n"] == SLOW_NUMBER:
        time.sleep(SLOW_SECONDS)


@handler("bench.call-shared", one_commit=True)
def call_shared(job: Any) -> None:
    call(job)


if "amqp" in conf.get().brokers:
    forward(FORWARDED["amqp"], Amqp("", "bench"))
if "kafka" in conf.get().brokers:
    forward(FORWARDED["kafka"], Kafka("bench", key="key"))
