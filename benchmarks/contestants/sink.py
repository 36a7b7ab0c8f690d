"""Where a handler says that it ran: 24 bytes per job in a file of its process. Pure standard library.

A record is three little-endian 64-bit integers: the job's number, when it was due and when its handler started, both
in microseconds of the wall clock. Records are appended by one write(2), so a killed worker leaves no half of one.
"""

import os
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

RECORD = struct.Struct("<qqq")

_open: tuple[int, int] = (0, -1)  # whose file it is, and its descriptor: a forked child opens one of its own


def ran(n: int, due_us: int) -> None:
    """Record that the handler of job `n` starts now. One write."""
    os.write(_descriptor(), RECORD.pack(n, due_us, time.time_ns() // 1000))


def ran_all(jobs: Iterable[tuple[int, int]]) -> None:
    """Record that the handler of all these (number, due_us) starts now. One write."""
    now_us = time.time_ns() // 1000
    os.write(_descriptor(), b"".join(RECORD.pack(n, due_us, now_us) for n, due_us in jobs))


def records(folder: Path) -> Iterator[tuple[int, int, int]]:
    """All (number, due_us, start_us) that any process has written so far."""
    for path in folder.glob("*.bin"):
        data = path.read_bytes()
        yield from RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])


def _descriptor() -> int:
    global _open
    pid = os.getpid()
    if _open[0] != pid:
        path = Path(os.environ["BENCH_SINK"], f"{pid}.bin")
        _open = pid, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    return _open[1]
