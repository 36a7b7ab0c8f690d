"""What will fall due and what waits now, counted."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.db import connection
from django.test.utils import CaptureQueriesContext

from delaytasks import clock, counting, forecast, keeping, topics
from delaytasks.counting import Count
from delaytasks.models import Job, Topic
from delaytasks.states import ENDED, State

NOW_MS = 1_893_456_000_000 + 20_500  # half past a minute, nearly
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)


@pytest.fixture(autouse=True)
def _now(db_clock: Any) -> Iterator[None]:
    db_clock.set(NOW_MS)
    cache.clear()
    yield
    cache.clear()


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


def numbers(found: forecast.Forecast) -> dict[int, int]:
    """Place -> how many, where there are any."""
    return {place: each.due.number for place, each in enumerate(found.bins) if each.due.number}


def test_what_falls_due_is_counted_per_minute():
    make("a", timedelta(seconds=1))
    make("b", MINUTE)
    make("c", MINUTE)
    make("d", 59 * MINUTE)
    found = forecast.minutes("default", None)
    assert numbers(found) == {0: 1, 1: 2, 59: 1}
    assert found.sum == Count(4)
    assert [each.at_ms % 60_000 for each in found.bins] == [0] * 60


def test_and_per_hour():
    make("a", timedelta(seconds=1))
    make("b", 5 * HOUR)
    make("c", 23 * HOUR)
    assert numbers(forecast.hours("default", None)) == {0: 1, 5: 1, 23: 1}


def test_what_is_overdue_held_or_ended_does_not_fall_due():
    make("overdue", -MINUTE)
    make("now", timedelta(0))
    make("held", -MINUTE, state=State.RESERVED)
    make("cancelled", MINUTE, state=State.CANCELLED)
    make("dead", MINUTE, state=State.DEAD)
    assert numbers(forecast.minutes("default", None)) == {}


def test_what_falls_due_between_two_minutes_is_counted_once():
    rest = timedelta(milliseconds=60_000 - NOW_MS % 60_000)
    make("last of this one", rest - timedelta(milliseconds=1))
    make("first of the next", rest)
    assert numbers(forecast.minutes("default", None)) == {0: 1, 1: 1}


def test_only_the_topics_that_somebody_may_see_are_counted():
    make("a", MINUTE)
    make("b", MINUTE, topic="mail.send")
    make("c", 2 * MINUTE, topic="a.topic.without.a.row")
    assert numbers(forecast.minutes("default", None)) == {1: 2, 2: 1}
    assert numbers(forecast.minutes("default", ["mail.send"])) == {1: 1}
    assert numbers(forecast.minutes("default", ["mail.send", "parcel.return"])) == {1: 2}
    assert numbers(forecast.minutes("default", [])) == {}


def test_of_many_topics_those_without_jobs_cost_nothing():
    make("a", MINUTE)
    many = ["parcel.return", *(f"t{n}" for n in range(100))]
    with CaptureQueriesContext(connection) as captured:
        assert numbers(forecast.minutes("default", many)) == {1: 1}
    assert not any("'t99'" in query["sql"] for query in captured.captured_queries)


def test_a_herd_is_marked_and_says_of_which_topics_it_is():
    for minute in range(1, 50):
        make(f"usual {minute}", minute * MINUTE)
    make_many(300, 31 * MINUTE)
    make_many(70, 31 * MINUTE, topic="parcel.remind")
    found = forecast.minutes("default", None)
    assert [place for place, each in enumerate(found.bins) if each.herd] == [31]
    assert found.bins[31].topics == (("parcel.return", Count(301)), ("parcel.remind", Count(70)))


def test_the_topics_of_a_herd_that_were_not_counted_to_their_end_are_looked_at_further(monkeypatch):
    make_many(300, 31 * MINUTE)
    keep_nothing_fresh(monkeypatch)
    monkeypatch.setattr(counting, "FIRST_ROWS", 0)
    with monkeypatch.context() as hurry:
        hurry.setattr(counting, "SURE_ROWS", 0)
        hurry.setattr(forecast, "SECONDS", 0)
        hurry.setattr(forecast, "HERD_LEAST", 1)
        assert forecast.minutes("default", None).bins[31].topics == (("parcel.return", Count(20, whole=False)),)
    assert forecast.minutes("default", None).bins[31].topics == (("parcel.return", Count(300)),)


def keep_nothing_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was counted before is only remembered."""
    monkeypatch.setattr(forecast, "FRESH_SECONDS", 0)
    monkeypatch.setattr(keeping, "WORTH", 0)


def test_the_topics_of_a_herd_are_only_those_that_somebody_may_see():
    make_many(300, 31 * MINUTE)
    make_many(70, 31 * MINUTE, topic="parcel.remind")
    assert forecast.minutes("default", ["parcel.remind"]).bins[31].topics == (("parcel.remind", Count(70)),)


