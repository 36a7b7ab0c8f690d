"""add.lua: an entry becomes earlier or stays, and a job never has two entries."""

import pytest

from tests.mirror.lua.bucket import GRACE, NOW, OTHER, At, Bucket

LATER = NOW + 60_000
EARLIER = NOW - 60_000
RESERVED = At("due", NOW + GRACE)


@pytest.mark.parametrize(
    ("before", "ms", "mark", "after", "added"),
    [
        pytest.param(None, LATER, False, At("due", LATER), 1, id="nowhere"),
        pytest.param(None, LATER, True, At("due", LATER), 1, id="nowhere-marked"),
        pytest.param(At("due", LATER), NOW, False, At("due", NOW), 0, id="due-later"),
        pytest.param(At("due", LATER), NOW, True, At("due", NOW), 0, id="due-later-marked"),
        pytest.param(At("due", NOW), LATER, False, At("due", NOW), 0, id="due-earlier"),
        pytest.param(At("due", NOW), LATER, True, At("due", NOW - 1), 0, id="due-earlier-marked"),
        pytest.param(At("due", NOW), NOW, False, At("due", NOW), 0, id="due-the-same"),
        pytest.param(At("due", NOW), NOW, True, At("due", NOW - 1), 0, id="due-the-same-marked"),
        pytest.param(At("ready", NOW), LATER, False, At("ready", NOW), 0, id="ready"),
        pytest.param(At("ready", NOW), EARLIER, False, At("ready", NOW), 0, id="ready-added-earlier"),
        pytest.param(At("ready", NOW), LATER, True, At("ready", NOW - 1), 0, id="ready-marked"),
        pytest.param(RESERVED, NOW, False, At("due", NOW), 0, id="reserved-added-earlier"),
        pytest.param(RESERVED, LATER, False, RESERVED, 0, id="reserved-added-later"),
        pytest.param(RESERVED, LATER, True, At("due", NOW + GRACE - 1), 0, id="reserved-marked"),
    ],
)
def test_adding_keeps_the_earlier_of_the_two_times(
    bucket: Bucket, before: At | None, ms: int, mark: bool, after: At, added: int
) -> None:
    bucket.put(1, before)
    assert bucket.add(1, ms, mark=mark) == added
    assert bucket.where(1) == after


def test_one_call_adds_a_thousand_jobs_and_counts_only_the_new_ones(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.put(2, At("due", NOW))
    assert bucket.add_all((job, LATER + job) for job in range(1, 1001)) == 998
    assert len(bucket.due()) == 999
    assert bucket.where(1000) == At("due", LATER + 1000)


def test_one_call_ignores_entries_beyond_a_thousand(bucket: Bucket) -> None:
    assert bucket.add_all((job, LATER) for job in range(1001)) == 1000
    assert bucket.where(1000) is None


def test_the_same_id_under_another_topic_is_another_entry(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW), OTHER)
    assert bucket.add(1, LATER) == 1
    assert bucket.where(1) == At("due", LATER)
    assert bucket.where(1, OTHER) == At("ready", NOW)


@pytest.mark.parametrize("mark", [False, True])
def test_an_empty_call_adds_nothing(bucket: Bucket, mark: bool) -> None:
    bucket.put(1, At("due", NOW))
    assert bucket.add_all([], mark=mark) == 0
    assert bucket.where(1) == At("due", NOW)


# Notifications


def test_movers_are_notified_of_the_first_entry(bucket, published) -> None:
    bucket.add(1, LATER)
    assert published() == [str(LATER)]


def test_movers_are_notified_when_the_earliest_due_time_becomes_earlier(bucket, published) -> None:
    bucket.put(1, At("due", LATER))
    bucket.add(2, NOW)
    bucket.add(2, EARLIER)
    assert published() == [str(NOW), str(EARLIER)]


@pytest.mark.parametrize("ms", [NOW, LATER])
def test_movers_are_not_notified_when_the_earliest_due_time_stays(bucket, published, ms: int) -> None:
    bucket.put(1, At("due", NOW))
    bucket.add(2, ms)
    assert published() == []


def test_movers_are_not_notified_of_a_job_that_is_ready(bucket, published) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.put(2, At("due", LATER))
    bucket.add(1, EARLIER, mark=True)
    assert published() == []


def test_movers_are_notified_once_per_call(bucket, published) -> None:
    bucket.add_all((job, LATER - job) for job in range(100))
    assert published() == [str(LATER - 99)]
