"""Other jobs of the topic whose keys begin like those of a schedule or series are left alone, and change nothing."""

from datetime import timedelta

import pytest

from delaytasks import schedule
from delaytasks.models import Job, Schedule
from delaytasks.recurrence import schedules
from delaytasks.states import State

from .conftest import START, run_until

pytestmark = pytest.mark.django_db(transaction=True)
HALF_A_MINUTE_LATER = START + timedelta(hours=9, seconds=30)


def run_a_minute_late(stage, db_clock) -> None:
    db_clock.advance(seconds=9 * 3600 + 60)
    stage.guard()
    stage.go()


@pytest.mark.on_both
def test_a_later_job_does_not_make_a_run_of_a_series_missed(stage, db_clock):
    ran = stage.recorder("tick")
    schedule("tick", "order:1", cron="0 9 * * *")
    schedule("tick", "order:1#42", due_at=HALF_A_MINUTE_LATER)
    run_a_minute_late(stage, db_clock)
    assert sorted(ran) == ["order:1#2030-01-01T09:00:00", "order:1#42"]


@pytest.mark.on_both
def test_a_later_job_does_not_make_a_run_of_a_schedule_missed(define, stage, db_clock):
    ran = stage.recorder("tick")
    define("info", every=None, cron="0 9 * * *")
    schedule("tick", "info@4you.example", due_at=HALF_A_MINUTE_LATER)
    run_a_minute_late(stage, db_clock)
    assert sorted(ran) == ["info@2030-01-01T09:00:00", "info@4you.example"]


def test_a_running_job_is_not_the_previous_run(define, stage, db_clock):
    stage.recorder("tick", ttr=3600)
    schedule("tick", "info@4you.example", delay=0)
    (_held,) = stage.take("tick")
    define("info", every=60)
    run_until(stage, db_clock, START + timedelta(seconds=61), step_seconds=61)
    assert list(Job.objects.filter(state=State.FINISHED).values_list("key", flat=True)) == ["info@2030-01-01T00:01:00"]


def test_a_job_is_not_cancelled_by_a_pause(stage, db_clock):
    stage.recorder("tick")
    schedule("tick", "cust:1", cron="0 9 * * *")
    stranger = schedule("tick", "cust:1#2030-01-05", due_at=START + timedelta(days=4))
    schedules.pause(Schedule.objects.get().name)
    stranger.refresh_from_db()
    assert stranger.state == State.DELAYED
