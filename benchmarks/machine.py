"""Describe the machine and servers of a run."""

import os
import platform
import time
from pathlib import Path

from tests.support.servers import PostgresServer, RedisServer

from .results import median
from .servers import DESCRIPTIONS

SYNCS = 100
BLOCK = b"\0" * 8192


def describe(directory: Path, postgres: PostgresServer, redis: RedisServer | None = None) -> dict[str, str]:
    """Return processor, memory, kernel, servers and disk, for the report and for the comparison of two runs."""
    return {
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory_gib():.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": f"{number(postgres.version)}: {DESCRIPTIONS['PostgreSQL']}",
        **({"Redis": f"{number(redis.version)}: {DESCRIPTIONS['Redis']}"} if redis else {}),
        "disk": f"{fdatasync_us(directory):,.0f} µs for 8 KiB and fdatasync, median of {SYNCS}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def number(version: str) -> str:
    """Return "16.14" for "PostgreSQL 16.14 (/path)"."""
    return version.partition(" (")[0].partition(" ")[2]


def processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def fdatasync_us(directory: Path) -> float:
    """Return the microseconds to append 8 KiB to a file and sync it, as a commit does."""
    path = directory / "fdatasync"
    taken = []
    with path.open("wb", buffering=0) as file:
        for _ in range(SYNCS):
            begun = time.perf_counter()
            file.write(BLOCK)
            os.fdatasync(file.fileno())
            taken.append((time.perf_counter() - begun) * 1_000_000)
    path.unlink()
    return median(taken)


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(errors="replace").splitlines() if file.exists() else []
