"""Counts of due jobs and the status of topics."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import clock, handlers
from delaytasks.db import counts
from delaytasks.db.counts import Count
from delaytasks.models import Job, Topic
from delaytasks.monitoring import cache as stats_cache
from delaytasks.monitoring import forecast
from delaytasks.states import ENDED, State

NOW_MS = 1_893_456_000_000 + 20_500  # about half a minute past a full minute
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _fixed_time(transactional_db: None, db_clock: Any) -> None:
    db_clock.set(NOW_MS)


def make(key: str, due: timedelta, *, topic: str = "parcel.return", state: State = State.DELAYED) -> Job:
    now = clock.from_ms(NOW_MS)
    columns: dict[str, Any] = {}
    if state is State.RESERVED:
        columns = {"attempt": 1, "reserved_at": now, "lease_until": now + MINUTE}
    if state in ENDED:
        columns = {"ended_at": now, "died_at": now if state is State.DEAD else None}
    return Job.objects.create(
        topic=topic, key=key, state=state, due_at=now + due, ttr_ms=60_000, created_at=now, body={}, **columns
    )


def make_many(count: int, due: timedelta, *, topic: str = "parcel.return") -> None:
    now = clock.from_ms(NOW_MS)
    Job.objects.bulk_create(
        [
            Job(topic=topic, key=f"{topic} {due} {n}", due_at=now + due, ttr_ms=60_000, created_at=now, body={})
            for n in range(count)
        ],
        batch_size=500,
    )


def numbers(result: forecast.Forecast) -> dict[int, int]:
    """Return the jobs per bin, by its index, without the empty bins."""
    return {index: each.due.number for index, each in enumerate(result.bins) if each.due.number}


def test_due_jobs_are_counted_per_minute():
    make("a", timedelta(seconds=1))
    make("b", MINUTE)
    make("c", MINUTE)
    make("d", 59 * MINUTE)
    result = forecast.minutes("default", None)
    assert numbers(result) == {0: 1, 1: 2, 59: 1}
    assert result.sum == Count(4)
    assert [each.at_ms % 60_000 for each in result.bins] == [0] * 60


def test_due_jobs_are_counted_per_hour():
    make("a", timedelta(seconds=1))
    make("b", 5 * HOUR)
    make("c", 23 * HOUR)
    assert numbers(forecast.hours("default", None)) == {0: 1, 5: 1, 23: 1}


def test_overdue_reserved_and_ended_jobs_are_not_counted():
    make("overdue", -MINUTE)
    make("now", timedelta(0))
    make("reserved", -MINUTE, state=State.RESERVED)
    make("cancelled", MINUTE, state=State.CANCELLED)
    make("dead", MINUTE, state=State.DEAD)
    assert numbers(forecast.minutes("default", None)) == {}


def test_jobs_at_the_edge_of_a_minute_are_counted_once():
    until_next_minute = timedelta(milliseconds=60_000 - NOW_MS % 60_000)
    make("last of this one", until_next_minute - timedelta(milliseconds=1))
    make("first of the next", until_next_minute)
    assert numbers(forecast.minutes("default", None)) == {0: 1, 1: 1}


def test_only_the_given_topics_are_counted():
    make("a", MINUTE)
    make("b", MINUTE, topic="mail.send")
    make("c", 2 * MINUTE, topic="a.topic.without.a.row")
    assert numbers(forecast.minutes("default", None)) == {1: 2, 2: 1}
    assert numbers(forecast.minutes("default", ["mail.send"])) == {1: 1}
    assert numbers(forecast.minutes("default", ["mail.send", "parcel.return"])) == {1: 2}
    assert numbers(forecast.minutes("default", [])) == {}


def test_topics_without_jobs_are_not_counted_when_there_are_many():
    make("a", MINUTE)
    many = ["parcel.return", *(f"t{n}" for n in range(100))]
    with CaptureQueriesContext(connection) as captured:
        assert numbers(forecast.minutes("default", many)) == {1: 1}
    assert not any("'t99'" in query["sql"] for query in captured.captured_queries)


def test_a_herd_is_marked_and_names_its_topics():
    for minute in range(1, 50):
        make(f"usual {minute}", minute * MINUTE)
    make_many(300, 31 * MINUTE)
    make_many(70, 31 * MINUTE, topic="parcel.remind")
    result = forecast.minutes("default", None)
    assert [index for index, each in enumerate(result.bins) if each.herd] == [31]
    assert result.bins[31].topics == (("parcel.return", Count(301)), ("parcel.remind", Count(70)))


def test_a_partial_count_of_a_herds_topics_is_completed_by_the_next_call(monkeypatch):
    make_many(300, 31 * MINUTE)
    let_nothing_stay_fresh(monkeypatch)
    monkeypatch.setattr(counts, "FIRST_ROWS", 0)
    with monkeypatch.context() as patch:
        patch.setattr(counts, "SURE_ROWS", 0)
        patch.setattr(forecast, "SECONDS", 0)
        patch.setattr(forecast, "HERD_LEAST", 1)
        assert forecast.minutes("default", None).bins[31].topics == (("parcel.return", Count(20, complete=False)),)
    assert forecast.minutes("default", None).bins[31].topics == (("parcel.return", Count(300)),)


def let_nothing_stay_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute each time; earlier counts are still remembered."""
    monkeypatch.setattr(forecast, "FRESH_SECONDS", 0)
    monkeypatch.setattr(stats_cache, "FRESH_PER_COMPUTE_SECOND", 0)


