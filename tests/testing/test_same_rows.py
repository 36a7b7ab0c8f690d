"""The same history gives the same rows through the kit and through the code of real workers.

DELAYTASKS_HISTORIES   how many random histories are played; the default takes seconds, 500 were played by hand
"""

import os
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from delaytasks import Retry, Snooze, cancel, reschedule, run_now, schedule
from delaytasks.backoff import Backoff
from delaytasks.clock import from_ms, to_ms
from delaytasks.db import dialects
from delaytasks.exceptions import NotLive
from delaytasks.models import Job
from delaytasks.testing import Timeouts

HISTORIES = int(os.environ.get("DELAYTASKS_HISTORIES", "6"))
START = datetime(2030, 1, 1, tzinfo=UTC)
STEADY = Backoff(base_seconds=3, factor=2, jitter=0)
Act = tuple[int, Callable[[], Any]]  # milliseconds after START


def snoozing(job: Any) -> Snooze | None:
    return Snooze(7) if job.attempt < 3 else None


def flaky(job: Any) -> None:
    if job.attempt % 3:
        raise ValueError("not yet")


def hopeless(job: Any) -> None:
    raise Retry("the bank is closed", delay=11)


def chained(job: Any) -> None:
    if job.body["left"]:
        schedule("chained", job.key, delay=5, body={"left": job.body["left"] - 1})


def outside(job: Any) -> None:
    job.touch()
    with job.finishing():
        pass


TOPICS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "plain": (lambda job: None, {}),
    "snoozing": (snoozing, {}),
    "flaky": (flaky, {"max_attempts": 4}),
    "hopeless": (hopeless, {"max_attempts": 3}),
    "chained": (chained, {}),
    "outside": (outside, {"atomic": False}),
    "batch": (lambda jobs: {job.id: Snooze(9) for job in jobs if job.attempt == 1}, {"batch": 5}),
}


def random_history(rng: random.Random) -> list[Act]:
    acts = []
    for _ in range(rng.randint(10, 40)):
        topic, key = rng.choice(list(TOPICS)), f"order:{rng.randint(1, 4)}"
        acts.append((rng.randrange(0, 120) * 500, random_act(rng, topic, key)))
    return sorted(acts, key=lambda act: act[0])


def random_act(rng: random.Random, topic: str, key: str) -> Callable[[], Any]:
    delay, mode, left = rng.randrange(0, 60) / 2, rng.choice(["keep", "replace"]), rng.randint(0, 3)
    if rng.random() < 0.7:
        return lambda: schedule(topic, key, delay=delay, body={"left": left}, on_conflict=mode)  # type: ignore[call-overload]
    verb = rng.choice([cancel, run_now, lambda topic, key: reschedule(topic, key, delay=delay)])

    def act() -> None:
        try:
            verb(topic, key)
        except NotLive:
            pass

    return act


def rows() -> list[tuple[Any, ...]]:
    """Return the rows of all jobs with their ordered outcomes, and delete them."""
    found = [
        (job.topic, job.key, job.state, job.failures, job.attempt, job.due_at - START,
         [(event.outcome, event.attempt, event.late_ms) for event in job.events.order_by("id")])
        for job in Job.objects.order_by("topic", "key", "id")
    ]  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM delaytasks_jobevent")
        cursor.execute("DELETE FROM delaytasks_job")
    return found


def play_in_the_kit(history: list[Act]) -> list[tuple[Any, ...]]:
    with Timeouts(start=START) as timeouts:
        for at_ms, act in history:
            timeouts.advance_to(START + timedelta(milliseconds=at_ms))
            act()
        timeouts.advance(hours=1)
        return rows()


def play_with_workers(history: list[Act], stage: Any, clock: Any) -> list[tuple[Any, ...]]:
    def run_until(at: datetime) -> None:
        while (due := next_due()) is not None and due <= at:
            clock.set(max(to_ms(due), clock.now_ms))
            stage.go()
        clock.set(to_ms(at))

    clock.set(to_ms(START))
    for at_ms, act in history:
        run_until(START + timedelta(milliseconds=at_ms))
        act()
    run_until(from_ms(clock.now_ms) + timedelta(hours=1))
    return rows()


def next_due() -> datetime | None:
    found: datetime | None = Job.objects.live().order_by("due_at").values_list("due_at", flat=True).first()
    return found


@pytest.fixture
def players(stage: Any, db_clock: Any) -> Iterator[Any]:
    for topic, (function, options) in TOPICS.items():
        stage.handler(topic, backoff=STEADY, **options)(function)
    yield stage
    dialects.set_clock(None)


@pytest.mark.on_both
@pytest.mark.parametrize("seed", range(HISTORIES))
def test_the_kit_and_real_workers_leave_the_same_rows(players: Any, db_clock: Any, seed: int) -> None:
    in_the_kit = play_in_the_kit(random_history(random.Random(seed)))
    with_workers = play_with_workers(random_history(random.Random(seed)), players, db_clock)
    assert in_the_kit == with_workers
    assert in_the_kit
