"""Memory of one web process under load: does it stay flat?

    DELAYTASKS_TEST_DB=postgres python -m benchmarks.http_memory [--seconds 600] [--connections 64] [--kind cycle]

Starts Redis, a database, a Celery worker (its mover makes added jobs ready) and one uvicorn with the project
(requirements-dev.txt). The load is that of benchmarks.http_load. Prints the resident memory over time. The memory is
flat if the median of the last third is at most 5 % above that of the second third; else the exit code is 1. The first
third is left out: caches and pools fill.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import django

from .long_polls import make_token, running

SAMPLES = 60
MOST_GROWTH = 0.05
TOPIC = "memory.flat"


class Growth(NamedTuple):
    """Medians of resident memory in MiB, in the second and the last third of the samples."""

    second: float
    last: float

    @property
    def is_flat(self) -> bool:
        return self.last <= self.second * (1 + MOST_GROWTH)


def growth(samples: Sequence[float]) -> Growth:
    third = len(samples) // 3
    return Growth(statistics.median(samples[third:-third]), statistics.median(samples[-third:]))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_memory")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--kind", choices=("add", "job", "cycle"), default="cycle")
    return parser.parse_args()


def measure(world: Any, args: argparse.Namespace) -> Growth:
    """Load the web process, print its memory over time, and return the growth."""
    from tests.support.process_usage import resident_mib

    pid = next(process.pid for process in world.processes if process.name == "web")
    load = [str(world.port), make_token(TOPIC), TOPIC, args.kind, str(args.connections), str(args.seconds)]
    print(f"before: {resident_mib(pid):.1f} MiB", flush=True)
    samples: list[float] = []
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "benchmarks.http_load", *load], stdout=subprocess.PIPE) as loading:
        while loading.poll() is None:
            time.sleep(args.seconds / SAMPLES)
            samples.append(resident_mib(pid))
            print(f"{time.monotonic() - begun:6.0f} s: {samples[-1]:.1f} MiB", flush=True)
        assert loading.stdout is not None
        answer = loading.stdout.read()
    if loading.returncode != 0:
        raise SystemExit("The load failed: see above.")
    print(f"{json.loads(answer)['per_second']:.0f} rounds/s of {args.kind}, {args.connections} connections")
    return growth(samples)


def main() -> None:
    args = arguments()
    django.setup()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as world:
        found = measure(world, args)
    print(
        f"second third {found.second:.1f} MiB, last third {found.last:.1f} MiB: {'flat' if found.is_flat else 'GROWS'}"
    )
    raise SystemExit(not found.is_flat)


if __name__ == "__main__":
    main()
