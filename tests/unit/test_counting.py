"""How time is shared out among counts: exact where it can be, "at least" where it cannot, and never much longer."""

import pytest

from delaytasks import counting, forecast
from delaytasks.counting import Count, Known


class Table:
    """Rows to count, at so many rows a second of a clock that only counting moves."""

    def __init__(self, *sizes: int, rows_per_second: float) -> None:
        self.sizes, self.rows_per_second, self.now, self.read = sizes, rows_per_second, 0.0, 0
        self.rounds: list[tuple[int, int]] = []  # (counts asked for, cap)

    def ask(self, numbers, cap):
        self.rounds.append((len(numbers), cap))
        answers = {number: min(self.sizes[number], cap) for number in numbers}
        self.read += sum(answers.values())
        self.now += sum(answers.values()) / self.rows_per_second
        return answers

    def look(self, seconds: float, before: list[Known] | None = None) -> list[Known]:
        return counting.Look(self.ask, before or [None] * len(self.sizes), seconds, lambda: self.now).count()

    def count(self, seconds: float) -> list[Count]:
        return [known.counted for known in self.look(seconds)]


def test_what_is_small_is_counted_to_its_end_in_one_round():
    table = Table(*[10] * 60, rows_per_second=1e6)
    assert table.count(0.1) == [Count(10)] * 60
    assert len(table.rounds) == 1


def test_one_herd_among_small_ones_is_counted_to_its_last_job():
    table = Table(*[10] * 30, 40_000, *[10] * 29, rows_per_second=3e6)
    found = table.count(0.1)
    assert found[30] == Count(40_000)
    assert table.rounds[1][0] == 1  # the small ones are not counted again


def test_what_is_too_much_to_count_is_so_many_at_least():
    found = Table(*[3_000_000] * 24, rows_per_second=3e6).count(0.1)
    assert all(not each.whole and 0 < each.number < 3_000_000 for each in found)


@pytest.mark.parametrize("rows_per_second", [1e5, 1e6, 1e7])
def test_counting_takes_little_longer_than_it_may(rows_per_second):
    table = Table(*[1_000_000] * 60, rows_per_second=rows_per_second)
    table.count(0.1)
    assert table.now <= 0.11 or table.read <= counting.SURE_ROWS


def test_a_slow_moment_does_not_make_small_things_uncertain():
    table = Table(5_000, 7_000, 20, rows_per_second=1e4)
    assert table.count(0.01) == [Count(5_000), Count(7_000), Count(20)]


def test_just_as_many_as_the_cap_may_be_more():
    table = Table(counting.FIRST_ROWS, rows_per_second=1e6)
    assert table.count(1) == [Count(counting.FIRST_ROWS)]
    assert len(table.rounds) == 2  # the first one could not know


def test_looks_one_after_the_other_count_what_one_could_not():
    table = Table(*[125_000] * 24, 300, rows_per_second=3e6)
    known = None
    for _ in range(40):
        began = table.now
        known = table.look(0.06, known)
        assert table.now - began < 0.08
        assert known[24].counted == Count(300)
    assert [each.counted for each in known] == [*[Count(125_000)] * 24, Count(300)]


def test_what_is_too_large_for_any_look_does_not_keep_the_others_waiting():
    table = Table(9_000_000, 125_000, 8_000_000, 125_000, rows_per_second=3e6)
    known = None
    for _ in range(12):
        known = table.look(0.06, known)
    assert [each.counted.whole for each in known] == [False, True, False, True]


def test_what_was_found_longest_ago_is_counted_first():
    table = Table(*[50_000] * 6, rows_per_second=3e6)
    known = None
    for _ in range(6):
        known = table.look(0.06, known)
    table.sizes = (60_000,) * 6
    for _ in range(6):
        known = table.look(0.06, known)
    assert [each.counted for each in known] == [Count(60_000)] * 6


def test_what_is_known_does_not_become_less_because_a_look_had_no_time():
    table = Table(*[50_000] * 4, rows_per_second=3e6)
    known = None
    for _ in range(6):
        known = table.look(0.06, known)
    for _ in range(10):
        known = table.look(0, known)
        assert [each.counted for each in known] == [Count(50_000)] * 4


def test_what_was_taken_from_a_look_before_is_known_to_be_old():
    table = Table(50_000, 50_000, 10, rows_per_second=3e6)
    known = table.look(1, table.look(1))
    assert [each.old for each in known] == [False, False, False]
    known = table.look(0, known)
    assert [each.old for each in known] == [True, True, False]
    assert [each.old for each in table.look(1, known)] == [False, False, False]


def test_but_not_for_ever():
    table = Table(900_000, rows_per_second=3e6)
    known = table.look(1, table.look(0.01))
    assert known[0].counted == Count(900_000)
    table.sizes = (700_000,)
    for _ in range(counting.GOOD_LOOKS):
        known = table.look(0, known)
    assert not known[0].counted.whole
    assert known[0].counted.number < 700_000


def test_what_was_found_before_is_not_kept_when_it_has_become_small():
    table = Table(50_000, 50_000, rows_per_second=3e6)
    known = table.look(0.06, table.look(0.06))
    table.sizes = (10, 50_000)
    assert table.look(0, known)[0].counted == Count(10)


def test_the_sum_of_counts_is_whole_if_each_is():
    assert counting.together([]) == Count(0)
    assert counting.together([Count(3), Count(4)]) == Count(7)
    assert counting.together([Count(3), Count(4, False)]) == Count(7, False)


# -- herds --------------------------------------------------------------------------------------


def test_a_herd_is_many_times_what_is_around_it():
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
