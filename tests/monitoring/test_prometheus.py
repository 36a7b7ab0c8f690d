"""Metrics for Prometheus: attempts by topic and outcome, numbers from the database, a bounded number of labels."""

import threading
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connections
from django.test import RequestFactory
from django.utils import timezone
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from delaytasks import Snooze, clock, databases, handlers, schedule, schedule_many
from delaytasks.db import counts
from delaytasks.forwarding import Webhook, forward, holds
from delaytasks.maintenance import guard, liveness, sweep
from delaytasks.models import MirrorMark, Topic
from delaytasks.monitoring import forecast, job_collector, prometheus
from delaytasks.worker import completion

from ..support.servers import wait_until
from ..support.stage import Boom


@pytest.fixture(autouse=True)
def _fresh(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests do not count."""
    monkeypatch.setattr(completion, "observers", [prometheus.observe])
    monkeypatch.setattr(prometheus, "_seen_topics", set())
    by_schedule = prometheus.SCHEDULE_SKIPPED, prometheus.SCHEDULE_DRIFT
    for metric in (prometheus.LATENESS, prometheus.DURATION, *prometheus.OUTCOMES.values(), *by_schedule):
        metric.clear()


def scrape(*, cached: bool = False) -> dict[tuple[str, str], float]:
    """Return (name of the sample, topic or "") -> value, without the buckets, as Prometheus reads them.

    cached   use numbers of the last scrape
    """
    if not cached:
        cache.clear()
    text = prometheus.view(RequestFactory().get("/metrics")).content.decode()
    return {
        (sample.name, sample.labels.get("topic", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if "le" not in sample.labels and sample.name.startswith("delaytasks_")
    }


def test_attempts_are_counted_by_topic_and_outcome(stage, db_clock):
    def fail(job: Any) -> None:
        raise Boom

    stage.handler("good")(lambda job: None)
    stage.handler("late", max_attempts=1)(lambda job: Snooze(60))
    stage.handler("bad", max_attempts=2)(fail)
    for topic in ("good", "good", "late", "bad"):
        schedule(topic, f"{topic}:{len(topic)}:{db_clock.advance(ms=1)}", delay=0)
    stage.go()
    db_clock.advance(seconds=59)
    stage.go()
    found = scrape()
    assert found["delaytasks_finished_total", "good"] == 2
    assert found["delaytasks_snoozed_total", "late"] == 1
    assert (found["delaytasks_failed_total", "bad"], found["delaytasks_dead_total", "bad"]) == (1, 1)
    assert found["delaytasks_duration_seconds_count", "bad"] == 2


def test_lateness_is_from_the_due_time_to_the_beginning(stage, db_clock):
    stage.recorder("t")
    schedule("t", "a", delay=1)
    db_clock.advance(seconds=3.5)
    stage.go()
    assert scrape()["delaytasks_lateness_seconds_sum", "t"] == 2.5


def test_an_attempt_that_exceeded_its_ttr_is_counted_once(stage, db_clock):
    stage.handler("t", ttr=1)(lambda job: None)
    schedule("t", "a", delay=0)
    stage.take("t")
    db_clock.advance(seconds=2)
    sweep.sweep()
    found = scrape()
    assert found["delaytasks_expired_total", "t"] == 1
    assert ("delaytasks_lateness_seconds_count", "t") not in found


def test_the_counters_of_a_known_topic_begin_at_0(stage):
    stage.recorder("t")
    assert scrape()["delaytasks_dead_total", "t"] == 0


def test_the_number_of_topics_is_bounded_and_known_topics_are_always_named(stage, monkeypatch):
    monkeypatch.setattr(prometheus, "MAX_TOPICS", 2)
    stage.recorder("known")
    labels = [prometheus.topic_label(topic) for topic in ("a", "b", "c", "a", "known", "d")]
    assert labels == ["a", "b", "other", "a", "known", "other"]


def test_a_metric_that_cannot_be_counted_does_not_disturb_the_jobs(stage, monkeypatch, caplog):
    monkeypatch.setattr(prometheus, "_observe", lambda outcome, job: 1 / 0)
    keys = stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    assert keys == ["a"]
    assert "an attempt was not counted" in caplog.text


def test_the_numbers_of_topics_come_from_the_database(stage, db_clock):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    schedule("t", "b", delay=600)
    Topic.objects.update_or_create(name="t", defaults={"paused": True})
    db_clock.advance(seconds=90)
    found = scrape()
    expected = {"ready_jobs": 1, "delayed_jobs": 1, "reserved_jobs": 0, "dead_jobs": 0, "paused": 1,
                "oldest_ready_seconds": 90}  # fmt: skip
    assert {name: found[f"delaytasks_{name}", "t"] for name in expected} == expected


def test_a_held_topic_is_named_until_its_hold_ends_or_no_probe_is_sent(stage, db_clock, request):
    forward("t", Webhook("https://receiver.test/"))
    request.addfinalizer(lambda: handlers.unregister("t"))
    schedule("t", "a", delay=0)
    held = [scrape()["delaytasks_held", "t"]]
    for seconds, why in [(0, "away"), (300, "still away"), (361, None)]:
        db_clock.advance(seconds=seconds)
        if why is not None:
            holds.hold("default", "t", why, 300)
        held.append(scrape()["delaytasks_held", "t"])
    assert held == [0, 1, 1, 0]


def test_a_topic_whose_target_a_handler_has_replaced_does_not_count_as_held(stage, db_clock):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    holds.hold("default", "t", "away", 300)
    assert scrape()["delaytasks_held", "t"] == 0


@pytest.mark.parametrize(("seconds", "ready", "at_least"), [(60, 200, 0), (0, counts.LEAST_CAP, 1)])
def test_many_jobs_are_counted_exactly_or_said_to_be_a_lower_bound(stage, monkeypatch, seconds, ready, at_least):
    for rows in ("FIRST_ROWS", "SURE_ROWS"):
        monkeypatch.setattr(counts, rows, 0)
    monkeypatch.setattr(forecast, "NOW_SECONDS", 0)
    monkeypatch.setattr(job_collector, "COUNT_SECONDS", seconds)
    stage.recorder("t")
    schedule_many([{"topic": "t", "key": str(n), "delay": 0} for n in range(200)])
    found = scrape()
    assert (found["delaytasks_ready_jobs", "t"], found["delaytasks_numbers_at_least", "t"]) == (ready, at_least)


def test_of_too_many_topics_those_with_old_ready_or_dead_jobs_are_named(stage, db_clock, monkeypatch):
    monkeypatch.setattr(job_collector, "MAX_TOPICS", 2)
    stage.handler("z.dead", max_attempts=1)(lambda job: 1 / 0)
    schedule("z.dead", "a", delay=0)
    stage.go()
    for topic in ("a.idle", "b.new", "y.waits"):
        stage.recorder(topic)
    schedule("y.waits", "a", delay=0)
    db_clock.advance(seconds=61)
    schedule("b.new", "a", delay=0)
    found = scrape()
    topics = {topic for name, topic in found if name == "delaytasks_ready_jobs"}
    left_out = len(handlers.known()) - 2
    assert (topics, found["delaytasks_topics_left_out", ""]) == ({"y.waits", "z.dead"}, left_out)
    assert found["delaytasks_oldest_ready_seconds", "y.waits"] == 61


def test_a_topic_that_is_forwarded_by_its_row_has_numbers(stage):
    target = {"kind": "celery", "task": "shop.tasks.close", "format": "json", "source": "/", "timeout": 10}
    Topic.objects.create(name="t", target=target)
    schedule("t", "a", delay=600)
    found = scrape()
    assert (found["delaytasks_delayed_jobs", "t"], found["delaytasks_database_up", ""]) == (1, 1)


def test_the_next_due_time_of_each_topic_is_that_of_its_first_job_to_come(stage, db_clock):
    stage.recorder("t")
    stage.recorder("idle")
    for key, delay in (("overdue", 0), ("second", 700), ("first", 600)):
        schedule("t", key, delay=delay)
    db_clock.advance(seconds=90)
    found = scrape()
    assert found["delaytasks_next_due_timestamp_seconds", "t"] == db_clock.now_ms / 1000 + 510
    assert ("delaytasks_next_due_timestamp_seconds", "idle") not in found


def test_the_signs_of_life_are_ages_and_infinite_before_the_first(stage, db_clock):
    MirrorMark.objects.all().delete()
    assert scrape()["delaytasks_sweep_age_seconds", ""] == float("inf")
    MirrorMark.objects.create(pk=1, swept_at=clock.from_ms(db_clock.now_ms - 7000))
    assert scrape()["delaytasks_sweep_age_seconds", ""] == 7


def test_the_workers_with_a_heartbeat_are_counted(stage):
    assert scrape()["delaytasks_workers", ""] == 0
    for name in ("a", "b"):
        liveness.beat("default", name)
    assert scrape()["delaytasks_workers", ""] == 2


def test_the_clock_of_this_host_is_compared_with_the_databases(stage, db_clock):
    db_clock.set(clock.to_ms(timezone.now()) - 60_000)
    databases.clock.cache_clear()
    assert scrape()["delaytasks_clock_skew_seconds", ""] == pytest.approx(60, abs=30)


def test_each_rebuild_of_the_mirror_has_a_new_time_even_after_a_flush(transactional_db, with_redis, mirror, db_clock):
    name = "delaytasks_mirror_rebuilt_timestamp_seconds", ""
    assert name not in scrape()
    guard.guard("default")
    assert scrape()[name] == db_clock.now_ms / 1000
    db_clock.advance(seconds=2)
    mirror.clear()
    guard.guard("default")
    assert scrape()[name] == db_clock.now_ms / 1000


def test_a_mirror_that_is_down_is_0_and_none_without_redis(transactional_db, with_redis, redis_server):
    assert scrape()["delaytasks_mirror_up", ""] == 1
    redis_server.stop()
    assert scrape()["delaytasks_mirror_up", ""] == 0


def test_while_redis_is_down_its_counters_are_missing_and_do_not_fall(
    transactional_db, with_redis, mirror, redis_server
):
    name = "delaytasks_repaired_total", ""
    mirror.count("repaired", 3)
    assert scrape()[name] == 3
    redis_server.stop()
    assert name not in scrape()


def test_without_redis_its_counters_are_0(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    assert scrape()["delaytasks_repaired_total", ""] == 0


def test_a_mirror_that_refuses_writes_is_0(transactional_db, with_redis, redis_server):
    with redis_server.full():
        assert scrape()["delaytasks_mirror_up", ""] == 0


@pytest.mark.parametrize("cached", [False, True], ids=["not-cached", "cached"])
def test_without_the_database_the_scrape_says_so_and_has_the_counters(stage, cached):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    of_database = {("delaytasks_ready_jobs", "t"), ("delaytasks_repaired_total", "")}
    assert of_database <= scrape().keys()
    connections.close_all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connections.settings["default"], "NAME", "/there/is/no/such/database")
        found = scrape(cached=cached)
    assert found["delaytasks_database_up", ""] == 0
    assert found["delaytasks_finished_total", "t"] == 1
    assert not of_database & found.keys()


def test_a_database_that_hangs_delays_no_scrape_and_is_asked_once(stage):
    asked, answers = [], threading.Event()

    read = job_collector._read

    def hang(using: str) -> job_collector.Numbers:
        asked.append(1)
        answers.wait(60)
        return read(using)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job_collector, "_read", hang)
        patch.setattr(job_collector, "READ_SECONDS", 0)
        hanging = [scrape()["delaytasks_database_up", ""] for _ in range(3)]
        answers.set()
        wait_until(lambda: not job_collector._readings["default"].running, seconds=10, what="the database to answer")
    assert (hanging, asked) == ([0, 0, 0], [1])
    assert scrape()["delaytasks_database_up", ""] == 1


def test_a_database_that_is_down_hides_no_other(stage, settings):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    connections.settings["away"] = {**connections.settings["default"], "NAME": "/there/is/no/such/database"}
    try:
        settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", "away"]}
        families = {family.name: family for family in job_collector.JobCollector().collect()}
    finally:
        del connections.settings["away"]
    up = [(sample.labels, sample.value) for sample in families["delaytasks_database_up"].samples]
    assert up == [({"database": "default"}, 1), ({"database": "away"}, 0)]
    ready = [sample.value for sample in families["delaytasks_ready_jobs"].samples if sample.labels["topic"] == "t"]
    assert ready == [1]


def test_topic_schedule_and_database_are_the_only_labels_and_each_metric_has_a_help(stage):
    stage.recorder("t")
    schedule("t", "a", delay=0)
    stage.go()
    registry: CollectorRegistry = prometheus.make_registry()
    ours = [family for family in registry.collect() if family.name.startswith("delaytasks_")]
    assert len(ours) > 15
    of_jobs = [family for family in ours if "_http_" not in family.name]
    labels = {label for family in of_jobs for sample in family.samples for label in sample.labels}
    assert labels == {"topic", "le", "database"}
    assert all(family.documentation.endswith(".") for family in ours)
