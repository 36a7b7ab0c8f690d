"""Celery on Redis: `apply_async(countdown=...)` and two prefork processes."""

import sys
from datetime import UTC, datetime
from typing import Any

import celery
import kombu
import redis
from celery import group

from benchmarks.contestants import rows
from benchmarks.contestants.celery_app import QUEUE, app, noop, update
from benchmarks.contestants.lines import serve, timed

CONFIGURATION = (
    "prefork with 2 processes; no result backend; early acknowledgement (Celery's default, the faster choice:"
    " a killed worker loses its jobs); visibility_timeout 12 h, as it must exceed the longest countdown;"
    " prefetch 4 per process (default; jobs with an ETA are fetched beyond it); bulk is group(); cancelling is a"
    " broadcast to the running workers, measured is the time to send it"
)
CAN = ["schedule.one", "schedule.bulk", "burst", "burst.update", "punctual", "pending", "cancel.one", "cancel.bulk"]
GROUP = 1000

scheduled: list[str] = []  # the ids of the last `schedule`


def describe() -> dict[str, Any]:
    worker = ["-m", "celery", "-A", "benchmarks.contestants.celery_app", "worker", "-c", "2", "-l", "WARNING"]
    return {
        "name": "Celery on Redis",
        "version": f"celery {celery.__version__}, kombu {kombu.__version__}, redis-py {redis.__version__}",
        "configuration": CONFIGURATION,
        "workers": [[sys.executable, *worker]],
        "extra": [],
        "can": CAN,
    }


def setup() -> None:
    noop.apply_async((0, 0), countdown=600)
    clear()


def schedule(how: str, count: int, delay: float) -> dict[str, Any]:
    with timed() as answer:
        if how == "one":
            scheduled[:] = [noop.apply_async((n, 0), countdown=delay).id for n in range(count)]
        else:
            scheduled[:] = _in_groups(count, delay)
    return answer


def _in_groups(count: int, delay: float) -> list[str]:
    ids: list[str] = []
    for start in range(0, count, GROUP):
        jobs = group(noop.s(n, 0) for n in range(start, min(start + GROUP, count)))
        ids += [result.id for result in jobs.apply_async(countdown=delay).results]
    return ids


def fill(due: list[float], kind: str = "noop") -> dict[str, Any]:
    if kind == "update":
        rows.make(len(due))
    task = update if kind == "update" else noop
    with timed() as answer, app.producer_or_acquire() as producer:
        for n, at in enumerate(due):
            task.apply_async((n, round(at * 1e6)), eta=datetime.fromtimestamp(at, UTC), producer=producer)
    return answer


def cancel(how: str, count: int) -> dict[str, Any]:
    ids = scheduled[:count]
    with timed() as answer:
        if how == "bulk":
            app.control.revoke(ids)
        else:
            for task_id in ids:
                app.control.revoke(task_id)
    return answer | {"cancelled": len(ids)}


def left() -> dict[str, Any]:
    """Return the number of jobs in the queue and of those prefetched by workers."""
    with app.connection_for_read() as connection:
        client = connection.default_channel.client
        return {"left": client.llen(QUEUE) + client.hlen("unacked")}


def clear() -> None:
    """Empty the queue but keep its binding, which producers declare only once."""
    with app.connection_for_write() as connection:
        connection.default_channel.client.delete(QUEUE, "unacked", "unacked_index")


if __name__ == "__main__":
    serve({f.__name__: f for f in (describe, setup, schedule, fill, cancel, left, clear)})
