"""A program that schedules and changes jobs: `python -m tests.torture.caller NAME SEED PER_SECOND`.

Runs until SIGTERM. Its requests and their answers go into the ledger; no error ends it.
"""

import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import django
from django.db import DatabaseError, connection, transaction

from .ledger import Ledger
from .targets.addresses import addresses

TOPICS = {
    "torture.once": 5, "torture.slow": 2, "torture.batch": 4, "torture.together": 4, "torture.relaxed": 2,
    "torture.flaky": 2, "torture.snooze": 2, "torture.outside": 2,
} | dict.fromkeys(addresses(), 10)  # fmt: skip
LONGEST_DELAY_SECONDS = 6.0
REMEMBERED = 200
FENCED = "torture.slow"  # the topic of the jobs that are cancelled while they probably run
RUNS_SECONDS = 1.0  # the longest time after its due time at which such a job probably runs
stopping = threading.Event()


class Remembered(NamedTuple):
    topic: str
    key: str
    job: int
    due: float  # by time.monotonic(), unless it was moved


class Undone(Exception):
    """Roll back the caller's transaction."""


class Caller:
    def __init__(self, name: str, seed: int, ledger: Ledger) -> None:
        self.name, self.random, self.ledger = name, random.Random(seed), ledger
        self.count = 0
        self.recent: deque[Remembered] = deque(maxlen=REMEMBERED)
        self.choices: dict[Callable[[], None], int] = {
            self.schedule: 60, self.schedule_many: 4, self.rolled_back: 4, self.cancel: 14, self.move: 12,
            self.replace: 5, self.run_now: 4, self.fence: 5,
        }  # fmt: skip

    def call(self) -> None:
        (action,) = self.random.choices(list(self.choices), list(self.choices.values()))
        action()

    def logged(
        self,
        op: str,
        topic: str,
        key: str,
        call: Callable[[], Any],
        *,
        job: int | None = None,
        delay: float | None = None,
    ) -> None:
        """Log the request, make the call and log its answer; "broken" if the database or the mirror is down."""
        n = self._name()
        self.ledger.write("asks", n=n, op=op, topic=topic, key=key, delay_ms=_ms(delay))
        said, found = "broken", job
        try:
            answer = call()
            said, found, due_ms = _read(answer, job)
            self.ledger.write("answers", n=n, said=said, job=found, due_ms=due_ms)
        except Undone:
            self.ledger.write("answers", n=n, said="rolled back", job=None, due_ms=None)
        except _refusals() as refusal:
            self.ledger.write("answers", n=n, said="refused", job=job, due_ms=None, why=type(refusal).__name__)
        except DatabaseError as error:
            self.ledger.write("answers", n=n, said="broken", job=job, due_ms=None, why=str(error)[:200])
            connection.close()
        if op == "schedule" and said in ("scheduled", "broken"):
            self._remember(topic, key, found if said == "scheduled" else None, delay or 0)

    def _name(self) -> str:
        self.count += 1
        return f"{self.name}-{os.getpid()}-{self.count}"

    def _remember(self, topic: str, key: str, job: int | None, delay: float) -> None:
        """Remember the job of the key; None: unknown, so forget the key."""
        older = [one for one in self.recent if one[:2] == (topic, key)]
        for one in older:
            self.recent.remove(one)
        if job is not None:
            self.recent.append(Remembered(topic, key, job, time.monotonic() + delay))

    # Calls

    def schedule(self) -> None:
        self._schedule(*self._new())

    def _schedule(self, topic: str, key: str, delay: float) -> None:
        from delaytasks import schedule

        self.logged(
            "schedule", topic, key, lambda: schedule(topic, key=key, delay=delay, body={"key": key}), delay=delay
        )

    def rolled_back(self) -> None:
        from delaytasks import schedule

        topic, key, delay = self._new()

        def undone() -> None:
            with transaction.atomic():
                schedule(topic, key=key, delay=delay)
                raise Undone

        self.logged("rolled back", topic, key, undone, delay=delay)

    def schedule_many(self) -> None:
        from delaytasks import schedule_many

        items = [self._new() for _ in range(20)]
        numbers = [self._name() for _ in items]
        entries = (
            {"n": n, "topic": t, "key": k, "delay_ms": _ms(d)} for n, (t, k, d) in zip(numbers, items, strict=True)
        )
        self.ledger.write("asks", *entries, op="schedule", group=numbers[0])
        try:
            schedule_many([{"topic": t, "key": k, "delay": d, "body": {"key": k}} for t, k, d in items])
        except DatabaseError as error:
            self._answer_all(numbers, "broken", str(error)[:200])
            connection.close()
        else:
            self._answer_all(numbers, "scheduled", "")

    def _answer_all(self, numbers: list[str], said: str, why: str) -> None:
        answers = ({"n": n, "said": said, "why": why} for n in numbers)
        self.ledger.write("answers", *answers, job=None, due_ms=None)

    def cancel(self) -> None:
        from delaytasks import cancel

        self._change("cancel", lambda topic, key: cancel(topic, key=key))

    def fence(self) -> None:
        """Cancel a job that probably runs: its effect is rolled back. If there is none, schedule one."""
        from delaytasks import cancel

        now = time.monotonic()
        running = [one for one in self.recent if one.topic == FENCED and 0 < now - one.due < RUNS_SECONDS]
        if running:
            topic, key, job, _ = self.random.choice(running)
            self.logged("cancel", topic, key, lambda: cancel(topic, key=key, running="fence"), job=job)
        else:
            self._schedule(FENCED, self._key(), 0)

    def move(self) -> None:
        from delaytasks import reschedule

        delay = self._delay()
        self._change("move", lambda topic, key: reschedule(topic, key, delay=delay), delay=delay)

    def run_now(self) -> None:
        from delaytasks import run_now

        self._change("run now", lambda topic, key: run_now(topic, key), delay=0)

    def replace(self) -> None:
        """Move a live job; schedule a new one under the key of an ended job."""
        from delaytasks import schedule

        delay = self._delay()
        self._change(
            "schedule",
            lambda t, k: schedule(t, key=k, delay=delay, body={"key": k}, on_conflict="replace"),
            delay=delay,
            again=True,
        )

    def _change(
        self, op: str, call: Callable[[str, str], Any], *, delay: float | None = None, again: bool = False
    ) -> None:
        if not self.recent:
            return
        topic, key, job, _ = self.random.choice(self.recent)
        self.logged(op, topic, key, lambda: call(topic, key), job=None if again else job, delay=delay)

    def _new(self) -> tuple[str, str, float]:
        (topic,) = self.random.choices(list(TOPICS), list(TOPICS.values()))
        return topic, self._key(), self._delay()

    def _key(self) -> str:
        return f"{self.name}-{os.getpid()}-{self.count}-{self.random.randrange(10**9)}"

    def _delay(self) -> float:
        return round(self.random.uniform(0, LONGEST_DELAY_SECONDS), 3)


def _ms(delay: float | None) -> int | None:
    return None if delay is None else int(delay * 1000)


def _read(answer: Any, job: int | None) -> tuple[str, int | None, int | None]:
    """Return (said, job, due in ms) for the result of a call: a Job or a CancelResult."""
    if isinstance(answer, str):
        return str(answer), job, None
    return ("scheduled" if answer.is_new else "moved"), answer.id, answer.due_ms


def _refusals() -> tuple[type[Exception], ...]:
    from delaytasks import exceptions

    return (exceptions.Reserved, exceptions.NotLive, exceptions.KeyIsLive)


def main(name: str, seed: str, per_second: str) -> None:
    django.setup()
    caller = Caller(name, int(seed), Ledger(Path(os.environ["TORTURE_LEDGER"]), f"caller-{name}"))
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    interval = 1 / float(per_second)
    print("calling", flush=True)
    while not stopping.wait(interval):
        caller.call()


if __name__ == "__main__":
    main(*sys.argv[1:])
