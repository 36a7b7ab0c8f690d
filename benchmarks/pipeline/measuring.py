"""What a command costs: how long it took, how much it computed, and the most memory that it and its children had."""

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

SAMPLE_SECONDS = 0.5  # a look takes 30 ms of a core
LINES = 20  # of what a command said before it failed
ROOT = Path(__file__).parents[2]


class Failed(Exception):
    """A command that is measured did not succeed."""


@dataclass(frozen=True)
class Cost:
    """seconds    on the wall
    computing  seconds of a core, of all processes together: about what others at work on the machine do not change
    peak_mib   of proportional memory (PSS): what processes share counts once
    """

    seconds: float
    computing: float
    peak_mib: float
    said: str


def run(
    arguments: Sequence[str],
    env: Mapping[str, str],
    *servers: int,
    codes: Sequence[int] = (0,),
    server_too: bool = False,
) -> Cost:  # fmt: skip
    """What `python ARGUMENTS` costs, with what these servers (the pids that others come from) compute meanwhile. Linux.

    codes        with which it may end
    server_too   whether the servers' memory counts as well

    Raises Failed.
    """
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as errors:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=ROOT, env={**os.environ, **env}, stdin=subprocess.DEVNULL, stdout=said,
            stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            with Sampler(process.pid, servers, server_too) as sampler:
                code = process.wait()
        finally:
            stop_all([process])  # with all that it started, also where we are ended
        seconds = time.monotonic() - begun
        texts = [_text(each) for each in (said, errors)]
    if code not in codes:
        raise Failed(f"{' '.join(arguments)} ended with {code}:\n" + "\n".join("".join(texts).splitlines()[-LINES:]))
    return Cost(seconds, sampler.computing, sampler.peak_mib, texts[0])


def _text(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class Sampler:
    """Looks at the processes of whole sessions twice a second, inside its block."""

    def __init__(self, leader: int, servers: Sequence[int], server_too: bool) -> None:
        self.leader, self.servers, self.server_too = leader, servers, server_too
        self.peak_mib = 0.0
        self.ticks: dict[int, int] = {}  # of each process that there was
        self.before = {pid: cpu_ticks(pid) for pid in with_children(servers)}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            own, servers = of_sessions([self.leader]), with_children(self.servers)
            self.peak_mib = max(self.peak_mib, sum(map(pss_mib, own + servers if self.server_too else own)))
            self.ticks |= {pid: ticks for pid in own + servers if (ticks := cpu_ticks(pid))}

    @property
    def computing(self) -> float:
        """Seconds. What a process did after the last look at it is missing."""
        ticks = sum(ticks - self.before.get(pid, 0) for pid, ticks in self.ticks.items())
        return ticks / os.sysconf("SC_CLK_TCK")


def with_children(pids: Sequence[int]) -> list[int]:
    """PostgreSQL's backends have a session each, and all one parent."""
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid in pids or parent(pid) in pids]


def parent(pid: int) -> int:
    return int((_stat(pid) or ["", "0"])[1])


def cpu_ticks(pid: int) -> int:
    """User's and system's, of all its threads; 0 of a process that has ended."""
    return sum(map(int, _stat(pid)[11:13]))


def _stat(pid: int) -> list[str]:
    """From the state on; [] of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return []


def pss_mib(pid: int) -> float:
    """0 of a process that has ended."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass  # it has ended meanwhile
    return 0.0
