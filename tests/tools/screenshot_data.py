"""What the screenshots show beside the show itself: a day of promises, an hour of history, a herd, a dead job."""

import itertools
import random
import socket
import traceback
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from delaytasks import clock, schedule, schedule_many
from delaytasks.db import transitions
from delaytasks.db.transitions import Event
from delaytasks.models import Job
from delaytasks.states import Outcome, State

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
HERD, SALE = 40_000, 1_250
WORKERS = ("shop@web-1", "shop@web-2")
BASE = Path(__file__).resolve().parents[2]


def promise(rng: random.Random) -> None:
    """What falls due: 40,000 reviews at nine in the morning, the end of a sale within the hour, a day's business."""
    now = timezone.now()
    nine = _next(now + HOUR, hour=9)
    review = {"topic": "review.ask", "body": {"order": 0, "template": "how-was-it", "locale": "en"}}
    schedule_many([review | {"key": f"review:{n}", "due_at": nine} for n in range(1, HERD + 1)])
    sale = now.replace(second=0, microsecond=0) + 34 * MINUTE
    schedule_many([_close(9_000 + n, sale) for n in range(SALE)])
    hour = [_close(5_000 + n, now + rng.uniform(3, 60) * MINUTE) for n in range(700)]
    busy = [22 - abs((now + n * HOUR).hour - 15) for n in range(24)]  # people sleep at night
    days = [
        _close(6_000 + n, now + rng.choices(range(24), busy)[0] * HOUR + HOUR * rng.uniform(0.1, 1))
        for n in range(2400)
    ]
    schedule_many(hour + days)


def _next(moment: datetime, *, hour: int) -> datetime:
    at = moment.replace(hour=hour, minute=0, second=0, microsecond=0)
    return at if at > moment else at + timedelta(days=1)


def _close(order: int, due_at: datetime) -> dict[str, Any]:
    return {"topic": "order.close", "key": f"order:{order}", "due_at": due_at, "body": {"order": order}}


def remember(rng: random.Random) -> None:
    """What happened in the last hour: attempts that were begun some milliseconds late, a few that failed."""
    now_ms = clock.to_ms(timezone.now())
    jobs, stories = [], []
    for n, topic in itertools.islice(_business(rng), 1800):
        done_ms = now_ms - rng.randint(20_000, 3_600_000)
        cancelled = topic == "order.close" and rng.random() < 0.45
        jobs.append(_ended(topic, n, State.CANCELLED if cancelled else State.FINISHED, done_ms))
        stories.append(list(_story(rng, done_ms, cancelled)))
    made = Job.objects.bulk_create(jobs)
    events = [event._replace(job_id=job.pk) for job, story in zip(made, stories, strict=True) for event in story]
    for n in range(0, len(events), 500):
        transitions.record("default", events[n : n + 500])


def _business(rng: random.Random) -> Iterator[tuple[int, str]]:
    return ((n, rng.choices(["order.close", "refund.check", "review.ask"], [6, 2, 2])[0]) for n in itertools.count(1))


def _ended(topic: str, number: int, state: State, done_ms: int) -> Job:
    key = f"{topic.partition('.')[0]}:{100_000 + number}"
    done = clock.from_ms(done_ms)
    return Job(
        topic=topic, key=key, state=state, due_at=done, ttr_ms=60_000, created_at=done - HOUR, ended_at=done,
        attempt=0 if state is State.CANCELLED else 1, body={"order": number},
    )  # fmt: skip


