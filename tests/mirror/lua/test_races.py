"""An entry may be early, never late, in whatever order the mirror writes arrive.

A change commits in the database first, and its write to the mirror arrives later. Each test says when the row changed
(`# row`) and makes the writes arrive in the wrong order. test_reordered_writes.py does the same with the public API.
"""

from itertools import pairwise, permutations

import pytest

from delaytasks.mirror.base import GONE
from tests.mirror.lua.bucket import GRACE, NOW, At, Bucket

HOUR = 3_600_000
UNTIL = NOW + GRACE
LEASE = NOW + 60_000


def assert_not_late(bucket: Bucket, job: int, due: int) -> None:
    at = bucket.where(job)
    assert at is not None, f"no entry; the row is due at {due}"
    assert at.ms <= due, f"the entry is {at.ms - due} ms later than the row"


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=lambda order: "".join(map(str, order)))
@pytest.mark.parametrize(
    "dues",
    [
        pytest.param([NOW, NOW + HOUR, NOW + 2 * HOUR, NOW + 3 * HOUR], id="later-later-later"),
        pytest.param([NOW, NOW + HOUR, NOW + 2 * HOUR, NOW + HOUR // 2], id="later-later-earlier"),
        pytest.param([NOW, NOW + 2 * HOUR, NOW + HOUR, NOW + 3 * HOUR], id="later-earlier-later"),
        pytest.param([NOW, NOW + HOUR, NOW - HOUR, NOW - 2 * HOUR], id="later-earlier-earlier"),
        pytest.param([NOW, NOW - HOUR, NOW + HOUR, NOW + 2 * HOUR], id="earlier-later-later"),
        pytest.param([NOW, NOW - HOUR, NOW + HOUR, NOW - 2 * HOUR], id="earlier-later-earlier"),
        pytest.param([NOW, NOW + HOUR, NOW, NOW + 2 * HOUR], id="later-back-later"),
        pytest.param([NOW, NOW + HOUR, NOW + 2 * HOUR, NOW], id="later-later-back"),
    ],
)
def test_three_reschedules_written_in_any_order_never_leave_the_entry_late(
    bucket: Bucket, dues: list[int], order: tuple[int, ...]
) -> None:
    bucket.add(1, dues[0])
    moves = list(pairwise(dues))
    for seen, new in (moves[i] for i in order):
        if new > seen:
            bucket.settle(1, seen, new)
        else:
            bucket.add(1, new, mark=True)
    assert_not_late(bucket, 1, dues[-1])


def test_a_mark_makes_a_settle_fail_that_saw_the_score_before_it(bucket: Bucket) -> None:
    bucket.add(1, NOW)
    bucket.add(1, NOW, mark=True)
    assert bucket.settle(1, NOW, NOW + HOUR) == 0
    assert_not_late(bucket, 1, NOW)


def test_without_a_mark_the_same_settle_succeeds(bucket: Bucket) -> None:
    bucket.add(1, NOW)
    bucket.add(1, NOW)
    assert bucket.settle(1, NOW, NOW + HOUR) == 1


@pytest.mark.parametrize("zset", ["due", "ready"])
def test_a_mark_makes_a_stale_removal_fail(bucket: Bucket, zset: str) -> None:
    bucket.put(1, At(zset, NOW))
    bucket.add(1, NOW + HOUR, mark=True)  # row: dead, then retried by staff
    assert bucket.settle(1, NOW, GONE) == 0
    assert_not_late(bucket, 1, NOW + HOUR)


def test_run_now_beats_the_write_of_a_worker_that_found_the_job_not_yet_due(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.reserve(until=UNTIL)
    # the worker reads the row: due in an hour. Then staff run it now; row: NOW
    bucket.add(1, NOW, mark=True)
    assert bucket.settle(1, UNTIL, NOW + HOUR) == 0
    assert_not_late(bucket, 1, NOW)


def test_a_reschedule_to_just_after_the_grace_beats_the_same_write(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.reserve(until=UNTIL)
    bucket.add(1, UNTIL + 1000, mark=True)  # row: a second after the grace; the entry is earlier and stays
    assert bucket.settle(1, UNTIL, NOW + HOUR) == 0
    assert_not_late(bucket, 1, UNTIL + 1000)


def test_a_late_write_of_a_claim_does_not_delay_a_job_that_was_reserved_again(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.reserve(until=UNTIL)
    # row: claimed until LEASE; its worker hangs before it writes to the mirror
    bucket.promote(UNTIL)
    bucket.reserve(until=UNTIL + GRACE)
    assert bucket.settle(1, UNTIL, LEASE) == 0
    assert bucket.where(1) == At("due", UNTIL + GRACE)


def test_a_finish_written_before_its_claim_leaves_only_a_stale_entry(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.reserve(until=UNTIL)
    assert bucket.settle(1, LEASE, GONE) == 0
    assert bucket.settle(1, UNTIL, LEASE) == 1
    assert bucket.where(1) == At("due", LEASE), "stale: the next claim finds no job and removes it"


def test_a_cancel_written_before_its_schedule_leaves_only_a_stale_entry(bucket: Bucket) -> None:
    assert bucket.settle(1, NOW, GONE) == 0
    bucket.add(1, NOW)
    assert bucket.where(1) == At("due", NOW)


def test_a_ready_job_that_is_added_again_has_one_entry(bucket: Bucket) -> None:
    bucket.add(1, NOW)
    bucket.promote()
    bucket.add(1, NOW)
    bucket.add(1, NOW - HOUR, mark=True)
    assert [at.zset for at in bucket.everywhere(1)] == ["ready"]


def test_a_snoozed_job_that_is_still_ready_becomes_delayed_in_one_step(bucket: Bucket) -> None:
    bucket.add(1, NOW)
    bucket.promote()
    bucket.settle(1, NOW, NOW + HOUR)
    assert bucket.everywhere(1) == [At("due", NOW + HOUR)]


def test_a_cancelled_job_that_was_promoted_meanwhile_is_removed(bucket: Bucket) -> None:
    bucket.add(1, NOW)
    bucket.promote()
    assert bucket.settle(1, NOW, GONE) == 1
    assert bucket.reserve() == []