def test_a_herd_names_only_the_given_topics():
    make_many(300, 31 * MINUTE)
    make_many(70, 31 * MINUTE, topic="parcel.remind")
    assert forecast.minutes("default", ["parcel.remind"]).bins[31].topics == (("parcel.remind", Count(70)),)


def test_a_count_that_reaches_the_time_limit_is_a_lower_bound(monkeypatch):
    monkeypatch.setattr(counts, "FIRST_ROWS", 0)
    monkeypatch.setattr(counts, "SURE_ROWS", 0)
    monkeypatch.setattr(forecast, "SECONDS", 0)
    make_many(2 * counts.LEAST_CAP, 5 * MINUTE)
    make("a", MINUTE)
    result = forecast.minutes("default", None)
    assert result.bins[5].due == Count(counts.LEAST_CAP, complete=False)
    assert result.bins[1].due == Count(1)
    assert not result.sum.complete


def test_the_number_of_queries_does_not_grow_with_topics_or_jobs():
    def query_count() -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            forecast.minutes("default", ["parcel.return", *(f"t{n}" for n in range(40))])
            forecast.topic_statuses("default", None)
        return len(captured)

    make("a", MINUTE)
    before = query_count()
    for n in range(40):
        make(f"b{n}", MINUTE, topic=f"t{n}")
    assert query_count() == before


# -- current status ----------------------------------------------------------------------------------------


def test_the_status_of_a_topic():
    Topic.objects.create(name="parcel.return", paused=True)
    make("later", 40 * HOUR)
    make("soon", MINUTE)
    make("ready", -MINUTE)
    make("ready longer", -2 * MINUTE)
    make("reserved", -5 * MINUTE, state=State.RESERVED)
    make("dead", -HOUR, state=State.DEAD)
    make("finished", -HOUR, state=State.FINISHED)
    assert forecast.topic_statuses("default", None) == {
        "parcel.return": forecast.TopicStatus(
            delayed=Count(2), ready=Count(2), reserved=1, dead=Count(1), oldest_ready_ms=120_000, paused=True,
            known=False,
        )
    }  # fmt: skip


def test_a_topic_without_jobs_has_a_status():
    status = forecast.topic_statuses("default", ["nothing.here"])["nothing.here"]
    assert (status.delayed, status.ready, status.oldest_ready_ms) == (Count(0), Count(0), None)


def test_a_topic_with_a_handler_in_this_process_is_known():
    handlers.handler("test.known")(print)
    try:
        assert forecast.topic_statuses("default", ["test.known"])["test.known"].known
    finally:
        handlers.unregister("test.known")


def test_all_topics_means_those_with_live_or_dead_jobs_or_paused():
    Topic.objects.create(name="quiet")
    Topic.objects.create(name="paused", paused=True)
    make("a", MINUTE, topic="live")
    make("b", MINUTE, topic="died", state=State.DEAD)
    make("c", MINUTE, topic="done", state=State.FINISHED)
    assert sorted(forecast.topic_statuses("default", None)) == ["died", "live", "paused"]


def test_each_topic_has_its_own_numbers():
    for n, topic in enumerate(["c", "a", "b"], start=1):
        for key in range(n):
            make(str(key), -n * MINUTE, topic=topic)
            make(f"dead {key}", MINUTE, topic=topic, state=State.DEAD)
    result = forecast.topic_statuses("default", None)
    assert {name: (each.ready.number, each.dead.number, each.oldest_ready_ms) for name, each in result.items()} == {
        "a": (2, 2, 120_000), "b": (3, 3, 180_000), "c": (1, 1, 60_000),
    }  # fmt: skip


# -- cached for a moment --------------------------------------------------------------------------


def test_counts_are_cached_per_set_of_topics(django_assert_num_queries):
    make("a", MINUTE)
    forecast.minutes("default", None)
    make("b", MINUTE)
    with django_assert_num_queries(0):
        assert numbers(forecast.minutes("default", None)) == {1: 1}
    assert numbers(forecast.minutes("default", ["parcel.return"])) == {1: 2}  # another set of topics


def test_jobs_are_counted_again_after_a_few_seconds(monkeypatch):
    make("a", MINUTE)
    forecast.minutes("default", None)
    make("b", MINUTE)
    later = stats_cache.time.time() + forecast.FRESH_SECONDS + 60
    monkeypatch.setattr(stats_cache.time, "time", lambda: later)
    assert numbers(forecast.minutes("default", None)) == {1: 2}


def test_a_reused_count_is_soon_replaced_by_a_new_one(monkeypatch):
    now = [stats_cache.time.time()]
    monkeypatch.setattr(stats_cache.time, "time", lambda: now[0])
    monkeypatch.setattr(counts, "FIRST_ROWS", 1)
    make_many(100, 5 * HOUR)
    for _ in range(2):
        assert numbers(forecast.hours("default", None)) == {5: 100}
        now[0] += forecast.HOURS_FRESH_SECONDS + 30
    Job.objects.all().delete()
    make_many(50, 5 * HOUR, topic="remaining")
    with monkeypatch.context() as busy:
        busy.setattr(counts, "SURE_ROWS", 0)
        busy.setattr(forecast, "HOURS_SECONDS", 0)
        assert numbers(forecast.hours("default", None)) == {5: 100}, "the time limit left no time to count again"
    now[0] += forecast.FRESH_SECONDS + 1
    assert numbers(forecast.hours("default", None)) == {5: 50}


def test_without_a_cache_jobs_are_counted_each_time(settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    make("a", MINUTE)
    assert numbers(forecast.minutes("default", None)) == {1: 1}
    make("b", MINUTE)
    assert numbers(forecast.minutes("default", None)) == {1: 2}
