"""What processes cost, read from /proc: processor seconds, those of ended children included, and memory. Linux."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KIB = 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """What these processes, and those of their children that have ended, have used so far."""
    return sum(sum(map(int, fields[11:15])) for fields in map(_stat, pids) if fields) / TICKS


def family(pid: int) -> list[int]:
    """A process and all that it started, and so on, as far as they still run."""
    parents = {each: int(fields[1]) for each in _pids() if (fields := _stat(each))}
    found = [pid]
    for each in found:  # grows meanwhile
        found += [child for child, parent in parents.items() if parent == each]
    return found


def pss_bytes(pids: Iterable[int]) -> int:
    """Their memory; what several share is divided among them."""
    return sum(map(_pss, pids))


def settled(read: Callable[[], int], within: int, seconds: float = 20.0) -> int:
    """What `read()` answers once it has moved by no more than `within` for two seconds, or after `seconds`."""
    deadline, last = time.monotonic() + seconds, read()
    while time.monotonic() < deadline:
        time.sleep(2)
        now = read()
        if abs(now - last) <= within:
            return now
        last = now
    return last


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name, from the state on; [] if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended meanwhile
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), 0)
