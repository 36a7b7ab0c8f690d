"""reserve.lua: the oldest ready jobs are delayed again until shortly after now, so that none can be lost."""

import pytest

from tests.mirror.lua.bucket import GRACE, NOW, OTHER, At, Bucket

UNTIL = NOW + GRACE


@pytest.mark.parametrize(
    ("before", "after", "ids"),
    [
        pytest.param(None, None, [], id="nowhere"),
        pytest.param(At("due", NOW), At("due", NOW), [], id="due"),
        pytest.param(At("ready", NOW), At("due", UNTIL), [1], id="ready"),
        pytest.param(At("due", UNTIL), At("due", UNTIL), [], id="reserved"),
    ],
)
def test_a_ready_job_is_delayed_until_the_given_time_and_others_are_not_changed(
    bucket: Bucket, before: At | None, after: At | None, ids: list[int]
) -> None:
    bucket.put(1, before)
    assert bucket.reserve(until=UNTIL) == ids
    assert bucket.where(1) == after


def test_the_oldest_jobs_are_reserved_first(bucket: Bucket) -> None:
    for job in range(5):
        bucket.put(job, At("ready", NOW - job))
    assert bucket.reserve(2) == [4, 3]
    assert bucket.reserve(10) == [2, 1, 0]


def test_another_topics_jobs_are_not_reserved(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW), OTHER)
    assert bucket.reserve() == []
    assert bucket.reserve(topic=OTHER) == [1]


def test_two_reservations_never_share_a_job(bucket: Bucket) -> None:
    for job in range(10):
        bucket.put(job, At("ready", NOW + job))
    first, second = bucket.reserve(6), bucket.reserve(6)
    assert sorted(first + second) == list(range(10))
    assert not set(first) & set(second)


def test_one_call_reserves_a_thousand_jobs_at_most(bucket: Bucket) -> None:
    bucket.client.zadd(bucket.keys.ready(0, "t"), {f"{job}:t": NOW for job in range(1200)})
    assert len(bucket.reserve(5000, topic="t")) == 1000
    assert (len(bucket.due()), len(bucket.ready("t"))) == (1000, 200)


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_of_zero_or_less_reserves_nothing(bucket: Bucket, count: int) -> None:
    for job in range(3):
        bucket.put(job, At("ready", NOW))
    assert bucket.reserve(count) == []
    assert len(bucket.ready()) == 3


def test_after_the_grace_a_dead_consumers_job_is_ready_again(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.reserve(until=UNTIL)
    bucket.promote(UNTIL - 1)
    assert bucket.where(1) == At("due", UNTIL)
    bucket.promote(UNTIL)
    assert bucket.reserve(until=UNTIL + GRACE) == [1]


def test_due_jobs_are_reserved_without_those_due_later(bucket: Bucket) -> None:
    for job, at in enumerate([NOW - 5, NOW, NOW + 1, NOW + 1, NOW + 2]):
        bucket.put(job, At("ready", at))
    assert bucket.reserve_at(NOW) == (NOW, [0, 1])
    assert bucket.reserve_at(NOW) == (NOW + 1, [2, 3]), "none is due yet: those due next, and when"
    assert bucket.where(4) == At("ready", NOW + 2)
