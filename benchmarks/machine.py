"""What the figures were measured on."""

import os
import platform
import time
from pathlib import Path

from tests.servers import PostgresServer, RedisServer

from .results import median
from .servers import SAID

SYNCS = 100
BLOCK = b"\0" * 8192


def described(directory: Path, postgres: PostgresServer, redis: RedisServer | None = None) -> dict[str, str]:
    """Processor, memory, kernel, servers, disk: for people to read and for two runs to be told apart."""
    return {
        "processor": f"{processor()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory_gib():.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "PostgreSQL": f"{number(postgres.version)}: {SAID['PostgreSQL']}",
        **({"Redis": f"{number(redis.version)}: {SAID['Redis']}"} if redis else {}),
        "disk": f"{fdatasync_us(directory):,.0f} µs for 8 KiB and fdatasync, median of {SYNCS}",
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def number(version: str) -> str:
    """ "PostgreSQL 16.14 (/where/it/lies)": 16.14."""
    return version.partition(" (")[0].partition(" ")[2]


def processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def fdatasync_us(directory: Path) -> float:
    """Microseconds until 8 KiB more of a file are on the disk, as a commit's are."""
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
    found = Path(path)
    return found.read_text(errors="replace").splitlines() if found.exists() else []
