"""Huey on Redis: `schedule(delay=...)` and a consumer with two processes."""

import logging
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any
from uuid import uuid4

import redis

from benchmarks.contestants import rows
from benchmarks.contestants.huey_app import huey, noop, update
from benchmarks.contestants.lines import serve, timed

CONFIGURATION = (
    "RedisHuey without results, consumer -k process -w 2 with the shortest scheduler interval, 1 s (on average a"
    " due job waits half of it); no bulk call; schedule() only appends to the queue, the consumer sorts it later;"
    " a killed worker loses its job"
)
CAN = ["schedule.one", "burst", "burst.update", "punctual", "pending", "cancel.one"]
CONSUMER = ["-m", "huey.bin.huey_consumer", "benchmarks.contestants.huey_app.huey"]
OPTIONS = ["-k", "process", "-w", "2", "--scheduler-interval", "1", "--no-periodic", "--quiet"]

scheduled: list[str] = []  # the ids of the last `schedule`


def describe() -> dict[str, Any]:
    return {
        "name": "huey on Redis",
        "version": f"huey {version('huey')}, redis-py {redis.__version__}",
        "configuration": CONFIGURATION,
        "workers": [[sys.executable, *CONSUMER, *OPTIONS]],
        "extra": [],
        "can": CAN,
    }


def setup() -> None:
    noop.schedule((0, 0), delay=600)
    clear()


def schedule(how: str, count: int, delay: float) -> dict[str, Any]:
    ids = [str(uuid4()) for _ in range(count)]  # as huey creates them; without results it does not return them
    with timed() as answer:
        for n, job in enumerate(ids):
            noop.schedule((n, 0), delay=delay, id=job)
    scheduled[:] = ids
    return answer


def fill(due: list[float], kind: str = "noop") -> dict[str, Any]:
    if kind == "update":
        rows.make(len(due))
    task = update if kind == "update" else noop
    with timed() as answer:
        for n, at in enumerate(due):
            task.schedule((n, round(at * 1e6)), eta=datetime.fromtimestamp(at, UTC))
    return answer


def cancel(how: str, count: int) -> dict[str, Any]:
    ids = scheduled[:count]
    with timed() as answer:
        for job in ids:
            huey.revoke_by_id(job)
    return answer | {"cancelled": len(ids)}


def left() -> dict[str, Any]:
    return {"left": huey.pending_count() + huey.scheduled_count()}


def clear() -> None:
    huey.flush()


if __name__ == "__main__":
    logging.disable(logging.INFO)
    serve({f.__name__: f for f in (describe, setup, schedule, fill, cancel, left, clear)})
