"""Measure a command: elapsed time, CPU time and peak memory, including its children."""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.processes import of_sessions, stop_all

SAMPLE_SECONDS = 0.5  # a sample takes 30 ms of CPU time
MAX_LINES = 20  # of a failed command's output
ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """A measured command failed."""


@dataclass(frozen=True)
class Cost:
    """The cost and output of a command.

    seconds     elapsed time
    computing   CPU seconds of all processes; mostly independent of other load on the machine
    peak_mib    peak of proportional memory (PSS), which counts shared memory once
    """

    seconds: float
    computing: float
    peak_mib: float
    output: str


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *servers: int,
    codes: Sequence[int] = (0,),
    server_too: bool = False,
) -> Cost:  # fmt: skip
    """Run and measure `python ARGUMENTS`, including the CPU time of these servers (parent process ids). Linux only.

    codes        accepted exit codes
    server_too   include the servers' memory

    Raises Failed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=output,
            stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            with Sampler(process.pid, servers, server_too) as sampler:
                code = process.wait()
        finally:
            stop_all([process])  # with all its children, also if this process is interrupted
        seconds = time.monotonic() - begun
        texts = [_text(file) for file in (output, errors)]
    if code not in codes:
        raise Failed(
            f"{' '.join(arguments)} exited with {code}:\n" + "\n".join("".join(texts).splitlines()[-MAX_LINES:])
        )
    return Cost(seconds, sampler.computing, sampler.peak_mib, texts[0])


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class Sampler:
    """Samples the processes of a session and of the servers twice per second inside its block."""

    def __init__(self, leader: int, servers: Sequence[int], server_too: bool) -> None:
        self.leader, self.servers, self.server_too = leader, servers, server_too
        self.peak_mib = 0.0
        self.ticks: dict[int, int] = {}  # by process id, also of exited processes
        self.before = {pid: cpu_ticks(pid) for pid in with_children(servers)}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLE_SECONDS):
            own, servers = of_sessions([self.leader]), with_children(self.servers)
            self.peak_mib = max(self.peak_mib, sum(map(pss_mib, own + servers if self.server_too else own)))
            self.ticks |= {pid: ticks for pid in own + servers if (ticks := cpu_ticks(pid))}

    @property
    def computing(self) -> float:
        """CPU seconds, without those of a process after its last sample."""
        ticks = sum(ticks - self.before.get(pid, 0) for pid, ticks in self.ticks.items())
        return ticks / os.sysconf("SC_CLK_TCK")


def with_children(pids: Sequence[int]) -> list[int]:
    """Return these processes and their direct children, such as PostgreSQL's backends."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid in pids or parent(pid) in pids]


def parent(pid: int) -> int:
    return int((_stat(pid) or ["", "0"])[1])


def cpu_ticks(pid: int) -> int:
    """Return user and system time of all threads; 0 for an exited process."""
    return sum(map(int, _stat(pid)[11:13]))


def _stat(pid: int) -> list[str]:
    """Return the fields from the state on; [] for an exited process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def pss_mib(pid: int) -> float:
    """Return the memory; 0 for an exited process."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass  # the process has exited
    return 0.0
