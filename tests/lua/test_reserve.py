"""reserve.lua: the oldest ready jobs go back among the delayed until a moment soon; nothing is only in a hand."""

import pytest

from tests.lua.bench import GRACE, NOW, OTHER, At, Bench

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
def test_a_ready_job_is_put_back_at_until_and_no_other_is_touched(
    bench: Bench, before: At | None, after: At | None, ids: list[int]
) -> None:
    bench.put(1, before)
    assert bench.reserve(until=UNTIL) == ids
    assert bench.where(1) == after


def test_the_oldest_come_first_and_the_rest_stay_ready(bench: Bench) -> None:
    for job in range(5):
        bench.put(job, At("ready", NOW - job))
    assert bench.reserve(2) == [4, 3]
    assert bench.reserve(10) == [2, 1, 0]


def test_another_topics_jobs_are_not_reserved(bench: Bench) -> None:
    bench.put(1, At("ready", NOW), OTHER)
    assert bench.reserve() == []
    assert bench.reserve(topic=OTHER) == [1]


def test_two_who_reserve_never_get_the_same_job(bench: Bench) -> None:
    for job in range(10):
        bench.put(job, At("ready", NOW + job))
    first, second = bench.reserve(6), bench.reserve(6)
    assert sorted(first + second) == list(range(10))
    assert not set(first) & set(second)


def test_a_thousand_are_reserved_in_one_call_and_never_more(bench: Bench) -> None:
    bench.client.zadd(bench.keys.ready(0, "t"), {f"{job}:t": NOW for job in range(1200)})
    assert len(bench.reserve(5000, topic="t")) == 1000
    assert (len(bench.due()), len(bench.ready("t"))) == (1000, 200)


@pytest.mark.parametrize("count", [0, -1])
def test_who_asks_for_none_gets_none(bench: Bench, count: int) -> None:
    for job in range(3):
        bench.put(job, At("ready", NOW))
    assert bench.reserve(count) == []
    assert len(bench.ready()) == 3


def test_the_dead_consumers_job_is_ready_again_when_its_grace_is_over(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.reserve(until=UNTIL)
    bench.promote(UNTIL - 1)
    assert bench.where(1) == At("due", UNTIL)
    bench.promote(UNTIL)
    assert bench.reserve(until=UNTIL + GRACE) == [1]


def test_what_is_due_is_reserved_without_what_is_due_later(bench: Bench) -> None:
    for job, at in enumerate([NOW - 5, NOW, NOW + 1, NOW + 1, NOW + 2]):
        bench.put(job, At("ready", at))
    assert bench.reserve_by(NOW) == (NOW, [0, 1])
    assert bench.reserve_by(NOW) == (NOW + 1, [2, 3]), "nothing is due: what is next, and when"
    assert bench.where(4) == At("ready", NOW + 2)
