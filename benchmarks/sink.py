"""Read the handlers' records of due times and start times, in the format of contestants/sink.py."""

import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

RECORD = struct.Struct("<qqq")


class Record(NamedTuple):
    n: int
    due_us: int
    start_us: int


class Sink:
    """The folder with a record file of each worker process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.bin"))

    def count(self) -> int:
        return sum(file.stat().st_size for file in self.files()) // RECORD.size

    def writers(self) -> int:
        """Return how many processes wrote records since it was emptied."""
        return sum(file.stat().st_size > 0 for file in self.files())

    def records(self) -> list[Record]:
        return [Record(*fields) for file in self.files() for fields in RECORD.iter_unpack(complete(file.read_bytes()))]

    def empty(self) -> None:
        """Truncate the files; processes keep them open and append."""
        for file in self.files():
            file.open("wb").close()

    def await_count(self, count: int, seconds: float, stalled: float = math.inf) -> bool:
        """Wait for `count` records; return False after `seconds`, or `stalled` seconds without a new one."""
        seen, progress_at = 0, time.monotonic()
        deadline = progress_at + seconds
        while (now := self.count()) < count:
            if now > seen:
                seen, progress_at = now, time.monotonic()
            if time.monotonic() > min(deadline, progress_at + stalled):
                return False
            time.sleep(0.02)
        return True


def complete(data: bytes) -> bytes:
    """Return the data without a partial record at the end."""
    return data[: len(data) - len(data) % RECORD.size]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of sorted values; NaN if there are none."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def lateness(records: Sequence[Record], count: int) -> dict[str, float]:
    """Return lateness in ms, and how many of the `count` jobs ran early, twice or never."""
    late_ms = sorted((record.start_us - record.due_us) / 1000 for record in records)
    times = Counter(record.n for record in records)
    percentiles: dict[str, float] = {f"p{percent}_ms": percentile(late_ms, percent) for percent in (50, 95, 99)}
    return percentiles | {
        "max_ms": late_ms[-1] if late_ms else math.nan,
        "early": sum(ms < 0 for ms in late_ms),
        "earliest_ms": late_ms[0] if late_ms else math.nan,
        "missing": count - len(times),
        "twice": sum(seen > 1 for seen in times.values()),
    }


def per_second(records: Sequence[Record], due: float) -> float:
    """Return jobs per second from their common due time to the last start; 0 if none started after it."""
    seconds = max((record.start_us for record in records), default=0) / 1_000_000 - due
    return len(records) / seconds if seconds > 0 else 0.0


def wait_until_done(done: Callable[[], bool], seconds: float) -> bool:
    """Poll `done()` ten times per second; return whether it became true within `seconds`."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
