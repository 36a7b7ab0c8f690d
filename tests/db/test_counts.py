"""Counts are exact if the time allows, otherwise lower bounds, and take little longer than allowed."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from delaytasks import schedule_many
from delaytasks.db import counts
from delaytasks.db.counts import Count, KnownCount
from delaytasks.models import Topic
from delaytasks.monitoring import forecast


class Table:
    """A fake table that is counted at a fixed speed, by a clock that only counting advances."""

    def __init__(self, *sizes: int, rows_per_second: float) -> None:
        self.sizes, self.rows_per_second, self.now, self.rows_read = sizes, rows_per_second, 0.0, 0
        self.rounds: list[tuple[int, int]] = []  # (number of counts, cap)

    def count_up_to(self, numbers, cap):
        self.rounds.append((len(numbers), cap))
        found = {number: min(self.sizes[number], cap) for number in numbers}
        self.rows_read += sum(found.values())
        self.now += sum(found.values()) / self.rows_per_second
        return found

    def count_pass(self, seconds: float, before: list[KnownCount] | None = None) -> list[KnownCount]:
        return counts.CountPass(self.count_up_to, before or [None] * len(self.sizes), seconds, lambda: self.now).count()

    def count(self, seconds: float) -> list[Count]:
        return [known.counted for known in self.count_pass(seconds)]


def test_small_counts_are_exact_after_one_round():
    table = Table(*[10] * 60, rows_per_second=1e6)
    assert table.count(0.1) == [Count(10)] * 60
    assert len(table.rounds) == 1


def test_one_large_count_among_small_ones_is_exact():
    table = Table(*[10] * 30, 40_000, *[10] * 29, rows_per_second=3e6)
    found = table.count(0.1)
    assert found[30] == Count(40_000)
    assert table.rounds[1][0] == 1  # the small ones are not counted again


def test_counts_of_millions_are_lower_bounds():
    found = Table(*[3_000_000] * 24, rows_per_second=3e6).count(0.1)
    assert all(not each.complete and 0 < each.number < 3_000_000 for each in found)


@pytest.mark.parametrize("rows_per_second", [1e5, 1e6, 1e7])
def test_counting_takes_little_longer_than_allowed(rows_per_second):
    table = Table(*[1_000_000] * 60, rows_per_second=rows_per_second)
    table.count(0.1)
    assert table.now <= 0.11 or table.rows_read <= counts.SURE_ROWS


def test_small_counts_are_exact_even_on_a_slow_database():
    table = Table(5_000, 7_000, 20, rows_per_second=1e4)
    assert table.count(0.01) == [Count(5_000), Count(7_000), Count(20)]


def test_a_count_that_equals_the_cap_is_counted_again():
    table = Table(counts.FIRST_ROWS, rows_per_second=1e6)
    assert table.count(1) == [Count(counts.FIRST_ROWS)]
    assert len(table.rounds) == 2  # the first round reached its cap


def test_successive_passes_count_what_one_pass_cannot():
    table = Table(*[125_000] * 24, 300, rows_per_second=3e6)
    known = None
    for _ in range(40):
        began = table.now
        known = table.count_pass(0.06, known)
        assert table.now - began < 0.08
        assert known[24].counted == Count(300)
    assert [each.counted for each in known] == [*[Count(125_000)] * 24, Count(300)]


def test_a_count_that_is_too_large_for_any_pass_does_not_block_the_others():
    table = Table(9_000_000, 125_000, 8_000_000, 125_000, rows_per_second=3e6)
    known = None
    for _ in range(12):
        known = table.count_pass(0.06, known)
    assert [each.counted.complete for each in known] == [False, True, False, True]


def test_the_oldest_count_is_made_again_first():
    table = Table(*[50_000] * 6, rows_per_second=3e6)
    known = None
    for _ in range(6):
        known = table.count_pass(0.06, known)
    table.sizes = (60_000,) * 6
    for _ in range(6):
        known = table.count_pass(0.06, known)
    assert [each.counted for each in known] == [Count(60_000)] * 6


def test_an_earlier_count_stays_if_a_pass_has_no_time():
    table = Table(*[50_000] * 4, rows_per_second=3e6)
    known = None
    for _ in range(6):
        known = table.count_pass(0.06, known)
    for _ in range(10):
        known = table.count_pass(0, known)
        assert [each.counted for each in known] == [Count(50_000)] * 4


def test_a_count_from_an_earlier_pass_is_marked_as_old():
    table = Table(50_000, 50_000, 10, rows_per_second=3e6)
    known = table.count_pass(1, table.count_pass(1))
    assert [each.old for each in known] == [False, False, False]
    known = table.count_pass(0, known)
    assert [each.old for each in known] == [True, True, False]
    assert [each.old for each in table.count_pass(1, known)] == [False, False, False]


def test_an_earlier_count_is_dropped_after_some_passes():
    table = Table(900_000, rows_per_second=3e6)
    known = table.count_pass(1, table.count_pass(0.01))
    assert known[0].counted == Count(900_000)
    table.sizes = (700_000,)
    for _ in range(counts.VALID_PASSES):
        known = table.count_pass(0, known)
    assert not known[0].counted.complete
    assert known[0].counted.number < 700_000


def test_an_earlier_count_is_replaced_by_a_smaller_exact_one():
    table = Table(50_000, 50_000, rows_per_second=3e6)
    known = table.count_pass(0.06, table.count_pass(0.06))
    table.sizes = (10, 50_000)
    assert table.count_pass(0, known)[0].counted == Count(10)


def test_the_sum_of_counts_is_exact_if_each_count_is():
    assert counts.total([]) == Count(0)
    assert counts.total([Count(3), Count(4)]) == Count(7)
    assert counts.total([Count(3), Count(4, False)]) == Count(7, False)


# -- herds --------------------------------------------------------------------------------------


def test_a_herd_is_many_times_larger_than_its_surroundings():
    assert forecast.herds([10, 12, 9, 400, 11, 10, 13]) == [3]
    assert forecast.herds([100, 120, 90, 250, 110, 100, 130]) == []


def test_a_few_jobs_in_an_empty_hour_are_no_herd():
    assert forecast.herds([0, 0, 0, 12, 0, 0]) == []
    assert forecast.herds([0, 0, 0, 4000, 0, 0]) == [3]


def test_a_steady_load_has_no_herd_however_high():
    assert forecast.herds([10_000] * 60) == []


def test_a_herd_of_two_minutes_is_marked_in_both():
    assert forecast.herds([10] * 20 + [4000, 3000] + [10] * 20) == [20, 21]


def test_a_herd_at_either_end_is_found():
    assert forecast.herds([4000] + [10] * 20) == [0]
    assert forecast.herds([10] * 20 + [4000]) == [20]
    assert forecast.herds([4000]) == [0]


@pytest.mark.only_on("sqlite")
@pytest.mark.django_db
def test_the_backlog_of_a_held_topic_is_not_read():
    now = timezone.now()
    Topic.objects.create(name="t", held_since=now, held_until=now + timedelta(seconds=5))
    schedule_many({"topic": "t", "key": f"{n}", "delay": 0} for n in range(2_000))
    instructions = 0

    def count() -> None:
        nonlocal instructions
        instructions += 100

    connection.connection.set_progress_handler(count, 100)
    try:
        assert counts.oldest_ready("default", ["t"]) == {}
    finally:
        connection.connection.set_progress_handler(None, 0)
    assert instructions < 1_000
