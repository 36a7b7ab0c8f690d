"""What the benchmark of the retention calculates from windows with and without pruning."""

import pytest

from benchmarks.retention import SETTLE_SECONDS, Window, summary
from benchmarks.sink import Record

pytestmark = pytest.mark.tools
JOBS = 200


def window(number: int, *, pruning: bool, vacuuming: bool = False) -> Window:
    return Window(10.0 * number, 10.0 * (number + 1), pruning, vacuuming)


def records(of: Window, late_ms: int) -> list[Record]:
    """Jobs of a window, all as late as this."""
    step = (of.end - of.begin - SETTLE_SECONDS) / JOBS
    dues = [round((of.begin + SETTLE_SECONDS + n * step) * 1e6) for n in range(JOBS)]
    return [Record(n, due, due + late_ms * 1000) for n, due in enumerate(dues)]


def test_the_ratio_is_that_of_neighbouring_windows_in_either_order() -> None:
    """The machine becomes ten times slower in the middle: the ratio of all jobs would show that instead."""
    windows = [window(0, pruning=False), window(1, pruning=True), window(2, pruning=True), window(3, pruning=False)]
    found = [record for each, ms in zip(windows, (10, 12, 140, 100), strict=True) for record in records(each, ms)]
    without, beside, ratios = summary(found, windows)
    assert without.startswith("without: 400 jobs, p50 10.0 ms")
    assert beside.startswith("beside prune: 400 jobs, p50 12.0 ms")
    assert ratios == "p99 ratio of 2 pairs: median 1.30, half within 1.20 to 1.40"


def test_a_vacuum_beside_the_window_without_pruning_is_counted_apart() -> None:
    windows = [window(0, pruning=False, vacuuming=True), window(1, pruning=True)]
    found = [*records(windows[0], 10), *records(windows[1], 5)]
    assert summary(found, windows)[2:] == [
        "p99 ratio of 1 pairs with a vacuum in the window without prune: median 0.50, half within 0.50 to 0.50"
    ]


def test_jobs_of_the_first_moments_of_a_window_do_not_count() -> None:
    windows = [window(0, pruning=False), window(1, pruning=True)]
    late = Record(1, 10_000_000, 11_000_000)  # it waited for the window before
    found = [*records(windows[0], 10), late, *records(windows[1], 10)]
    assert (
        summary(found, windows)[1] == "beside prune: 200 jobs, p50 10.0 ms, p95 10.0 ms, p99 10.0 ms, longest 10.0 ms"
    )
