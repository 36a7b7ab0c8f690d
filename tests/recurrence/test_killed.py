"""Makers, edits, pauses and deletions in a process that is killed (SIGKILL) at each of their statements and commits.

Whatever it did is whole or absent: afterwards each instant has been made once, and none is left out.
"""

import os
import signal
import warnings
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

from delaytasks.models import Job, Schedule
from delaytasks.recurrence import maker, schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State

from .conftest import START

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_both, pytest.mark.usefixtures("tick")]
EVERY, STEP = 30, 60  # in seconds: of the schedule, and of the clock between two kills


def killed_at(number: int, act: Callable[[], Any]) -> bool:
    """Call `act` in a process that is killed before its statement or commit `number`. False: it ended before."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's, of a fork beside threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            _act_until(number, act)
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "the child failed otherwise"
    return status != 0


def _act_until(number: int, act: Callable[[], Any]) -> None:
    """Call `act` with a connection of this process. A commit is two places: before it and after it."""
    parents, connection.connection = connection.connection, None  # kept, so that nothing closes the parent's
    commit, count = BaseDatabaseWrapper._commit, 0  # type: ignore[attr-defined]

    def reach() -> None:
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)

    def execute(run: Any, *arguments: Any) -> Any:
        reach()
        return run(*arguments)

    def commit_and_count(self: Any) -> Any:
        reach()
        result = commit(self)
        reach()
        return result

    BaseDatabaseWrapper._commit = commit_and_count  # type: ignore[attr-defined]
    connection.ensure_connection()
    with connection.execute_wrapper(execute):
        act()
    assert parents is not None


def define(**options: Any) -> Schedule:
    return schedules.define(Definition("s", "tick", **{"every": EVERY, "start": START} | options))


def made() -> list[str]:
    """Return the time of day of each firing, without those that a change has withdrawn; in order."""
    jobs = Job.objects.filter(key__startswith="s@").exclude(state=State.CANCELLED).order_by("key")
    return [job.key[-8:] for job in jobs]


def expected() -> list[str]:
    """Return the time of day of each instant up to the end of the schedule's chain."""
    count = (Schedule.objects.get().made_until - START) // timedelta(seconds=EVERY)
    return [(START + timedelta(seconds=EVERY * n)).strftime("%H:%M:%S") for n in range(1, count + 1)]


def kill_at_each(act: Callable[[int], Callable[[], Any]], check: Callable[[], None], db_clock: Any) -> int:
    """Kill `act(n)` at its statement n, for each n that it has. Return how many these are."""
    number = 0
    while True:
        number += 1
        was_killed = killed_at(number, act(number))
        check()
        if not was_killed:
            return number - 1
        maker.make_due("default")  # another one, at the same time
        check()
        db_clock.advance(seconds=STEP)


def check_instants() -> None:
    assert made() == expected()


def test_a_maker_that_is_killed_anywhere_loses_and_doubles_nothing(db_clock):
    define()
    db_clock.advance(seconds=STEP)
    assert kill_at_each(lambda n: lambda: maker.make_due("default"), check_instants, db_clock) >= 6
    assert len(made()) >= 15


def test_an_edit_that_is_killed_anywhere_loses_and_doubles_nothing(db_clock):
    define()
    edits = kill_at_each(lambda n: lambda: define(body={"n": n}), check_instants, db_clock)
    assert edits >= 10
    assert Schedule.objects.get().body == {"n": edits + 1}


def test_a_change_of_the_times_is_whole_or_absent(db_clock):
    define(every=None, cron="0 * * * *")

    def check() -> None:
        is_hourly = Schedule.objects.get().cron == "0 * * * *"
        (ahead,) = Job.objects.live()
        assert ahead.key.endswith("01:00:00" if is_hourly else "00:30:00")

    assert kill_at_each(lambda n: lambda: define(every=None, cron="30 * * * *"), check, db_clock) >= 10


def test_a_deletion_is_whole_or_absent(db_clock):
    def delete() -> None:
        schedules.delete(schedules.find("s"))

    def check() -> None:
        rows, jobs = Schedule.objects.count(), Job.objects.live().filter(due_at__gt=START).count()
        assert rows == jobs

    number = 0
    is_killed = True
    while is_killed:
        number += 1
        define(every=3600)
        is_killed = killed_at(number, delete)
        check()
    assert number >= 6
    assert not Schedule.objects.exists()
