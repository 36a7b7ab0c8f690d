"""Record that a handler ran: 24 bytes per job, in a file per process. Uses only the standard library.

A record is three little-endian 64-bit integers: the job's number, its due time and the start of its handler, both in
microseconds of the wall clock. Records are appended with one write(2), so a killed worker leaves no partial record.
"""

import os
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

RECORD = struct.Struct("<qqq")

_open: tuple[int, int] = (0, -1)  # (process id, file descriptor); a forked child opens its own file


def ran(n: int, due_us: int) -> None:
    """Record that the handler of job `n` starts now, with one write."""
    os.write(_descriptor(), RECORD.pack(n, due_us, time.time_ns() // 1000))


def ran_all(jobs: Iterable[tuple[int, int]]) -> None:
    """Record that the handler of these (number, due_us) starts now, with one write."""
    now_us = time.time_ns() // 1000
    os.write(_descriptor(), b"".join(RECORD.pack(n, due_us, now_us) for n, due_us in jobs))


def records(folder: Path) -> Iterator[tuple[int, int, int]]:
    """Yield (number, due_us, start_us) of all records written so far."""
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
