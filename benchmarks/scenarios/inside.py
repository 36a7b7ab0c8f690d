"""Commands that use the engine's internals: insert rows with SQL, rebuild the mirror, run the mover, claim jobs.

Started by ourselves.py with the environment of a driver and the same protocol: a JSON object per line.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")
django.setup()

from django.db import connection, connections  # noqa: E402

from benchmarks.contestants.lines import Command, serve, timed  # noqa: E402
from benchmarks.contestants.ours.timeouts import TOPICS  # noqa: E402
from delaytasks import conf, databases, handlers, mirror  # noqa: E402
from delaytasks.maintenance import feed  # noqa: E402
from delaytasks.mirror.base import Entry  # noqa: E402
from delaytasks.mirror.redis.index import Mirror  # noqa: E402
from delaytasks.worker.claim import take  # noqa: E402
from delaytasks.worker.mover import Mover  # noqa: E402

from . import publishing, rows  # noqa: E402

USING = "default"
BATCH = 200
WARMUP_BATCHES = 3  # not measured: query plans, scripts and connections are new
numbers = itertools.count(10**12)  # ids of mirror entries without a row
PAGE = 1000


def redis_mirror() -> Mirror:
    index = mirror.connect(USING)
    assert index is not None
    return index


def pending(count: int, first_seconds: float, last_seconds: float) -> dict[str, Any]:
    """Insert `count` jobs due at random between two offsets from now. Does not update the mirror."""
    with timed() as answer:
        rows.pending(count, TOPICS["noop"], first_seconds, last_seconds)
    return answer


def backlog(count: int, due: int) -> dict[str, Any]:
    """Insert `count` jobs: `due` adjacent due ones, as many scattered due ones, the others due within a week."""
    with timed() as answer:
        rows.backlog(count, due, together=TOPICS["noop"], scattered=TOPICS["one-commit"], later=TOPICS["update"])
    return answer


def rebuild() -> dict[str, Any]:
    """Rebuild the mirror from the rows."""
    with timed() as answer:
        added = feed.rebuild(USING)
    return answer | {"added": added}


def promote(count: int) -> dict[str, Any]:
    """Add `count` due entries to the mirror and let the mover's loop promote them."""
    index = redis_mirror()
    due_ms = databases.now_ms(USING) - count  # one per millisecond
    for start in range(0, count, PAGE):
        page = range(start, min(count, start + PAGE))
        index.feed(Entry(next(numbers), TOPICS["batch"], due_ms + n) for n in page)
    ignore: Callable[[str], None] = lambda topic: None  # noqa: E731
    mover = Mover(lambda: index, lambda: databases.now_ms(USING), handlers.handled, ignore, conf.get().guard_tick_ms)
    before = index.counters().get("promoted", 0)
    with timed() as answer:
        while mover.move_due() == 0:
            pass
    return answer | {"moved": index.counters()["promoted"] - before}


def claim(kind: str) -> dict[str, Any]:
    """Reserve and claim all ready jobs of a kind in batches; return the microseconds per job."""
    index, batches = redis_mirror(), []
    while True:
        begun = time.perf_counter()
        jobs = take(index, TOPICS[kind], BATCH, using=USING, worker="benchmark")
        if not jobs:
            break
        batches.append((len(jobs), (time.perf_counter() - begun) / len(jobs) * 1_000_000))
    full_batches = [us for size, us in batches if size == BATCH][WARMUP_BATCHES:]
    costs = full_batches or [us for _, us in batches] or [0.0]
    claimed = sum(size for size, _ in batches)
    return {"claimed": claimed, "us": statistics.median(costs), "mean_us": statistics.fmean(costs)}


def settle() -> dict[str, Any]:
    """Vacuum, analyze and checkpoint, as the server would have done with older data."""
    with timed() as answer, connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) delaytasks_job")
        cursor.execute("CHECKPOINT")
    return answer


def bye() -> dict[str, Any]:
    connections.close_all()
    return {}


if __name__ == "__main__":
    commands: dict[str, Command] = {
        "pending": pending, "backlog": backlog, "rebuild": rebuild, "promote": promote, "claim": claim,
        "settle": settle, "forward": publishing.forward, "bare": publishing.bare, "bye": bye,
    }  # fmt: skip
    serve(commands)
