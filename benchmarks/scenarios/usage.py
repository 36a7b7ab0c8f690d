"""CPU time and memory of processes, read from /proc. CPU time includes exited children. Linux only."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
KIB = 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return the CPU seconds used so far by these processes and their exited children."""
    return sum(sum(map(int, fields[11:15])) for fields in map(_stat, pids) if fields) / TICKS


def process_tree(pid: int) -> list[int]:
    """Return the ids of a process and all its running descendants."""
    parents = {process: int(fields[1]) for process in _pids() if (fields := _stat(process))}
    tree = [pid]
    for process in tree:  # grows during the iteration
        tree += [child for child, parent in parents.items() if parent == process]
    return tree


def pss_bytes(pids: Iterable[int]) -> int:
    """Return their memory; shared memory is divided among its users."""
    return sum(map(_pss, pids))


def wait_until_stable(read: Callable[[], int], within: int, seconds: float = 20.0) -> int:
    """Return `read()` once it changes by at most `within` in two seconds, or after `seconds`."""
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
    """Return the fields of /proc/PID/stat after the name, from the state on; [] if the process has exited."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # the process has exited
    return next((int(line.split()[1]) * KIB for line in lines if line.startswith("Pss:")), 0)
