"""The mirror may be early, never late, in whatever order the writes arrive.

A change commits in the database first; what it tells the mirror arrives some time later, so each
story here says when the row changed (`# row`) and lets the messages come in the wrong order.
test_overtaking.py does the same with the public verbs.
"""

from itertools import pairwise, permutations

import pytest

from delaytasks.places import GONE
from tests.lua.bench import GRACE, NOW, At, Bench

HOUR = 3_600_000
UNTIL = NOW + GRACE
LEASE = NOW + 60_000


def never_later(bench: Bench, job: int, due: int) -> None:
    at = bench.where(job)
    assert at is not None, f"the entry is gone; the row says {due}"
    assert at.ms <= due, f"the entry is {at.ms - due} ms later than the row says"


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
def test_three_reschedules_told_in_any_order_never_leave_the_entry_late(
    bench: Bench, dues: list[int], order: tuple[int, ...]
) -> None:
    bench.add(1, dues[0])
    moves = list(pairwise(dues))
    for seen, new in (moves[i] for i in order):
        if new > seen:
            bench.settle(1, seen, new)
        else:
            bench.add(1, new, mark=True)
    never_later(bench, 1, dues[-1])


def test_a_mark_defeats_a_settle_that_saw_the_score_before_it(bench: Bench) -> None:
    bench.add(1, NOW)
    bench.add(1, NOW, mark=True)
    assert bench.settle(1, NOW, NOW + HOUR) == 0
    never_later(bench, 1, NOW)


def test_without_a_mark_the_same_settle_goes_through(bench: Bench) -> None:
    bench.add(1, NOW)
    bench.add(1, NOW)
    assert bench.settle(1, NOW, NOW + HOUR) == 1


@pytest.mark.parametrize("place", ["due", "ready"])
def test_a_mark_defeats_a_stale_removal(bench: Bench, place: str) -> None:
    bench.put(1, At(place, NOW))
    bench.add(1, NOW + HOUR, mark=True)  # row: dead, and retried by staff
    assert bench.settle(1, NOW, GONE) == 0
    never_later(bench, 1, NOW + HOUR)


def test_run_now_defeats_the_answer_of_a_worker_that_found_the_job_not_yet_due(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.reserve(until=UNTIL)
    # the worker asks the database: due in an hour. Then staff say run now; row: NOW
    bench.add(1, NOW, mark=True)
    assert bench.settle(1, UNTIL, NOW + HOUR) == 0
    never_later(bench, 1, NOW)


def test_a_job_moved_to_within_the_grace_defeats_the_same_answer_too(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.reserve(until=UNTIL)
    bench.add(1, UNTIL + 1000, mark=True)  # row: a second after the grace; the entry is earlier and stays
    assert bench.settle(1, UNTIL, NOW + HOUR) == 0
    never_later(bench, 1, UNTIL + 1000)


def test_a_claim_that_is_told_late_does_not_hold_up_what_was_reserved_again(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.reserve(until=UNTIL)
    # row: claimed until LEASE; its worker hangs before it tells the mirror
    bench.promote(UNTIL)
    bench.reserve(until=UNTIL + GRACE)
    assert bench.settle(1, UNTIL, LEASE) == 0
    assert bench.where(1) == At("due", UNTIL + GRACE)


def test_a_finish_told_before_its_claim_leaves_an_early_entry_and_no_lost_job(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.reserve(until=UNTIL)
    assert bench.settle(1, LEASE, GONE) == 0
    assert bench.settle(1, UNTIL, LEASE) == 1
    assert bench.where(1) == At("due", LEASE), "a ghost: the claim will find nothing, and remove it"


def test_a_cancel_told_before_its_schedule_leaves_a_ghost_and_nothing_worse(bench: Bench) -> None:
    assert bench.settle(1, NOW, GONE) == 0
    bench.add(1, NOW)
    assert bench.where(1) == At("due", NOW)


def test_a_job_that_is_ready_and_fed_again_is_not_in_two_places(bench: Bench) -> None:
    bench.add(1, NOW)
    bench.promote()
    bench.add(1, NOW)
    bench.add(1, NOW - HOUR, mark=True)
    assert [at.place for at in bench.everywhere(1)] == ["ready"]


def test_a_snoozed_job_that_is_still_ready_goes_back_to_due_in_one_step(bench: Bench) -> None:
    bench.add(1, NOW)
    bench.promote()
    bench.settle(1, NOW, NOW + HOUR)
    assert bench.everywhere(1) == [At("due", NOW + HOUR)]


def test_a_cancelled_job_that_was_promoted_meanwhile_is_removed_from_ready(bench: Bench) -> None:
    bench.add(1, NOW)
    bench.promote()
    assert bench.settle(1, NOW, GONE) == 1
    assert bench.reserve() == []
