"""The priority of an entry is part of its score: it survives every move, and no job becomes ready early."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delaytasks.mirror.base import GONE
from delaytasks.mirror.redis.keys import decode_score
from delaytasks.states import AGE_MS, MAX_PRIORITY
from tests.mirror.lua.bucket import GRACE, NOW, TOPIC, At, Bucket

LEVELS = range(MAX_PRIORITY + 1)
UNTIL = NOW + GRACE
LEASE = NOW + 60_000


@given(ms=st.integers(0, 2**46), priority=st.sampled_from(LEVELS), zset=st.sampled_from(["due", "ready"]))
def test_a_score_has_the_exact_due_time_and_priority(ms: int, priority: int, zset: str) -> None:
    assert decode_score(At(zset, ms, priority).score) == (ms, priority)


@pytest.mark.parametrize("priority", LEVELS)
def test_a_job_of_any_priority_is_ready_at_its_due_time_and_not_a_millisecond_before(
    bucket: Bucket, priority: int
) -> None:
    bucket.add(1, NOW, priority=priority)
    assert bucket.promote(NOW - 1)[:2] == [0, NOW], "the mover waits until the due time"
    assert bucket.where(1) == At("due", NOW, priority)
    assert bucket.promote(NOW)[:2] == [1, -1]
    assert bucket.where(1) == At("ready", NOW, priority)
    assert bucket.reserve_at(NOW - 1) == (NOW, [1]), "who reserves it early waits until its due time"


@pytest.mark.parametrize("priority", [1, MAX_PRIORITY])
def test_the_priority_survives_each_move(bucket: Bucket, priority: int) -> None:
    bucket.add(1, NOW, priority=priority)
    bucket.promote(NOW)
    assert bucket.reserve(until=UNTIL) == [1]
    assert bucket.where(1) == At("due", UNTIL, priority)
    assert bucket.settle(1, UNTIL, LEASE) == 1
    assert bucket.where(1) == At("due", LEASE, priority)
    assert bucket.settle(1, UNTIL, NOW) == 1, "given back: an earlier time wins"
    bucket.promote(NOW)
    assert bucket.settle(1, NOW, UNTIL) == 1, "postponed while it is ready"
    assert bucket.where(1) == At("due", UNTIL, priority)
    assert bucket.settle(1, UNTIL, GONE) == 1
    assert bucket.where(1) is None


@pytest.mark.parametrize("zset", ["due", "ready"])
@pytest.mark.parametrize(("had", "mark"), [(0, False), (0, True), (3, False), (3, True)])
def test_adding_sets_the_priority_and_never_a_later_time(bucket: Bucket, zset: str, had: int, mark: bool) -> None:
    bucket.put(1, At(zset, NOW, had))
    assert bucket.add(1, LEASE, priority=7, mark=mark) == 0
    assert bucket.where(1) == At(zset, NOW - mark, 7)


def test_a_cancelled_job_that_is_ready_is_removed(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW, 9))
    assert bucket.settle(1, NOW + 1, GONE) == 0
    assert bucket.settle(1, NOW, GONE) == 1
    assert bucket.where(1) is None


def test_ready_jobs_are_reserved_by_priority_and_an_old_job_passes(bucket: Bucket) -> None:
    due = {
        1: (NOW - 9, 0),
        2: (NOW, 2),
        3: (NOW - 5, 2),
        4: (NOW, 9),
        5: (NOW - 9 * AGE_MS, 0),
        6: (NOW - 7 * AGE_MS, 3),
    }
    for job, (ms, priority) in due.items():
        bucket.add(job, ms, priority=priority)
    bucket.promote(NOW)
    # By minutes of age and level: 6 has 10; 4 and 5 have 9; 3 and 2 have 2; 1 has 0.
    assert bucket.reserve(1, now=NOW) == [6]
    assert bucket.reserve(now=NOW) == [4, 5, 3, 2, 1]


def test_jobs_that_are_due_do_not_wait_for_one_of_a_higher_priority_that_is_not(bucket: Bucket) -> None:
    for job in range(30):
        bucket.put(job, At("ready", NOW + 2, 9))
    bucket.put(30, At("ready", NOW))
    bucket.put(31, At("ready", NOW - 1))
    assert bucket.reserve_at(NOW, 2) == (NOW, [31, 30])
    assert bucket.reserve_at(NOW, 100) == (NOW + 2, list(range(30)))


def test_a_mover_of_an_older_version_does_not_make_a_job_late(bucket: Bucket) -> None:
    """It moves the score unchanged from the delayed to the ready jobs: that costs the priority, and no time."""
    bucket.client.zadd(bucket.keys.ready(0, TOPIC), {"1:" + TOPIC: At("due", NOW, 9).score})
    assert bucket.where(1) == At("ready", NOW, 9)
    assert bucket.reserve_at(NOW - 1) == (NOW, [1])
    assert bucket.where(1) == At("due", UNTIL, 9)


def test_movers_are_told_the_due_time_of_a_job_with_a_priority(bucket, published) -> None:
    bucket.add(1, NOW, priority=9)
    assert published() == [str(NOW)]
    bucket.put(2, At("ready", NOW - 1, 9))
    bucket.settle(2, NOW - 1, NOW - 1)
    assert published() == [str(NOW - 1)]
