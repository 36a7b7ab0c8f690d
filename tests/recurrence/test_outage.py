"""An outage of three hours under each policy for missed runs: what runs afterwards, and that each run has its job."""

from collections import Counter
from datetime import timedelta

import pytest
from django.core.cache import cache

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
    cache.clear()
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
