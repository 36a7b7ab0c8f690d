"""An outage of three hours, and clocks that jump, under each policy for missed runs.

What runs afterwards, and that each instant has one job. A database that is promoted has a clock of its own.
"""

from collections import Counter
from datetime import timedelta

import pytest

from delaytasks.clock import to_ms
from delaytasks.models import Job, JobEvent
from delaytasks.recurrence import maker, statistics

from .conftest import START, run_until

BEFORE, AFTER = START + timedelta(minutes=5), START + timedelta(hours=3, minutes=5)
ALL = ["00:30", "01:00", "01:30", "02:00", "02:30", "03:00"]
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.on_both]


@pytest.mark.parametrize(
    ("options", "ran", "reasons"),
    [
        ({"missed": "all"}, ALL, {}),
        ({"missed": "last"}, ["03:00"], {"missed": 5}),
        ({"missed": "none"}, [], {"late": 6}),
        ({"missed": "all", "within": 3600}, ["02:30", "03:00"], {"late": 4}),
        ({"missed": "last", "within": 3600}, ["03:00"], {"late": 4, "missed": 1}),
        ({"missed": "last", "within": 60}, [], {"late": 6}),
        ({"missed": "none", "within": 3600}, ["02:30", "03:00"], {"late": 4}),
    ],
    ids=str,
)
def test_outage_of_three_hours(define, stage, db_clock, options, ran, reasons):
    keys = stage.recorder("tick")
    define(every=None, cron="*/30 * * * *", **options)
    run_until(stage, db_clock, BEFORE)
    db_clock.advance(seconds=3 * 3600)  # no mover, no maker, no worker
    maker.make_due("default")
    stage.go()
    assert sorted(key[-8:-3] for key in keys) == ran
    assert Counter(JobEvent.objects.filter(outcome="skipped").values_list("reason", flat=True)) == reasons
    assert Job.objects.filter(key__startswith="tick@").exclude(ended_at=None).count() == len(ALL)
    found = statistics.recent("default", None).schedules[0]
    assert (found.ran, found.missed) == (len(ran), sum(reasons.values()))

    run_until(stage, db_clock, AFTER + timedelta(minutes=30))
    assert keys[-1:] == ["tick@2030-01-01T03:30:00"]  # and then it goes on in time
    assert len(keys) == len(ran) + 1


@pytest.mark.parametrize(
    ("jump_seconds", "every", "missed", "skipped"),
    [
        (20, 10, "all", {}), (20, 10, "last", {"missed": 1}), (20, 10, "none", {}),
        (3600, 300, "all", {}), (3600, 300, "last", {"missed": 11}), (3600, 300, "none", {"late": 11}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("back", [True, False])
def test_a_clock_that_jumps_ahead_makes_each_instant_once(
    define, stage, db_clock, jump_seconds, every, missed, skipped, back
):
    keys = stage.recorder("tick")
    define(every=every, missed=missed, running="allow")
    before, end = START + timedelta(seconds=2 * every), START + timedelta(seconds=jump_seconds + 4 * every)
    run_until(stage, db_clock, before, step_seconds=every)
    db_clock.advance(seconds=jump_seconds)
    maker.make_due("default")
    stage.go()
    if back:
        db_clock.set(to_ms(before))
    run_until(stage, db_clock, end, step_seconds=every)
    instants = [START + timedelta(seconds=every * number) for number in range(1, jump_seconds // every + 5)]
    jobs = Job.objects.filter(topic="tick", due_at__lte=end).values_list("key", flat=True)
    assert sorted(jobs) == [f"tick@{instant:%Y-%m-%dT%H:%M:%S}" for instant in instants]
    assert Counter(JobEvent.objects.filter(outcome="skipped").values_list("reason", flat=True)) == skipped
    assert len(set(keys)) == len(keys) == len(instants) - sum(skipped.values())
