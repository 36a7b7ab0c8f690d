"""Series and schedules that are started, cancelled and advanced at the same time."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from delaytasks import cancel, schedule
from delaytasks.exceptions import KeyIsLive, ScheduleExists
from delaytasks.models import Job, Schedule
from delaytasks.recurrence import maker, schedules
from delaytasks.recurrence.definition import Definition

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_both, pytest.mark.usefixtures("tick")]
CALLERS = 4


def at_once(*acts: Callable[[], Any]) -> list[Any]:
    """Call the functions in a thread each. Return their results, or the exceptions that they raised."""
    results, ready = [], threading.Barrier(len(acts))

    def call(act: Callable[[], Any]) -> None:
        try:
            ready.wait(10)
            results.append(act())
        except Exception as error:
            results.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=call, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return results


def start(**terms: Any) -> Job:
    return schedule("tick", "order:1", **{"period": 60, "repeat": None, "delay": 60} | terms)


@pytest.mark.parametrize(("mode", "started", "refused"), [("reject", 1, 3), ("keep", 1, 0), ("replace", 4, 0)])
def test_of_callers_who_start_one_series_each_gets_a_true_answer(mode, started, refused):
    results = at_once(*[lambda: start(on_conflict=mode)] * CALLERS)
    assert sum(isinstance(result, KeyIsLive) for result in results) == refused
    assert sum(isinstance(result, Job) and result.is_new for result in results) == started
    assert Schedule.objects.count() == 1
    assert Job.objects.filter(ended_at=None).count() == 1


def test_of_callers_who_create_one_schedule_one_does():
    results = at_once(*[lambda: schedules.create(Definition("tick", "tick", every=60))] * CALLERS)
    assert sum(isinstance(result, ScheduleExists) for result in results) == CALLERS - 1
    assert Schedule.objects.count() == 1


def test_of_callers_who_define_one_schedule_all_do():
    results = at_once(*[lambda: schedules.define(Definition("tick", "tick", every=60))] * CALLERS)
    assert [result.name for result in results] == ["tick"] * CALLERS
    assert Job.objects.filter(ended_at=None).count() == 1


def test_after_a_cancel_no_maker_makes_another_job(db_clock):
    for _ in range(10):
        start(period=1)
        db_clock.advance(seconds=65)
        at_once(lambda: maker.make_due("default"), lambda: cancel("tick", "order:1"), lambda: maker.make_due("default"))
        assert (Schedule.objects.count(), Job.objects.filter(ended_at=None).count()) == (0, 0)
