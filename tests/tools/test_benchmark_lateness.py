"""The numbers that the benchmark calculates from the handlers' records."""

import math
import time

import pytest

from benchmarks import sink
from benchmarks.sink import Record, Sink

pytestmark = pytest.mark.tools


def write(folder, name, records, more=b""):
    (folder / name).write_bytes(b"".join(sink.RECORD.pack(*record) for record in records) + more)


def test_records_of_all_processes_are_read_without_partial_ones(tmp_path):
    folder = Sink(tmp_path)
    write(tmp_path, "1.bin", [(0, 5, 6)])
    write(tmp_path, "2.bin", [(1, 5, 7), (2, 5, 8)], b"half")
    write(tmp_path, "3.bin", [])
    assert folder.records() == [Record(0, 5, 6), Record(1, 5, 7), Record(2, 5, 8)]
    assert (folder.count(), folder.writers()) == (3, 2)


def test_processes_keep_writing_to_their_files_after_the_sink_is_emptied(tmp_path):
    folder = Sink(tmp_path)
    with (tmp_path / "1.bin").open("ab", buffering=0) as file:
        file.write(sink.RECORD.pack(1, 1, 1))
        folder.empty()
        file.write(sink.RECORD.pack(2, 2, 2))
    assert folder.records() == [Record(2, 2, 2)]


def test_waiting_for_too_many_records_returns_false(tmp_path):
    write(tmp_path, "1.bin", [(0, 5, 6)])
    assert Sink(tmp_path).await_count(1, seconds=0)
    assert not Sink(tmp_path).await_count(2, seconds=0)


def test_waiting_ends_when_no_new_records_arrive(tmp_path):
    begun = time.monotonic()
    assert not Sink(tmp_path).await_count(1, seconds=20, stalled=0)
    assert time.monotonic() - begun < 10


def test_lateness_counts_early_missing_and_twice():
    records = [Record(0, 1000, 3000), Record(1, 1000, 500), Record(1, 1000, 6000)]
    found = sink.lateness(records, count=3)
    assert (found["p50_ms"], found["max_ms"], found["earliest_ms"]) == (2.0, 5.0, -0.5)
    assert (found["early"], found["missing"], found["twice"]) == (1, 1, 1)


def test_without_records_the_lateness_is_nan():
    found = sink.lateness([], count=2)
    assert math.isnan(found["p99_ms"])
    assert found["missing"] == 2


@pytest.mark.parametrize(("percent", "value"), [(50, 50), (99, 99), (100, 100), (0, 1)])
def test_a_percentile_is_one_of_the_values(percent, value):
    assert sink.percentile([float(n) for n in range(1, 101)], percent) == value


def test_the_rate_of_a_burst_is_measured_to_the_last_start():
    records = [Record(0, 10_000_000, 10_000_100), Record(1, 10_000_000, 10_500_000)]
    assert sink.per_second(records, due=10.0) == 4.0
    assert sink.per_second([], due=10.0) == 0.0
