"""Commands inside the measured project for HTTP: make a token, and schedule due jobs at a steady rate.

Started by web.py by its path, with the environment and the protocol of a driver. It uses only names that each version
of delaytasks has, because it may run with the code of another checkout.
"""

import itertools
import os
import time
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")
django.setup()

from django.db import connection  # noqa: E402

from benchmarks.contestants.lines import serve  # noqa: E402
from benchmarks.contestants.ours.timeouts import TOPICS  # noqa: E402
from delaytasks import schedule_many  # noqa: E402
from delaytasks.models import Job  # noqa: E402

UNHANDLED = "bench.http"  # for consumers over HTTP: no worker runs its jobs
TICKS = 20  # times a second at which jobs are scheduled
AHEAD_SECONDS = 0.5  # from scheduling to the due time
numbers = itertools.count()


def token() -> dict[str, Any]:
    """Create a token that may schedule and execute every topic, without a rate limit; return its secret."""
    from delaytasks.api.models import Grant, ServiceAccount, Token
    from delaytasks.models import Topic

    account = ServiceAccount.objects.create(name=f"bench-{uuid4().hex[:8]}")
    token, secret = Token.objects.create_key(name="benchmark", account=account, rate_per_minute=100_000_000)
    Grant.objects.create(token=token, topic="*", produce=True, consume=True)
    Topic.objects.get_or_create(name=UNHANDLED)
    return {"secret": secret, "topic": TOPICS["noop"], "unhandled": UNHANDLED}


def feed(per_second: int, duration: float) -> dict[str, Any]:
    """Schedule so many jobs a second, each due at an instant of its own. Return how much later than planned, in ms."""
    first, behind = time.time() + 2 * AHEAD_SECONDS, 0.0
    for tick in range(round(duration * TICKS)):
        begins = first + tick / TICKS
        time.sleep(max(0.0, begins - AHEAD_SECONDS - time.time()))
        behind = max(behind, time.time() - begins + AHEAD_SECONDS)
        count = per_second // TICKS
        schedule_many([_job(begins + n / per_second) for n in range(count)])
    return {"behind_ms": behind * 1000}


def _job(due: float) -> dict[str, Any]:
    due_at, key = datetime.fromtimestamp(round(due, 3), UTC), f"fed:{next(numbers)}"
    return {
        "topic": UNHANDLED,
        "key": key,
        "due_at": due_at,
        "ttr": 60,
        "body": {"key": key, "due": due_at.timestamp()},
    }


def live() -> dict[str, Any]:
    """Return the number of jobs that have not ended."""
    return {"live": Job.objects.filter(topic=UNHANDLED, ended_at=None).count()}


def bye() -> dict[str, Any]:
    connection.close()
    return {}


if __name__ == "__main__":
    serve({"token": token, "feed": feed, "live": live, "bye": bye})
