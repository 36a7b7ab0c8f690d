"""Metrics of several databases: each series once, and a pause in one database hides no backlog in another."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import OperationalError

from delaytasks import databases, schedule
from delaytasks.models import Schedule, Topic
from delaytasks.monitoring import job_collector
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from tests.support.databases import SECOND

pytestmark = [
    pytest.mark.only_on("sqlite"), pytest.mark.django_db(databases=["default", SECOND]),
    pytest.mark.usefixtures("second_database"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _both_have_jobs(settings: Any) -> Iterator[None]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", SECOND], "TOPICS": {"t": {}}}
    yield
    databases.clock.cache_clear()


def read(name: str) -> list[tuple[dict[str, str], float]]:
    """Return (labels, value) of each series of this name, of one topic only."""
    cache.clear()
    numbers = [job_collector._read(using) for using in databases.aliases()]
    samples = [sample for family in job_collector._metrics(numbers) for sample in family.samples]
    samples = [each for each in samples if each.name == f"delaytasks_{name}" and each.labels.get("topic", "t") == "t"]
    return [(each.labels, each.value) for each in samples]


def test_a_schedule_in_both_databases_has_one_series_with_the_earlier_run() -> None:
    definition = Definition(name="report", topic="t", cron="0 3 * * *", tz="UTC")
    rows = [schedules.define(definition, using=using) for using in ("default", SECOND)]
    later = rows[0].made_until + timedelta(days=1)
    Schedule.objects.using("default").update(made_until=later)
    expected = [({"schedule": "report"}, rows[1].made_until.timestamp())]
    assert read("schedule_next_run_timestamp_seconds") == expected


def test_a_pause_in_one_database_hides_no_backlog_in_another(db_clock: Any) -> None:
    for using in ("default", SECOND):
        Topic.objects.using(using).create(name="t", paused=using == "default")
    schedule("t", "a", delay=0, using="default")
    db_clock.advance(seconds=60)
    schedule("t", "a", delay=0, using=SECOND)
    db_clock.advance(seconds=30)
    assert (read("paused"), read("oldest_ready_seconds")) == ([({"topic": "t"}, 0)], [({"topic": "t"}, 30)])
    Topic.objects.using(SECOND).update(paused=True)
    assert (read("paused"), read("oldest_ready_seconds")) == ([({"topic": "t"}, 1)], [({"topic": "t"}, 90)])
    assert read("ready_jobs") == [({"topic": "t"}, 2)]


def test_while_a_database_is_missing_the_counters_of_all_of_them_are(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    cache.clear()
    found = {using: job_collector._read(using) for using in databases.aliases()}
    monkeypatch.setattr(job_collector, "_read", lambda using: found[using] or fail())
    assert "delaytasks_repaired" in {family.name for family in job_collector.JobCollector().collect()}
    found[SECOND] = None
    names = {family.name for family in job_collector.JobCollector().collect()}
    assert "delaytasks_workers" in names
    assert "delaytasks_repaired" not in names


def fail() -> Any:
    raise OperationalError
