"""The number of jobs that a run reserves grows while the handler is quick and shrinks when it becomes slow."""

from collections.abc import Callable

from delaytasks.worker import runner


def batch_sizes(batch_seconds: Callable[[int], float], rounds: int = 9, target: float = 0.4) -> list[int]:
    """Return the sizes of successive batches if a batch of n jobs takes batch_seconds(n)."""
    pace, sizes = runner.Pace(), []
    for _ in range(rounds):
        sizes.append(pace.size)
        pace.update(pace.size, batch_seconds(pace.size), target, 200)
    return sizes


def test_the_batch_size_grows_fast_for_a_quick_handler_and_never_exceeds_its_limit():
    assert batch_sizes(lambda n: 0.0005 * n, rounds=5) == [1, 8, 64, 200, 200]


def test_the_batch_size_grows_for_a_batch_handler_that_takes_as_long_for_one_job_as_for_many():
    assert batch_sizes(lambda n: 0.25) == [1, 2, 4, 8, 16, 32, 64, 128, 200]


def test_the_batch_size_of_a_slow_handler_stays_small():
    assert max(batch_sizes(lambda n: 0.25 * n)) == 2
    assert batch_sizes(lambda n: 30.0 * n) == [1] * 9


def test_a_batch_that_was_not_full_does_not_change_the_batch_size():
    pace = runner.Pace(size=64)
    pace.update(3, 0.001, 0.4, 200)
    assert pace.size == 64
