"""Fixtures: jobs in every state, created directly, so that these tests need no worker."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from delaytasks import handlers
from delaytasks.bulk import changes
from delaytasks.clock import to_ms
from delaytasks.db import transitions
from delaytasks.db.transitions import Event
from delaytasks.models import Job, Topic
from delaytasks.states import ENDED, Outcome, State

TOPIC = "test.close"
NOW = datetime(2030, 1, 1, tzinfo=UTC)  # the initial time of db_clock


def close_order(job: object) -> None:
    """Close an order that nobody paid.

    Its stock goes back on sale.
    """


@pytest.fixture(autouse=True)
def _topic(db: None, db_clock: Any) -> Iterator[None]:
    """A handled topic with its row, and a database clock set to NOW."""
    handlers.handler(TOPIC, ttr=60, max_attempts=3)(close_order)
    Topic.objects.get_or_create(name=TOPIC)
    yield
    handlers.unregister(TOPIC)


@pytest.fixture
def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody works on bulk changes but the test."""
    monkeypatch.setattr(changes, "send", lambda pk, using: None)


def make_job(key: str, state: State = State.DELAYED, *, due: timedelta = timedelta(hours=1), **columns: Any) -> Job:
    """Create a job in `state` (READY: delayed and overdue), due `due` after NOW."""
    if state is State.READY:
        state, due = State.DELAYED, -abs(due)
    if state is State.RESERVED:
        due = -abs(due)
        columns = {
            "attempt": 1,
            "reserved_at": NOW,
            "lease_until": NOW + timedelta(minutes=1),
            "worker": "w1",
        } | columns
    if state in ENDED:
        columns = {"ended_at": NOW, "died_at": NOW if state is State.DEAD else None} | columns
    defaults = {"topic": TOPIC, "ttr_ms": 60_000, "created_at": NOW - timedelta(hours=2), "body": {}}
    return Job.objects.create(key=key, state=state, due_at=NOW + due, **defaults | columns)


def make_event(job: Job, outcome: Outcome, **columns: Any) -> None:
    due_ms = to_ms(job.due_at)
    defaults = {"attempt": job.attempt, "due_ms": due_ms, "done_ms": due_ms + 500}
    transitions.record("default", [Event(job_id=job.pk, outcome=outcome, **defaults | columns)])


@pytest.fixture
def one_of_each() -> dict[State, Job]:
    """A job in each state, under keys "one:<state>"."""
    return {state: make_job(f"one:{state.word}", state) for state in State}


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Create a client of a staff user with only these permissions; .user is the user."""

    def make(*permissions: str) -> Client:
        user = User.objects.create_user(f"anna{User.objects.count()}", password="x", is_staff=True)
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        client = Client()
        client.force_login(user)
        client.user = user
        return client

    return make
