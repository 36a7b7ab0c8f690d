"""Keys that are unique across topics, such as the ids of the queue protocol."""

import threading
from typing import Any

import pytest
from django.db import connections

from delaytasks import cancel, schedule
from delaytasks.exceptions import BadDelay, KeyIsLive
from delaytasks.jobs.schedule import schedule_unique
from delaytasks.models import Job

TOPICS = ("one", "two", "three")


@pytest.fixture(autouse=True)
def _topics(transactional_db: None, settings: Any, with_redis: Any) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {name: {} for name in TOPICS}}


def test_a_key_that_is_live_in_another_topic_is_refused_with_that_job(db_clock: Any) -> None:
    schedule("one", key="a", delay=5)
    with pytest.raises(KeyIsLive, match=r"one 'a' is live already: job \d+, due at 2030-01-01T00:00:05\.000Z\."):
        schedule_unique("two", key="a", among=TOPICS, delay=5)
    assert Job.objects.count() == 1


def test_a_key_whose_job_in_another_topic_has_ended_is_free(db_clock: Any) -> None:
    schedule("one", key="a", delay=5)
    cancel("one", key="a")
    assert schedule_unique("two", key="a", among=TOPICS, delay=5).is_new


def test_only_the_given_topics_count(db_clock: Any) -> None:
    schedule("three", key="a", delay=5)
    assert schedule_unique("two", key="a", among=["one", "two"], delay=5).is_new
    assert schedule_unique("one", key="b", among=["one"], delay=5).is_new


def test_the_same_topic_follows_on_conflict(db_clock: Any) -> None:
    first = schedule_unique("one", key="a", among=TOPICS, delay=5)
    with pytest.raises(KeyIsLive):
        schedule_unique("one", key="a", among=TOPICS, delay=5)
    assert schedule_unique("one", key="a", among=TOPICS, delay=9, on_conflict="keep").pk == first.pk


def test_bad_input_is_refused_before_anything_is_written(db_clock: Any) -> None:
    with pytest.raises(BadDelay):
        schedule_unique("one", key="a", among=TOPICS, delay=-5)


def test_a_job_may_have_a_subject(db_clock: Any, django_user_model: Any) -> None:
    user = django_user_model.objects.create(username="u")
    assert schedule_unique("one", key="a", among=TOPICS, subject=user, delay=5).subject_pk == str(user.pk)


def test_a_series_is_refused(db_clock: Any) -> None:
    with pytest.raises(TypeError, match="'period'"):
        schedule_unique("one", key="a", among=TOPICS, period=60)  # type: ignore[call-arg]


def test_of_concurrent_calls_in_different_topics_one_succeeds() -> None:
    start, won, lost = threading.Barrier(6), [], []

    def add(number: int) -> None:
        start.wait()
        try:
            won.append(schedule_unique(TOPICS[number % 3], key="a", among=TOPICS, delay=60).topic)
        except KeyIsLive as error:
            lost.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=add, args=[number]) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(won), len(lost)) == (1, 5)
    assert Job.objects.live().count() == 1
