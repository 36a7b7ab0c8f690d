"""Random histories of jobs, which the test kit and real workers play, and the handlers of their topics.

Times are counted from the beginning of a history, in units of HISTORY_UNIT seconds. Workers are late by milliseconds,
and the kit is never late. So that both must do the same, acts and due times are a quarter of a unit apart or more. Due
times are full units, or a quarter after one if they come from run_now(); all other acts happen half a unit after one.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delaytasks import Retry, Snooze, cancel, reschedule, run_now, schedule
from delaytasks.backoff import Backoff
from delaytasks.exceptions import NotLive
from tests.timeouts.app.models import Ticket

UNIT = int(os.environ.get("HISTORY_UNIT", "1"))  # longer on a slower machine
STEADY = Backoff(base_seconds=UNIT, factor=2, jitter=0)
UNITS = 12  # in which the acts of a history happen
LONGEST_DELAY = 8
ANSWER = "history.answer"  # the topic of the declared timeout
ANSWER_WITHIN = timedelta(seconds=4 * UNIT)


def snoozing(job: Any) -> Snooze | None:
    return Snooze(3 * UNIT) if job.attempt < 3 else None


def flaky(job: Any) -> None:
    if job.attempt % 3:
        raise ValueError("not yet")


def hopeless(job: Any) -> None:
    raise Retry("the bank is closed", delay=4 * UNIT)


def chained(job: Any) -> None:
    if job.body["left"]:
        schedule(job.topic, job.key, delay=2 * UNIT, body={"left": job.body["left"] - 1})


def outside(job: Any) -> None:
    job.touch()
    with job.finishing():
        pass


TOPICS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "history.plain": (lambda job: None, {}),
    "history.snoozing": (snoozing, {}),
    "history.flaky": (flaky, {"max_attempts": 4}),
    "history.hopeless": (hopeless, {"max_attempts": 3}),
    "history.chained": (chained, {}),
    "history.outside": (outside, {"atomic": False}),
    "history.batch": (lambda jobs: {job.id: Snooze(3 * UNIT) for job in jobs if job.attempt == 1}, {"batch": 5}),
}


@dataclass(frozen=True)
class Act:
    """What a caller does: do(start of the history), at_ms after it."""

    at_ms: int
    do: Callable[[datetime], Any]


def random_history(seed: int) -> list[Act]:
    """Return the acts of a history. Its keys contain the seed: histories share no job."""
    rng = random.Random(seed)
    acts = [_on_a_job(rng, seed) for _ in range(rng.randint(6, 20))]
    acts += [_on_a_ticket(rng, seed) for _ in range(rng.randint(0, 6))]
    hurried = rng.sample(sorted(TOPICS), 2)  # once for each key at most: its later runs would meet the next run_now()
    acts += [_run_now(rng, topic, f"{seed}:{number}") for number, topic in enumerate(hurried)]
    return sorted(acts, key=lambda act: act.at_ms)


def _on_a_job(rng: random.Random, seed: int) -> Act:
    unit, topic, key = rng.randrange(UNITS), rng.choice(sorted(TOPICS)), f"{seed}:{rng.randrange(3)}"
    due, mode, body = _later(rng, unit), rng.choice(["keep", "replace"]), {"left": rng.randint(0, 3)}
    kind = rng.random()
    if kind < 0.7:
        call: Any = lambda at: schedule(topic, key, due_at=at + due, body=body, on_conflict=mode)  # noqa: E731
    elif kind < 0.85:
        call = lambda at: cancel(topic, key)  # noqa: E731
    else:
        call = _unless_ended(lambda at: reschedule(topic, key, due_at=at + due))
    return Act((unit * 1000 + 500) * UNIT, call)


def _later(rng: random.Random, unit: int) -> timedelta:
    return timedelta(seconds=(unit + rng.randint(1, LONGEST_DELAY)) * UNIT)


def _run_now(rng: random.Random, topic: str, key: str) -> Act:
    return Act((rng.randrange(UNITS) * 1000 + 250) * UNIT, _unless_ended(lambda at: run_now(topic, key)))


def _on_a_ticket(rng: random.Random, seed: int) -> Act:
    """Save or delete a ticket: its declared timeout follows."""
    unit, code, kind = rng.randrange(UNITS), f"{seed}:{rng.randrange(3)}", rng.random()
    opened = timedelta(seconds=(unit - rng.randint(0, 2)) * UNIT)
    if kind > 0.9:
        return Act((unit * 1000 + 500) * UNIT, lambda at: Ticket(code=code).delete())
    return Act(
        (unit * 1000 + 500) * UNIT, lambda at: Ticket(code=code, deleted=kind < 0.3, opened_at=at + opened).save()
    )


def _unless_ended(verb: Callable[[datetime], Any]) -> Callable[[datetime], None]:
    def act(start: datetime) -> None:
        try:
            verb(start)
        except NotLive:
            pass

    return act