def test_more_than_can_be_counted_in_time_is_so_many_at_least(monkeypatch):
    monkeypatch.setattr(counting, "FIRST_ROWS", 0)
    monkeypatch.setattr(counting, "SURE_ROWS", 0)
    monkeypatch.setattr(forecast, "SECONDS", 0)
    make_many(2 * counting.LEAST_CAP, 5 * MINUTE)
    make("a", MINUTE)
    found = forecast.minutes("default", None)
    assert found.bins[5].due == Count(counting.LEAST_CAP, whole=False)
    assert found.bins[1].due == Count(1)
    assert not found.sum.whole


def test_the_number_of_questions_does_not_grow_with_topics_or_jobs():
    def asked() -> int:
        cache.clear()
        with CaptureQueriesContext(connection) as captured:
            forecast.minutes("default", ["parcel.return", *(f"t{n}" for n in range(40))])
            forecast.standings("default", None)
        return len(captured)

    make("a", MINUTE)
    before = asked()
    for n in range(40):
        make(f"b{n}", MINUTE, topic=f"t{n}")
    assert asked() == before


# -- now ----------------------------------------------------------------------------------------


def test_how_a_topic_stands():
    Topic.objects.create(name="parcel.return", paused=True)
    make("later", 40 * HOUR)
    make("soon", MINUTE)
    make("waits", -MINUTE)
    make("waits longer", -2 * MINUTE)
    make("held", -5 * MINUTE, state=State.RESERVED)
    make("dead", -HOUR, state=State.DEAD)
    make("finished", -HOUR, state=State.FINISHED)
    assert forecast.standings("default", None) == {
        "parcel.return": forecast.Standing(
            delayed=Count(2), ready=Count(2), reserved=1, dead=Count(1), oldest_ready_ms=120_000, paused=True,
            known=False,
        )
    }  # fmt: skip


def test_a_topic_stands_even_if_it_has_no_jobs():
    standing = forecast.standings("default", ["nothing.here"])["nothing.here"]
    assert (standing.delayed, standing.ready, standing.oldest_ready_ms) == (Count(0), Count(0), None)


def test_a_topic_is_known_if_something_here_handles_it():
    topics.handler("test.known")(print)
    try:
        assert forecast.standings("default", ["test.known"])["test.known"].known
    finally:
        topics.forget("test.known")


def test_of_all_topics_those_stand_that_have_live_or_dead_jobs_or_are_paused():
    Topic.objects.create(name="quiet")
    Topic.objects.create(name="paused", paused=True)
    make("a", MINUTE, topic="live")
    make("b", MINUTE, topic="died", state=State.DEAD)
    make("c", MINUTE, topic="done", state=State.FINISHED)
    assert sorted(forecast.standings("default", None)) == ["died", "live", "paused"]


def test_each_topic_has_its_own_numbers():
    for n, topic in enumerate(["c", "a", "b"], start=1):
        for key in range(n):
            make(str(key), -n * MINUTE, topic=topic)
            make(f"dead {key}", MINUTE, topic=topic, state=State.DEAD)
    found = forecast.standings("default", None)
    assert {name: (each.ready.number, each.dead.number, each.oldest_ready_ms) for name, each in found.items()} == {
        "a": (2, 2, 120_000), "b": (3, 3, 180_000), "c": (1, 1, 60_000),
    }  # fmt: skip


# -- kept for a moment --------------------------------------------------------------------------


def test_what_was_counted_a_moment_ago_is_not_counted_again(django_assert_num_queries):
    make("a", MINUTE)
    forecast.minutes("default", None)
    make("b", MINUTE)
    with django_assert_num_queries(0):
        assert numbers(forecast.minutes("default", None)) == {1: 1}
    assert numbers(forecast.minutes("default", ["parcel.return"])) == {1: 2}  # somebody who sees other topics


def test_after_a_few_seconds_it_is_counted_again(monkeypatch):
    make("a", MINUTE)
    forecast.minutes("default", None)
    make("b", MINUTE)
    later = keeping.time.time() + forecast.FRESH_SECONDS + 60
    monkeypatch.setattr(keeping.time, "time", lambda: later)
    assert numbers(forecast.minutes("default", None)) == {1: 2}


def test_a_number_that_was_taken_from_before_is_soon_counted_again(monkeypatch):
    now = [keeping.time.time()]
    monkeypatch.setattr(keeping.time, "time", lambda: now[0])
    monkeypatch.setattr(counting, "FIRST_ROWS", 1)
    make_many(100, 5 * HOUR)
    for _ in range(2):
        assert numbers(forecast.hours("default", None)) == {5: 100}
        now[0] += forecast.HOURS_FRESH_SECONDS + 30
    Job.objects.all().delete()
    make_many(50, 5 * HOUR, topic="what is left")
    with monkeypatch.context() as busy:
        busy.setattr(counting, "SURE_ROWS", 0)
        busy.setattr(forecast, "HOURS_SECONDS", 0)
        assert numbers(forecast.hours("default", None)) == {5: 100}, "there was no time to count it again"
    now[0] += forecast.FRESH_SECONDS + 1
    assert numbers(forecast.hours("default", None)) == {5: 50}


def test_without_a_cache_it_is_counted_each_time(settings):
    settings.CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
    make("a", MINUTE)
    assert numbers(forecast.minutes("default", None)) == {1: 1}
    make("b", MINUTE)
    assert numbers(forecast.minutes("default", None)) == {1: 2}
