"""The Celery app, imported by the worker processes and the driver."""

import os

from celery import Celery

from benchmarks.contestants import rows, sink

QUEUE = "celery"

app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(
    # Longer than any countdown of a benchmark: with the default of an hour, Redis delivers jobs twice.
    broker_transport_options={"visibility_timeout": 12 * 3600},
    task_ignore_result=True,
    task_acks_late=False,
    worker_prefetch_multiplier=4,
    broker_connection_retry_on_startup=True,
)


@app.task
def noop(n: int, due: int) -> None:
    sink.ran(n, due)


@app.task
def update(n: int, due: int) -> None:
    sink.ran(n, due)
    rows.touch(n)
