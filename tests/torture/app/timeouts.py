"""Handlers that behave, each logged in the ledger. The others are in misbehaving.py."""

import functools
import os
import signal
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delaytasks import Snooze, clock, handler
from delaytasks.backoff import Backoff
from delaytasks.db import dialects

from ..constants import CROWD, CROWD_ATTEMPTS, MOST_ATTEMPTS, TTR_SECONDS
from ..ledger import Ledger
from .models import Effect

LEDGER = Ledger(Path(os.environ.get("TORTURE_LEDGER", ".")), "handlers")
QUICKLY = Backoff(base_seconds=0.5, factor=1.5, cap_seconds=3)
KEEPS_TRYING: dict[str, Any] = {"max_attempts": MOST_ATTEMPTS, "backoff": QUICKLY}


def logged(work: Callable[..., Any]) -> Callable[..., Any]:
    """Write an entry to the ledger before and after the handler, for each job of a batch."""

    @functools.wraps(work)
    def wrapper(argument: Any) -> Any:
        jobs = argument if isinstance(argument, list) else [argument]
        now_ms = int(dialects.now_ms("default"))
        LEDGER.write("begins", *({**_fields(job), "due_ms": clock.to_ms(job.due_at)} for job in jobs), now_ms=now_ms)
        result = work(argument)
        LEDGER.write("ends", *({"job": job.id, "attempt": job.attempt} for job in jobs), how=type(result).__name__)
        return result

    return wrapper


def _fields(job: Any) -> dict[str, Any]:
    return {"job": job.id, "topic": job.topic, "key": job.key, "attempt": job.attempt}


def leave_effects(*jobs: Any) -> None:
    now_ms = int(dialects.now_ms("default"))
    Effect.objects.bulk_create(Effect(job_id=job.id, attempt=job.attempt, at_ms=now_ms) for job in jobs)


def share(job: Any, parts: int) -> int:
    """Return a number from 0 to parts - 1 that depends only on the key."""
    return zlib.crc32(job.key.encode()) % parts


@handler("torture.once", ttr=TTR_SECONDS, **KEEPS_TRYING)
@logged
def once(job: Any) -> None:
    leave_effects(job)


@handler("torture.slow", ttr=TTR_SECONDS, **KEEPS_TRYING)
@logged
def slow(job: Any) -> None:
    """Slow, so that faults happen between its effect and its commit."""
    leave_effects(job)
    time.sleep(0.1 + share(job, 8) / 10)


@handler("torture.batch", ttr=TTR_SECONDS, batch=50, **KEEPS_TRYING)
@logged
def batch(jobs: list[Any]) -> None:
    leave_effects(*jobs)


@handler("torture.together", ttr=TTR_SECONDS, one_commit=True, **KEEPS_TRYING)
@logged
def together(job: Any) -> None:
    """Single jobs that share a commit. Some fail at first; then all of them run again one by one."""
    leave_effects(job)
    if share(job, 20) == 0 and job.attempt == 1:
        raise RuntimeError("not at the first attempt")


@handler("torture.relaxed", ttr=TTR_SECONDS, relaxed_commit=True, **KEEPS_TRYING)
@logged
def relaxed(job: Any) -> None:
    """The commit does not wait for the disk; effect and finish are still one transaction."""
    leave_effects(job)


@handler("torture.flaky", ttr=TTR_SECONDS, **KEEPS_TRYING)
@logged
def flaky(job: Any) -> None:
    """Fail after the effect, which must be rolled back."""
    leave_effects(job)
    if share(job, 2) == 0 and job.attempt == 1:
        raise RuntimeError("not at the first attempt")


@handler("torture.snooze", ttr=TTR_SECONDS, **KEEPS_TRYING)
@logged
def snooze(job: Any) -> Snooze | None:
    """Snooze once, then finish."""
    if job.attempt == 1:
        return Snooze(0.7)
    leave_effects(job)
    return None


@handler("torture.outside", ttr=TTR_SECONDS, atomic=False, **KEEPS_TRYING)
@logged
def outside(job: Any) -> None:
    """Leave an effect outside the database, which may happen twice, and one in finishing(), which may not."""
    LEDGER.write("outside", job=job.id, topic=job.topic, attempt=job.attempt)
    time.sleep(share(job, 5) / 10)
    with job.finishing():
        leave_effects(job)


@handler(CROWD, ttr=TTR_SECONDS, max_attempts=CROWD_ATTEMPTS, backoff=QUICKLY, concurrency=8)
@logged
def crowd(job: Any) -> None:
    """Take as long as the body says, or kill the process."""
    leave_effects(job)
    if job.body["kills"]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(job.body["seconds"])


from . import deployed, forwarded, misbehaving  # noqa: E402,F401  autodiscovery imports only this module
