"""settle.lua: compare and set; whoever saw an old score changes nothing."""

import pytest

from delaytasks.places import GONE
from tests.lua.bench import GRACE, NOW, OTHER, At, Bench, Settle

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
def test_an_entry_goes_where_it_belongs_if_it_still_is_as_seen(
    bench: Bench, before: At | None, seen: int, new: int, after: At | None, changed: int
) -> None:
    bench.put(1, before)
    assert bench.settle(1, seen, new) == changed
    assert bench.where(1) == after


@pytest.mark.parametrize("new", [LATER, EARLIER, GONE], ids=["later", "earlier", "removed"])
@pytest.mark.parametrize("seen", [NOW - 1, NOW + 1, 0], ids=["seen-later", "seen-earlier", "never-seen"])
@pytest.mark.parametrize("before", [At("due", NOW), At("ready", NOW)], ids=["due", "ready"])
def test_a_settle_that_saw_another_score_makes_an_entry_earlier_at_most(
    bench: Bench, before: At, seen: int, new: int
) -> None:
    earlier = (before.place, new) == ("due", EARLIER)
    bench.put(1, before)
    assert bench.settle(1, seen, new) == earlier
    assert bench.where(1) == (At("due", EARLIER) if earlier else before)


def test_removing_one_leaves_its_neighbours(bench: Bench) -> None:
    for job, at in [(1, At("due", NOW)), (2, At("due", NOW)), (3, At("ready", NOW))]:
        bench.put(job, at)
    bench.put(1, At("ready", NOW), OTHER)
    assert bench.settle(1, NOW, GONE) == 1
    assert [bench.where(1), bench.where(2), bench.where(3)] == [None, At("due", NOW), At("ready", NOW)]
    assert bench.where(1, OTHER) == At("ready", NOW)


def test_a_thousand_entries_are_settled_in_one_call_and_the_changed_ones_are_counted(bench: Bench) -> None:
    bench.add_all((job, NOW) for job in range(500))
    assert bench.settle_all(Settle(job, NOW, LATER + job) for job in range(1000)) == 500
    assert bench.where(499) == At("due", LATER + 499)
    bench.add_all((job, NOW) for job in range(500, 1000))
    assert bench.settle_all(Settle(job, NOW, GONE) for job in range(1000)) == 500
    assert len(bench.due()) == 500


def test_an_empty_call_settles_nothing(bench: Bench) -> None:
    bench.put(1, At("due", NOW))
    assert bench.settle_all([]) == 0
    assert bench.where(1) == At("due", NOW)


# Who is told


@pytest.mark.parametrize(
    ("place", "told"),
    [
        pytest.param(At("due", UNTIL), [str(NOW)], id="reserved-is-due-before-its-grace-is-over"),
        pytest.param(At("ready", UNTIL), [str(NOW)], id="ready-goes-back-to-an-empty-bucket"),
    ],
)
def test_the_movers_are_told_when_the_head_becomes_earlier(bench, heard, place: At, told: list[str]) -> None:
    bench.put(1, place)
    bench.settle(1, UNTIL, NOW)
    assert heard() == told


@pytest.mark.parametrize("new", [NOW, LATER, GONE], ids=["same", "later", "removed"])
def test_the_movers_are_not_disturbed_when_the_head_becomes_later_or_stays(bench, heard, new: int) -> None:
    bench.put(1, At("due", NOW))
    bench.put(2, At("due", LATER + 1))
    bench.settle(1, NOW, new)
    assert heard() == []


def test_the_movers_are_not_disturbed_by_a_settle_that_changed_nothing(bench, heard) -> None:
    bench.put(1, At("due", NOW))
    bench.settle(1, EARLIER, LATER)
    assert heard() == []
