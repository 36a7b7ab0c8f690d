"""add.lua: an entry becomes earlier or stays, and is never in two places."""

import pytest

from tests.lua.bench import GRACE, NOW, OTHER, At, Bench

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
def test_an_added_entry_is_as_early_as_the_earlier_of_the_two(
    bench: Bench, before: At | None, ms: int, mark: bool, after: At, added: int
) -> None:
    bench.put(1, before)
    assert bench.add(1, ms, mark=mark) == added
    assert bench.where(1) == after


def test_a_thousand_jobs_are_added_in_one_call_and_those_that_were_there_are_not_counted(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.put(2, At("due", NOW))
    assert bench.add_all((job, LATER + job) for job in range(1, 1001)) == 998
    assert len(bench.due()) == 999
    assert bench.where(1000) == At("due", LATER + 1000)


def test_what_is_beyond_a_thousand_is_left_for_another_call(bench: Bench) -> None:
    assert bench.add_all((job, LATER) for job in range(1001)) == 1000
    assert bench.where(1000) is None


def test_the_same_id_under_another_topic_is_another_entry(bench: Bench) -> None:
    bench.put(1, At("ready", NOW), OTHER)
    assert bench.add(1, LATER) == 1
    assert bench.where(1) == At("due", LATER)
    assert bench.where(1, OTHER) == At("ready", NOW)


@pytest.mark.parametrize("mark", [False, True])
def test_an_empty_call_adds_nothing(bench: Bench, mark: bool) -> None:
    bench.put(1, At("due", NOW))
    assert bench.add_all([], mark=mark) == 0
    assert bench.where(1) == At("due", NOW)


# Who is told


def test_the_movers_are_told_when_the_first_entry_arrives(bench, heard) -> None:
    bench.add(1, LATER)
    assert heard() == [str(LATER)]


def test_the_movers_are_told_the_new_head_when_it_becomes_earlier(bench, heard) -> None:
    bench.put(1, At("due", LATER))
    bench.add(2, NOW)
    bench.add(2, EARLIER)
    assert heard() == [str(NOW), str(EARLIER)]


@pytest.mark.parametrize("ms", [NOW, LATER])
def test_the_movers_are_not_disturbed_when_the_head_stays(bench, heard, ms: int) -> None:
    bench.put(1, At("due", NOW))
    bench.add(2, ms)
    assert heard() == []


def test_the_movers_are_not_disturbed_by_a_job_that_is_ready_already(bench, heard) -> None:
    bench.put(1, At("ready", NOW))
    bench.put(2, At("due", LATER))
    bench.add(1, EARLIER, mark=True)
    assert heard() == []


def test_the_movers_are_told_once_for_a_whole_call(bench, heard) -> None:
    bench.add_all((job, LATER - job) for job in range(100))
    assert heard() == [str(LATER - 99)]
