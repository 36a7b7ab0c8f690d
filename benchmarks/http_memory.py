"""Memory of one web process under load: does it stay flat?

    DELAYTASKS_TEST_DB=postgres python -m benchmarks.http_memory [--seconds 600] [--connections 64] [--kind cycle]

Starts Redis, a database, a Celery worker (its mover makes added jobs ready) and one uvicorn with the project
(requirements-dev.txt). The load is that of benchmarks.http_load. Prints over time the resident memory, and the
proportional one, in which pages that processes share count for each in part; then both after a tenth of the time and at
the end. The memory is flat if the median of the resident memory in the last third is at most 5 % above that of the
second third; else the exit code is 1. The first third is left out: caches and pools fill.
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
from .scenarios.usage import pss_bytes

SAMPLES = 60
MOST_GROWTH = 0.05
TOPIC = "memory.flat"


class Sample(NamedTuple):
    """Memory at a moment, in MiB."""

    seconds: float
    resident: float
    proportional: float

    def __str__(self) -> str:
        return f"{self.seconds:6.0f} s: {self.resident:.1f} MiB resident, {self.proportional:.1f} MiB proportional"


class Growth(NamedTuple):
    """Medians of resident memory in MiB, in the second and the last third of the samples."""

    second: float
    last: float

    @property
    def is_flat(self) -> bool:
        return self.last <= self.second * (1 + MOST_GROWTH)


def growth(samples: Sequence[Sample]) -> Growth:
    third, resident = len(samples) // 3, [sample.resident for sample in samples]
    return Growth(statistics.median(resident[third:-third]), statistics.median(resident[-third:]))


def verdict(samples: Sequence[Sample]) -> str:
    """Return the memory after a tenth of the time and at the end, and whether it is flat."""
    found, early = growth(samples), samples[len(samples) // 10 - 1]
    medians = f"median of the second third {found.second:.1f} MiB, of the last third {found.last:.1f} MiB"
    return f"{early}\n{samples[-1]}\n{medians}: {'flat' if found.is_flat else 'GROWS'}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.http_memory")
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--kind", choices=("add", "job", "cycle"), default="cycle")
    return parser.parse_args()


def measure(world: Any, args: argparse.Namespace) -> list[Sample]:
    """Load the web process; print and return its memory over time."""
    pid = next(process.pid for process in world.processes if process.name == "web")
    load = [str(world.port), make_token(TOPIC), TOPIC, args.kind, str(args.connections), str(args.seconds)]
    print(f"{_sample(pid, 0)}, before", flush=True)
    samples: list[Sample] = []
    begun = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "benchmarks.http_load", *load], stdout=subprocess.PIPE) as loading:
        while loading.poll() is None:
            time.sleep(args.seconds / SAMPLES)
            samples.append(_sample(pid, time.monotonic() - begun))
            print(samples[-1], flush=True)
        assert loading.stdout is not None
        answer = loading.stdout.read()
    if loading.returncode != 0:
        raise SystemExit("The load failed: see above.")
    print(f"{json.loads(answer)['per_second']:.0f} rounds/s of {args.kind}, {args.connections} connections")
    return samples


def _sample(pid: int, seconds: float) -> Sample:
    from tests.support.process_usage import resident_mib

    return Sample(seconds, resident_mib(pid), pss_bytes([pid]) / 2**20)


def main() -> None:
    args = arguments()
    django.setup()
    with tempfile.TemporaryDirectory() as directory, running(Path(directory)) as world:
        samples = measure(world, args)
    print(verdict(samples))
    raise SystemExit(not growth(samples).is_flat)


if __name__ == "__main__":
    main()
