"""The records written by the benchmark's handlers."""

import os
import struct
import time

import pytest

from benchmarks.contestants import sink

pytestmark = pytest.mark.tools


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("BENCH_SINK", str(tmp_path))
    monkeypatch.setattr(sink, "_open", (0, -1))
    yield tmp_path
    if sink._open[1] >= 0:
        os.close(sink._open[1])


def now_us():
    return time.time_ns() // 1000


def test_a_record_has_the_number_the_due_time_and_the_start(folder):
    before = now_us()
    sink.ran(7, 1_700_000_000_000_001)
    n, due_us, start_us = struct.unpack("<qqq", (folder / f"{os.getpid()}.bin").read_bytes())
    assert (n, due_us) == (7, 1_700_000_000_000_001)
    assert before <= start_us <= now_us()


def test_a_batch_is_one_write_and_has_one_start(folder, monkeypatch):
    writes = []
    write = os.write
    monkeypatch.setattr(os, "write", lambda *args: writes.append(args) or write(*args))
    sink.ran_all((n, n * 10) for n in range(3))
    assert len(writes) == 1
    found = list(sink.records(folder))
    assert [record[:2] for record in found] == [(0, 0), (1, 10), (2, 20)]
    assert len({start_us for _, _, start_us in found}) == 1


def test_records_are_appended_after_the_file_was_truncated(folder):
    sink.ran(1, 0)
    os.truncate(folder / f"{os.getpid()}.bin", 0)
    sink.ran(2, 0)
    sink.ran(3, 0)
    assert [n for n, *_ in sink.records(folder)] == [2, 3]


def test_a_forked_child_writes_to_its_own_file(folder, monkeypatch):
    sink.ran(1, 0)
    own = sink._open[1]
    monkeypatch.setattr(os, "getpid", lambda: 1)
    sink.ran(2, 0)
    assert len(list(folder.glob("*.bin"))) == 2
    assert sorted(n for n, *_ in sink.records(folder)) == [1, 2]
    os.close(own)


def test_a_partial_record_at_the_end_is_ignored(folder):
    sink.ran(1, 0)
    with (folder / "99.bin").open("wb") as file:
        file.write(sink.RECORD.pack(2, 0, 0) + b"half")
    assert sorted(n for n, *_ in sink.records(folder)) == [1, 2]