def _story(rng: random.Random, done_ms: int, cancelled: bool) -> Iterator[Event]:
    """An attempt is late by some milliseconds, rarely by more; one in thirty fails first."""
    if cancelled:
        yield Event(0, Outcome.CANCELLED, 0, done_ms + 600_000, done_ms)
        return
    late = round(min(rng.lognormvariate(1.9, 0.7), 900)) + (rng.randint(20, 400) if rng.random() < 0.01 else 0)
    took, worker = rng.randint(4, 60), rng.choice(WORKERS)
    timing = {"due_ms": done_ms - took - late, "reserved_ms": done_ms - took, "worker": worker}
    if rng.random() < 1 / 30:
        failed = rng.choices([Outcome.FAILED, Outcome.EXPIRED], [4, 1])[0]
        before = {name: value - 30_000 if name != "worker" else value for name, value in timing.items()}
        yield Event(0, failed, 1, done_ms=done_ms - 30_000, error="OSError: the bank did not answer", **before)
    yield Event(0, Outcome.FINISHED, 1, done_ms=done_ms, **timing)


def kill_one() -> Job:
    """A device that did not answer three times: dead, with its whole story. To be looked at and retried."""
    error = _traceback()
    first = timezone.now() - 21 * MINUTE
    body = {
        "device": "Hall heating",
        "command": "18 °C",
        "gateway": {"name": "First floor", "serial": "GW-0041", "api_key": "never shown"},
        "asked_by": "Grete",
    }
    rests = [0, 2, 6]  # seconds
    events, due = [], first
    for attempt, rest in enumerate(rests, 1):
        due = first + timedelta(seconds=rest)
        begun, done = clock.to_ms(due) + 3 + attempt, clock.to_ms(due) + 240 + 11 * attempt
        dead = attempt == len(rests)
        following = None if dead else clock.to_ms(first + timedelta(seconds=rests[attempt]))
        outcome = Outcome.DEAD if dead else Outcome.FAILED
        events.append(
            Event(0, outcome, attempt, clock.to_ms(due), done, begun, following, WORKERS[attempt % 2], "", error)
        )
    died = clock.from_ms(events[-1].done_ms)
    job = Job.objects.create(
        topic="device.tell", key="device:31", state=State.DEAD, due_at=due, ttr_ms=30_000, attempt=3, failures=3,
        created_at=first - MINUTE, ended_at=died, died_at=died, body=body, error=error, worker=WORKERS[1],
    )  # fmt: skip
    transitions.record("default", [event._replace(job_id=job.pk) for event in events])
    return job


def _traceback() -> str:
    """A real one, of the shop's own handler; its paths are those of a server."""
    from project.shop.devices import Device

    try:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))  # bound and not listening: a connection is refused
            Device(address=f"http://127.0.0.1:{closed.getsockname()[1]}/", command="18 °C").tell()
    except OSError as error:
        frames = error.__traceback__ and error.__traceback__.tb_next  # without the one of this function
        text = "".join(traceback.format_exception(type(error), error, frames, chain=False))
    return text.replace(str(BASE), "/srv/shop").replace(str(Path(traceback.__file__).parent), "/usr/lib/python3.11")


def put_in_every_state() -> None:
    """The newest jobs of the list: waiting for a consumer, running, cancelled, finished, and for tomorrow."""
    now = timezone.now()
    running = {"state": State.RESERVED, "attempt": 1, "reserved_at": now, "lease_until": now + 10 * MINUTE}
    schedule("order.close", key="order:4711", due_at=now + 12 * MINUTE, body={"order": 4711})
    schedule("review.ask", key="review:41207", due_at=now - timedelta(seconds=4), body={"order": 4711})
    schedule("order.close", key="order:4712", due_at=now + 18 * HOUR, body={"order": 4712})
    rows: list[tuple[str, str, datetime, dict[str, Any]]] = [
        ("refund.check", "refund:32", now - timedelta(seconds=1), running | {"worker": WORKERS[0]}),
        ("order.close", "order:4699", now - MINUTE, {"state": State.CANCELLED, "ended_at": now}),
        ("review.ask", "review:41102", now - MINUTE, {"state": State.FINISHED, "attempt": 1, "ended_at": now}),
    ]
    for topic, key, due_at, columns in rows:
        Job.objects.create(
            topic=topic, key=key, due_at=due_at, ttr_ms=60_000, created_at=now - HOUR, body={"order": 4711}, **columns
        )
