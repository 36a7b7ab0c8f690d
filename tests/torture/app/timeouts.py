"""Handlers that behave: each begins and ends before a witness. What misbehaves is in misbehaving.py."""

import functools
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from delaytasks import Snooze, clock, dialect, handler
from delaytasks.backoff import Backoff

from ..ledger import Ledger
from ..terms import MOST_ATTEMPTS, TTR_SECONDS
from .models import Effect

LEDGER = Ledger(Path(os.environ.get("TORTURE_LEDGER", ".")), "handlers")
QUICKLY = Backoff(base_seconds=0.5, factor=1.5, cap_seconds=3)
KEEPS_TRYING: dict[str, Any] = {"max_attempts": MOST_ATTEMPTS, "backoff": QUICKLY}


def witnessed(work: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, with an entry in the ledger before and after; a batch is one entry for each of its jobs."""

    @functools.wraps(work)
    def seen(given: Any) -> Any:
        jobs = given if isinstance(given, list) else [given]
        now_ms = int(dialect.now_ms("default"))
        LEDGER.write("begins", *({**_about(job), "due_ms": clock.to_ms(job.due_at)} for job in jobs), now_ms=now_ms)
        answer = work(given)
        LEDGER.write("ends", *({"job": job.id, "attempt": job.attempt} for job in jobs), how=type(answer).__name__)
        return answer

    return seen


def _about(job: Any) -> dict[str, Any]:
    return {"job": job.id, "topic": job.topic, "key": job.key, "attempt": job.attempt}


def leave_effects(*jobs: Any) -> None:
    now_ms = int(dialect.now_ms("default"))
    Effect.objects.bulk_create(Effect(job_id=job.id, attempt=job.attempt, at_ms=now_ms) for job in jobs)


def share(job: Any, parts: int) -> int:
    """0 to parts - 1, the same for a key at every attempt."""
    return zlib.crc32(job.key.encode()) % parts


@handler("torture.once", ttr=TTR_SECONDS, **KEEPS_TRYING)
@witnessed
def once(job: Any) -> None:
    leave_effects(job)


@handler("torture.slow", ttr=TTR_SECONDS, **KEEPS_TRYING)
@witnessed
def slow(job: Any) -> None:
    """Takes its time, so that a fault finds it at work, with its effect half made."""
    leave_effects(job)
    time.sleep(0.1 + share(job, 8) / 10)


@handler("torture.batch", ttr=TTR_SECONDS, batch=50, **KEEPS_TRYING)
@witnessed
def batch(jobs: list[Any]) -> None:
    leave_effects(*jobs)


@handler("torture.together", ttr=TTR_SECONDS, one_commit=True, **KEEPS_TRYING)
@witnessed
def together(job: Any) -> None:
    """One commit for a batch of single jobs. Some fail at first: then all of the batch run again one by one."""
    leave_effects(job)
    if share(job, 20) == 0 and job.attempt == 1:
        raise RuntimeError("not at the first attempt")


@handler("torture.relaxed", ttr=TTR_SECONDS, relaxed_commit=True, **KEEPS_TRYING)
@witnessed
def relaxed(job: Any) -> None:
    """Its finish does not wait for the disk; effect and finish are one commit all the same."""
    leave_effects(job)


@handler("torture.flaky", ttr=TTR_SECONDS, **KEEPS_TRYING)
@witnessed
def flaky(job: Any) -> None:
    """Fails after its effect was made, which has to go with it."""
    leave_effects(job)
    if share(job, 2) == 0 and job.attempt == 1:
        raise RuntimeError("not at the first attempt")


@handler("torture.snooze", ttr=TTR_SECONDS, **KEEPS_TRYING)
@witnessed
def snooze(job: Any) -> Snooze | None:
    """Asks again once, and then is done."""
    if job.attempt == 1:
        return Snooze(0.7)
    leave_effects(job)
    return None


@handler("torture.outside", ttr=TTR_SECONDS, atomic=False, **KEEPS_TRYING)
@witnessed
def outside(job: Any) -> None:
    """An effect outside the database, which may come twice; and one in the fenced last part, which may not."""
    LEDGER.write("outside", job=job.id, topic=job.topic, attempt=job.attempt)
    time.sleep(share(job, 5) / 10)
    with job.finishing():
        leave_effects(job)


from . import deployed, misbehaving  # noqa: E402,F401  autodiscovery looks for this module alone
