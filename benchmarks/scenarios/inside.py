"""Commands that look at the engine from within: rows by SQL, the mirror filled by the guards, the mover, the claim.

Started by ourselves.py with the environment of a driver, and spoken to as one: a JSON object per line.
"""

import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")
django.setup()

from django.db import connection, connections  # noqa: E402

from benchmarks.contestants.lines import Command, serve, timed  # noqa: E402
from benchmarks.contestants.ours.timeouts import TOPICS  # noqa: E402
from delaytasks import conf, engine, sweeper, topics  # noqa: E402
from delaytasks.claiming import take  # noqa: E402
from delaytasks.mirror.index import Mirror  # noqa: E402
from delaytasks.mover import Mover  # noqa: E402
from delaytasks.places import Entry  # noqa: E402

from . import rows  # noqa: E402

USING = "default"
BATCH = 200
UNMEASURED = 3  # batches at the start: plans, scripts, connections
numbers = itertools.count(10**12)  # ids of entries that no row stands behind
PAGE = 1000


def mirror() -> Mirror:
    found = engine.mirror_of(USING)
    assert found is not None
    return found


def pending(count: int, first_seconds: float, last_seconds: float) -> dict[str, Any]:
    """`count` jobs due at random from first_seconds to last_seconds from now, as rows; the mirror knows nothing yet."""
    with timed() as answer:
        rows.pending(count, TOPICS["noop"], first_seconds, last_seconds)
    return answer


def backlog(count: int, due: int) -> dict[str, Any]:
    """`count` rows: `due` that were made together, as many made at all times, and the rest due within a week."""
    with timed() as answer:
        rows.backlog(count, due, together=TOPICS["noop"], scattered=TOPICS["one-commit"], later=TOPICS["update"])
    return answer


def rebuild() -> dict[str, Any]:
    """The mirror filled from the rows, by the product's own rebuild."""
    with timed() as answer:
        added = sweeper.rebuild(USING)
    return answer | {"added": added}


def promote(count: int) -> dict[str, Any]:
    """The mover's loop over `count` entries that are due, beside all that is in the mirror already."""
    found = mirror()
    due_ms = engine.now_ms(USING) - count  # a millisecond each
    for start in range(0, count, PAGE):
        page = range(start, min(count, start + PAGE))
        found.feed(Entry(next(numbers), TOPICS["batch"], due_ms + n) for n in page)
    rung: Callable[[str], None] = lambda topic: None  # noqa: E731
    mover = Mover(lambda: found, lambda: engine.now_ms(USING), topics.handled, rung, conf.get().guard_tick_ms)
    before = found.counters().get("promoted", 0)
    with timed() as answer:
        while mover.move_due() == 0:
            pass
    return answer | {"moved": found.counters()["promoted"] - before}


def claim(kind: str) -> dict[str, Any]:
    """All that is ready of a kind, reserved and claimed in batches; the median microseconds per job."""
    found, batches = mirror(), []
    while True:
        begun = time.perf_counter()
        held = take(found, TOPICS[kind], BATCH, using=USING, worker="benchmark", quick=True)
        if not held:
            break
        batches.append((len(held), (time.perf_counter() - begun) / len(held) * 1_000_000))
    whole = [us for size, us in batches if size == BATCH][UNMEASURED:]
    costs = whole or [us for _, us in batches] or [0.0]
    claimed = sum(size for size, _ in batches)
    return {"claimed": claimed, "us": statistics.median(costs), "mean_us": statistics.fmean(costs)}


def token() -> dict[str, Any]:
    """The secret of a new token that may schedule everything, as often as it likes."""
    from delaytasks.api.models import Grant, ServiceAccount, Token

    account = ServiceAccount.objects.create(name=f"bench-{uuid4().hex[:8]}")
    made, secret = Token.objects.create_key(name="benchmark", account=account, rate_per_minute=100_000_000)
    Grant.objects.create(token=made, topic="*", produce=True)
    return {"secret": secret, "topic": TOPICS["noop"]}


def settle() -> dict[str, Any]:
    """What autovacuum and the checkpointer would have done by now: statistics, and all pages on the disk."""
    with timed() as answer, connection.cursor() as cursor:
        cursor.execute("VACUUM (ANALYZE) delaytasks_job")
        cursor.execute("CHECKPOINT")
    return answer


def bye() -> dict[str, Any]:
    connections.close_all()
    return {}


if __name__ == "__main__":
    commands: dict[str, Command] = {
        "pending": pending, "backlog": backlog, "rebuild": rebuild, "promote": promote, "claim": claim, "token": token,
        "settle": settle, "bye": bye,
    }  # fmt: skip
    serve(commands)
