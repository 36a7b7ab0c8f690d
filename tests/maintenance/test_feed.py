"""The feeder adds each job once, when it comes within the horizon."""

import threading
from collections import Counter

import pytest
from django.db import connection, transaction

from delaytasks import conf, mirror, schedule, schedule_many
from delaytasks.maintenance import feed
from delaytasks.mirror.redis.index import Mirror
from delaytasks.models import Job

pytestmark = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)
SWEEP_SECONDS = 30


def test_each_job_is_fed_once_as_the_sweeps_go_by(stage, db_clock, monkeypatch) -> None:
    stage.recorder("t")
    beyond = conf.get().horizon_seconds + 400
    schedule_many({"topic": "t", "key": f"{n}", "delay": beyond + n} for n in range(120))
    fed: Counter[int] = Counter()
    feed_of_mirror = Mirror.feed

    def counting_feed(index, entries, **options):
        entries = list(entries)
        fed.update(entry.id for entry in entries)
        return feed_of_mirror(index, entries, **options)

    monkeypatch.setattr(Mirror, "feed", counting_feed)
    for _ in range(30):
        feed.feed(mirror.connect(), "default")
        db_clock.advance(seconds=SWEEP_SECONDS)
    assert set(fed) == set(Job.objects.values_list("id", flat=True))
    assert set(fed.values()) == {1}
    assert mirror.connect().due_count() == 120


@pytest.mark.only_on("postgresql")
def test_a_job_that_commits_after_its_time_was_fed_is_in_the_mirror(stage, db_clock) -> None:
    stage.recorder("t")

    def feed_meanwhile() -> None:
        feed.feed(mirror.connect(), "default")
        connection.close()

    with transaction.atomic():
        schedule("t", "late", delay=conf.get().horizon_seconds + 60)
        db_clock.advance(seconds=90)
        feeder = threading.Thread(target=feed_meanwhile)
        feeder.start()
        feeder.join(30)
        assert mirror.connect().due_count() == 0
    assert mirror.connect().due_count() == 1
