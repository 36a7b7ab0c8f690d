"""A test sees its own declarations alone. The database's clock stands until it is advanced."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection

from delaytasks import handlers
from delaytasks.models import Job
from delaytasks.timeouts import applied_declarations, declarations, receivers
from delaytasks.timeouts.declarations import Declaration
from delaytasks.timeouts.triggers import marks, statements
from delaytasks.worker import completion

START = datetime(2030, 1, 1, tzinfo=UTC)  # the initial time of db_clock
HALF_HOUR = timedelta(minutes=30)


@pytest.fixture(autouse=True)
def _own_declarations() -> Iterator[None]:
    of_apps = declarations.registered()  # those of the example shop
    handled = handlers.handled()
    for each in of_apps:
        declarations.unregister(each.topic)
    receivers.disconnect()
    marks._positions.clear()
    yield
    for each in declarations.registered():
        declarations.unregister(each.topic)
        completion.after_end.pop(each.topic, None)
    for topic in set(handlers.handled()).difference(handled):  # also of a declaration that a test has unregistered
        handlers.unregister(topic)
    for each in of_apps:
        declarations.add(each)
    receivers.disconnect()
    receivers.connect_all()


@pytest.fixture
def declare() -> Callable[..., Declaration]:
    """Register a declaration without a handler, and count it as applied."""

    def declare(model: Any, on: str = "created_at", topic: str = "declared.close", **options: Any) -> Declaration:
        new = Declaration(topic, model, on, **options)
        declarations.add(new)
        return new

    return declare


@pytest.fixture
def automatic() -> Iterator[None]:
    with applied_declarations.automatically():
        yield


@pytest.fixture
def remove_triggers(transactional_db: None) -> Iterator[None]:
    """Remove all triggers at the end of the test."""
    yield
    statements.remove_all(connection)


def live() -> dict[str, datetime]:
    """Return the due times of the live jobs by key."""
    return {job.key: job.due_at for job in Job.objects.filter(ended_at=None).order_by("key")}


@pytest.fixture
def in_another_session() -> Iterator[Callable[[str], Callable[[], None]]]:
    """Execute SQL in a transaction of another connection (PostgreSQL). It stays open until the test ends.

    Returns a function that commits it before.
    """
    others = []

    def execute(sql: str) -> Callable[[], None]:
        other = connection.copy()
        others.append(other)
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute(sql)
        return other.commit

    yield execute
    for other in others:
        other.rollback()
        other.close()
