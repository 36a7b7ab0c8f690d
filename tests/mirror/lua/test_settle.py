"""settle.lua: a compare-and-set; with an old score it makes an entry earlier at most."""

import pytest

from delaytasks.mirror.base import GONE
from tests.mirror.lua.bucket import GRACE, NOW, OTHER, At, Bucket, Settle

LATER = NOW + 60_000
EARLIER = NOW - 60_000
UNTIL = NOW + GRACE


@pytest.mark.parametrize(
    ("before", "seen", "new", "after", "changed"),
    [
        pytest.param(None, NOW, LATER, None, 0, id="nowhere"),
        pytest.param(None, NOW, GONE, None, 0, id="nowhere-to-remove"),
        pytest.param(At("due", NOW), NOW, LATER, At("due", LATER), 1, id="due"),
        pytest.param(At("due", NOW), NOW, EARLIER, At("due", EARLIER), 1, id="due-to-an-earlier-time"),
        pytest.param(At("due", NOW), NOW, NOW, At("due", NOW), 1, id="due-to-the-same-time"),
        pytest.param(At("due", NOW), NOW, GONE, None, 1, id="due-to-remove"),
        pytest.param(At("ready", NOW), NOW, LATER, At("due", LATER), 1, id="ready"),
        pytest.param(At("ready", NOW), NOW, GONE, None, 1, id="ready-to-remove"),
        pytest.param(At("due", UNTIL), UNTIL, LATER, At("due", LATER), 1, id="reserved-claimed"),
        pytest.param(At("due", UNTIL), UNTIL, NOW + 1, At("due", NOW + 1), 1, id="reserved-not-yet-due"),
        pytest.param(At("due", UNTIL), UNTIL, GONE, None, 1, id="reserved-unknown"),
    ],
)
def test_an_entry_with_the_seen_score_is_moved_or_removed(
    bucket: Bucket, before: At | None, seen: int, new: int, after: At | None, changed: int
) -> None:
    bucket.put(1, before)
    assert bucket.settle(1, seen, new) == changed
    assert bucket.where(1) == after


@pytest.mark.parametrize("new", [LATER, EARLIER, GONE], ids=["later", "earlier", "removed"])
@pytest.mark.parametrize("seen", [NOW - 1, NOW + 1, 0], ids=["seen-later", "seen-earlier", "never-seen"])
@pytest.mark.parametrize("before", [At("due", NOW), At("ready", NOW)], ids=["due", "ready"])
def test_a_settle_with_another_score_makes_an_entry_earlier_at_most(
    bucket: Bucket, before: At, seen: int, new: int
) -> None:
    earlier = (before.zset, new) == ("due", EARLIER)
    bucket.put(1, before)
    assert bucket.settle(1, seen, new) == earlier
    assert bucket.where(1) == (At("due", EARLIER) if earlier else before)


def test_removing_an_entry_changes_no_other(bucket: Bucket) -> None:
    for job, at in [(1, At("due", NOW)), (2, At("due", NOW)), (3, At("ready", NOW))]:
        bucket.put(job, at)
    bucket.put(1, At("ready", NOW), OTHER)
    assert bucket.settle(1, NOW, GONE) == 1
    assert [bucket.where(1), bucket.where(2), bucket.where(3)] == [None, At("due", NOW), At("ready", NOW)]
    assert bucket.where(1, OTHER) == At("ready", NOW)


def test_one_call_settles_a_thousand_entries_and_counts_the_changed_ones(bucket: Bucket) -> None:
    bucket.add_all((job, NOW) for job in range(500))
    assert bucket.settle_all(Settle(job, NOW, LATER + job) for job in range(1000)) == 500
    assert bucket.where(499) == At("due", LATER + 499)
    bucket.add_all((job, NOW) for job in range(500, 1000))
    assert bucket.settle_all(Settle(job, NOW, GONE) for job in range(1000)) == 500
    assert len(bucket.due()) == 500


def test_an_empty_call_settles_nothing(bucket: Bucket) -> None:
    bucket.put(1, At("due", NOW))
    assert bucket.settle_all([]) == 0
    assert bucket.where(1) == At("due", NOW)


# Notifications


@pytest.mark.parametrize(
    ("before", "messages"),
    [
        pytest.param(At("due", UNTIL), [str(NOW)], id="reserved-and-due-before-the-grace"),
        pytest.param(At("ready", UNTIL), [str(NOW)], id="ready-and-delayed-again"),
    ],
)
def test_movers_are_notified_when_the_earliest_due_time_becomes_earlier(
    bucket, published, before: At, messages: list[str]
) -> None:
    bucket.put(1, before)
    bucket.settle(1, UNTIL, NOW)
    assert published() == messages


@pytest.mark.parametrize("new", [NOW, LATER, GONE], ids=["same", "later", "removed"])
def test_movers_are_not_notified_when_the_earliest_due_time_becomes_later_or_stays(bucket, published, new: int) -> None:
    bucket.put(1, At("due", NOW))
    bucket.put(2, At("due", LATER + 1))
    bucket.settle(1, NOW, new)
    assert published() == []


def test_movers_are_not_notified_of_a_settle_that_changed_nothing(bucket, published) -> None:
    bucket.put(1, At("due", NOW))
    bucket.settle(1, EARLIER, LATER)
    assert published() == []
