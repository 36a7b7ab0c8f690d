"""The Huey app, imported by the consumer and the driver."""

import os

from huey import RedisHuey

from benchmarks.contestants import rows, sink

huey = RedisHuey("bench", url=os.environ["BENCH_REDIS"], results=False)


@huey.task()
def noop(n: int, due: int) -> None:
    sink.ran(n, due)


@huey.task()
def update(n: int, due: int) -> None:
    sink.ran(n, due)
    rows.touch(n)
