"""What the benchmark of a web process's memory says of its samples."""

import pytest

from benchmarks.http_memory import Sample, growth, verdict

pytestmark = pytest.mark.tools


def samples(resident):
    return [Sample(10 * (n + 1), mib, mib / 2) for n, mib in enumerate(resident)]


def test_memory_that_grew_only_at_the_start_is_flat():
    flat = samples([60, 70, 80, 90, *[100] * 25, 104])
    assert growth(flat).is_flat
    early, last, result = verdict(flat).splitlines()
    assert (early.strip(), last.strip()) == (
        "30 s: 80.0 MiB resident, 40.0 MiB proportional",
        "300 s: 104.0 MiB resident, 52.0 MiB proportional",
    )
    assert result.endswith(": flat")


def test_memory_that_grows_steadily_is_not_flat():
    assert not growth(samples(range(100, 160, 2))).is_flat
    assert verdict(samples(range(100, 160, 2))).endswith(": GROWS")
