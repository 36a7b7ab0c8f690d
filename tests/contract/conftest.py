"""Contract tests commit for real: what is told to the mirror on commit must be told.

`stage` runs mover and worker in the test's own process, step by step; `db_clock` moves the time.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from delaytasks import bells, claiming, conf, engine, sweeper, topics, worker
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.mover import Mover
from delaytasks.places import Places


@pytest.fixture(autouse=True)
def _committing_database(transactional_db: None) -> None:
    pass


class Stage:
    """Mover and worker by hand. `rung` holds the topics whose bell was rung and not answered yet."""

    using = "default"

    def __init__(self) -> None:
        self.rung: list[str] = []
        self.registered: list[str] = []
        self.calls: list[tuple[str, Any]] = []
        self.bells = bells.Bells(self.using, lambda topic, queue: self.rung.append(topic))
        self.mover = Mover(
            lambda: engine.places(self.using), lambda: engine.now_ms(self.using), topics.handled, self.bells.ring, 1
        )

    def handler(self, topic: str, **terms: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Like delaytasks.handler, for the length of the test."""
        self.registered.append(topic)
        return topics.handler(topic, **terms)

    def recorder(self, topic: str, **terms: Any) -> list[str]:
        """A handler that only writes down the keys of its jobs; the list that it writes to."""
        keys: list[str] = []
        self.handler(topic, **terms)(lambda job: keys.append(job.key))
        return keys

    def run(self, topic: str, *, stopping: Callable[[], bool] = lambda: False, worker_name: str = "w1") -> int:
        return worker.run_topic(topic, using=self.using, worker=worker_name, ring=self.bells.ring, stopping=stopping)

    def take(self, topic: str, count: int = 10) -> list[Any]:
        """Reserve and claim, and leave it at that: what a worker holds before its handler runs."""
        self.mover.move_due()
        return claiming.take(engine.places(self.using), topic, count, using=self.using, worker="w2")

    def go(self, rounds: int = 20) -> None:
        """Move and run until nothing rings any more."""
        for _ in range(rounds):
            self.mover.move_due()
            answered, self.rung = set(self.rung), []
            if not answered:
                return
            for topic in sorted(answered):
                self.run(topic)
        raise AssertionError(f"still ringing after {rounds} rounds: {self.rung}")

    def guard(self) -> int:
        """The guard of one second; its lock is gone by then."""
        from delaytasks import mirror

        found = mirror.connect()
        if found is not None and not found.down:
            found.not_alone("guard")
        return sweeper.guard(self.using)


@pytest.fixture
def stage(places: Places, db_clock: Any, settings: Any) -> Iterator[Stage]:
    """The engine by hand, with a settable clock; once with the mirror, once without."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}
    bells.forget_terms()
    worker._paces.clear()
    sweeper._said_looked.clear()  # or a guard has a statement more in the moment in which ten seconds are over
    stage = Stage()
    if conf.get().redis_url:
        stage.guard()  # the first guard fills the mirror and remembers which Redis it is
    yield stage
    for topic in stage.registered:
        topics.forget(topic)
    topics.clashes.clear()
    bells.forget_terms()


def outcomes(key: str) -> list[str]:
    """What happened to the jobs of a key, in order."""
    return list(JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", flat=True))


def state_of(key: str) -> str:
    """The stored state of the newest job of a key, as a word."""
    from delaytasks.states import State

    return State(Job.objects.filter(key=key).latest("id").state).word


class Boom(Exception):
    """What a handler raises."""


def effect(name: str) -> None:
    """Something a handler does in the database."""
    Topic.objects.create(name=name)


def effects() -> list[str]:
    return sorted(Topic.objects.filter(name__startswith="effect").values_list("name", flat=True))
