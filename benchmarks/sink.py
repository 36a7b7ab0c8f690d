"""What the handlers wrote: when each job was due and when it started. The form is that of contestants/sink.py."""

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
    """The folder into which each worker process writes a file of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def files(self) -> list[Path]:
        return sorted(self.directory.glob("*.bin"))

    def count(self) -> int:
        return sum(file.stat().st_size for file in self.files()) // RECORD.size

    def writers(self) -> int:
        """How many processes have written since it was emptied."""
        return sum(file.stat().st_size > 0 for file in self.files())

    def records(self) -> list[Record]:
        return [Record(*fields) for file in self.files() for fields in RECORD.iter_unpack(whole(file.read_bytes()))]

    def empty(self) -> None:
        """Truncate: the writers hold their files open, and append."""
        for file in self.files():
            file.open("wb").close()

    def await_count(self, count: int, seconds: float, stalled: float = math.inf) -> bool:
        """Whether `count` records came within `seconds`, without a pause of more than `stalled` seconds."""
        seen, moved = 0, time.monotonic()
        deadline = moved + seconds
        while (now := self.count()) < count:
            if now > seen:
                seen, moved = now, time.monotonic()
            if time.monotonic() > min(deadline, moved + stalled):
                return False
            time.sleep(0.02)
        return True


def whole(data: bytes) -> bytes:
    """Without a record that is half there."""
    return data[: len(data) - len(data) % RECORD.size]


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile of values in order; NaN of none."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)] if ordered else math.nan


def lateness(records: Sequence[Record], count: int) -> dict[str, float]:
    """Milliseconds from due to start, and whether each of the `count` jobs ran, once, and not early."""
    late_ms = sorted((record.start_us - record.due_us) / 1000 for record in records)
    times = Counter(record.n for record in records)
    found: dict[str, float] = {f"p{percent}_ms": percentile(late_ms, percent) for percent in (50, 95, 99)}
    return found | {
        "max_ms": late_ms[-1] if late_ms else math.nan,
        "early": sum(ms < 0 for ms in late_ms),
        "earliest_ms": late_ms[0] if late_ms else math.nan,
        "missing": count - len(times),
        "twice": sum(seen > 1 for seen in times.values()),
    }


def per_second(records: Sequence[Record], due: float) -> float:
    """Jobs per second from the instant at which all were due to the last start; 0 if none started after it."""
    seconds = max((record.start_us for record in records), default=0) / 1_000_000 - due
    return len(records) / seconds if seconds > 0 else 0.0


def quiet_when(done: Callable[[], bool], seconds: float) -> bool:
    """Whether `done()` became true within `seconds`, asked ten times a second."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
