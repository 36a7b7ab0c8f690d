"""The engine in the test's own process: `stage` runs mover and worker step by step; `db_clock` sets the time.

Tests that use `stage` commit their transactions, because the mirror is updated after the commit.
"""

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from delaytasks import conf, databases, handlers, mirror, topics
from delaytasks.exceptions import MirrorDown
from delaytasks.maintenance import guard
from delaytasks.mirror.base import DueIndex
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.worker import claim, dispatch, group, runner, ttr
from delaytasks.worker.mover import Mover
from delaytasks.worker.sender import UNKNOWN_MS


class Stage:
    """Mover and worker, run step by step.

    dispatched   the dispatched topics that have not been run yet
    seconds      the time by which the runner measures its runs. However busy the machine is, only a test changes it
    """

    using = "default"
    seconds = 0.0

    def __init__(self) -> None:
        self.dispatched: list[str] = []
        self.registered: list[str] = []
        self.calls: list[tuple[str, Any]] = []
        self.dispatcher = dispatch.Dispatcher(self.using, lambda topic, queue: self.dispatched.append(topic))
        self.mover = Mover(
            lambda: mirror.choose(self.using),
            lambda: databases.now_ms(self.using),
            lambda: topics.handled(self.using),
            self.dispatcher.dispatch,
            1,
        )

    def handler(self, topic: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register a handler until the end of the test."""
        self.registered.append(topic)
        return handlers.handler(topic, **options)

    def recorder(self, topic: str, **options: Any) -> list[str]:
        """Register a handler that records the keys of its jobs. Return the list of keys."""
        keys: list[str] = []
        self.handler(topic, **options)(lambda job: keys.append(job.key))
        return keys

    def run(
        self, topic: str, *, stopping: Callable[[], bool] = lambda: False, worker_name: str = "w1",
        message_ms: int = UNKNOWN_MS,
    ) -> int:  # fmt: skip
        return runner.run_topic(
            topic, using=self.using, worker=worker_name, dispatch_topic=self.dispatcher.dispatch, stopping=stopping,
            message_ms=message_ms,
        )  # fmt: skip

    def take(self, topic: str, count: int = 10) -> list[Any]:
        """Reserve and claim at most `count` jobs without running them, as the worker "w2". Return the claimed jobs."""
        self.mover.move_due()
        return claim.take(mirror.choose(self.using), topic, count, using=self.using, worker="w2")

    def go(self, rounds: int = 20) -> None:
        """Move and run jobs until no topic is dispatched."""
        for _ in range(rounds):
            self.mover.move_due()
            topics, self.dispatched = set(self.dispatched), []
            if not topics:
                return
            for topic in sorted(topics):
                self.run(topic)
        raise AssertionError(f"topics are still dispatched after {rounds} rounds: {self.dispatched}")

    def guard(self) -> int:
        """Delete the lock of the guard's last run, as if a second had passed, and run the guard. Return its result."""
        from delaytasks import mirror

        connected = mirror.connect()
        if connected is not None and not connected.down:
            with contextlib.suppress(MirrorDown):
                connected._redis.ask(lambda c: c.delete(connected.keys.lock("guard")))
        return guard.guard(self.using)


@pytest.fixture
def stage(
    transactional_db: None, due_index: DueIndex, db_clock: Any, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Stage]:
    """The engine, run step by step with settable clocks. Tests run once with the mirror and once without it."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}
    runner._paces.clear()
    guard._heartbeats.clear()  # otherwise the guard would make an extra query ten seconds after its last heartbeat
    stage = Stage()
    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: stage.seconds))
    monkeypatch.setattr(group, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(claim, "TAKE_SECONDS", 60.0)
    if conf.get().redis_url:
        stage.guard()  # the first guard fills the mirror and stores the identity of Redis
    yield stage
    for topic in stage.registered:
        handlers.unregister(topic)
    handlers.clashes.clear()
    topics._built.clear()  # of targets in rows, which the settings of a test made usable


@pytest.fixture
def ttr_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TTR is not enforced in this process, and a test may enforce it until its end."""
    for name in (
        "_enforced",
        "_watched",
        "_grace_seconds",
        "_before_interrupt",
        "_armed",
        "_stays_armed",
        "_deadline",
        "_timer_until",
        "_watched_until",
    ):
        monkeypatch.setattr(ttr, name, getattr(ttr, name))
    assert not ttr._enforced, "an earlier test left it on"


def outcomes(key: str) -> list[str]:
    """Return the outcomes of all events of a key, oldest first."""
    return list(JobEvent.objects.filter(job__key=key).order_by("id").values_list("outcome", flat=True))


def state_of(key: str) -> str:
    """Return the stored state of the newest job of a key, as a word."""
    from delaytasks.states import State

    return State(Job.objects.filter(key=key).latest("id").state).word


class Boom(Exception):
    """An exception that a handler raises."""


def effect(name: str) -> None:
    """Write a row to the database, as the effect of a handler."""
    Topic.objects.create(name=name)


def effects() -> list[str]:
    return sorted(Topic.objects.filter(name__startswith="effect").values_list("name", flat=True))
