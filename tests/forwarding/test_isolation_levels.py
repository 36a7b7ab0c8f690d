"""Holds under REPEATABLE READ: PostgreSQL refuses to change a row that another transaction has changed meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import databases, schedule
from delaytasks.forwarding import TargetDown, forward, holds
from delaytasks.models import Topic
from delaytasks.worker import runner
from tests.support.locks import committed_meanwhile

from ..db.test_isolation_levels import alter
from ..support.stage import outcomes

pytestmark = [
    pytest.mark.only_on("postgresql"),
    pytest.mark.parametrize("due_index", ["no-mirror"], indirect=True),
]


@pytest.fixture(autouse=True)
def _repeatable_read(transactional_db: None) -> Iterator[None]:
    alter("SET default_transaction_isolation = %s", ["repeatable read"])
    yield
    alter("RESET default_transaction_isolation")


def changed_meanwhile(**values: Any) -> AbstractContextManager[None]:
    """Change the topic's row in another transaction, which is committed as soon as the block waits for the row."""
    return committed_meanwhile(lambda: Topic.objects.filter(name="t").update(**values))


def hold() -> None:
    holds.hold("default", "t", "away", None)


def release() -> None:
    holds.release("default", "t")


@pytest.mark.parametrize(("call", "is_held"), [(hold, True), (release, False)])
def test_a_hold_begins_and_ends_while_another_run_changes_it(
    stage: Any, db_clock: Any, call: Callable[[], None], is_held: bool
) -> None:
    Topic.objects.create(name="t", held_since=databases.now("default"))
    with changed_meanwhile(held_why="changed"):
        call()
    assert (Topic.objects.get(name="t").held_since is not None) is is_held


def test_a_run_that_another_one_has_forestalled_is_not_the_probe(stage: Any, db_clock: Any) -> None:
    now = databases.now("default")
    Topic.objects.create(name="t", held_since=now, held_until=now)
    with changed_meanwhile(held_until=now + timedelta(seconds=60)):
        assert holds.turn("default", "t", 60_000) is holds.Turn.NONE


def test_what_was_confirmed_before_the_hold_is_not_sent_again(stage: Any, db_clock: Any) -> None:
    Topic.objects.create(name="t")
    sent: list[list[str]] = []
    changes: list[Any] = []

    class Target:
        max_batch = 2

        def deliver(self, message: Any, timeout_seconds: float) -> None:
            raise AssertionError

        def deliver_many(self, messages: Any, timeout_seconds: float, report: Any) -> None:
            sent.append([message.key for message in messages])
            if len(sent) == 1:
                changes.append(changed_meanwhile(held_why="away"))
                changes[0].__enter__()
            report(messages[0], None)
            for message in messages[1:]:
                report(message, TargetDown("away"))

    stage.registered.append("t")
    forward("t", Target())
    for key in ("a", "b"):
        schedule("t", key, delay=0)
    runner._paces["t"] = runner.Pace(size=2)
    stage.go()
    changes[0].__exit__(None, None, None)
    assert (sent, outcomes("a"), outcomes("b")) == ([["a", "b"]], ["finished"], ["snoozed"])
