"""Run for hours with a fault every 20 seconds and check that nothing grows: `python -m tests.torture.soak --help`.

The resources of each process are measured every minute and compared with the first minutes. Ended jobs and their
events grow by design: archiving prunes them. BOUNDS lists what must not grow. Exit status 1 if a resource outgrew
its bound or a promise was broken.
"""

import argparse
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

MIB = 1024 * 1024
LIVE_INDEXES = ("delaytasks_job_live_due", "delaytasks_job_topic_due", "delaytasks_job_one_live")
# The largest allowed difference between the medians of the last and of the first samples.
BOUNDS = {
    "rss web": 40 * MIB,
    "rss worker main": 25 * MIB,
    "rss worker child": 100 * MIB,  # the handler that allocates much memory may have run last
    "rss beat": 15 * MIB,
    "rss consumer": 20 * MIB,
    "files web": 20,
    "files worker main": 20,
    "files worker child": 20,
    "files beat": 10,
    "files consumer": 10,
    "connections": 10,
    "redis keys": 100,
    "redis bytes": 10 * MIB,
    # A B-tree returns no pages but reuses empty ones: after a vacuum it should not grow.
    **{f"bytes {name}": 1 * MIB for name in LIVE_INDEXES},
}
LAST = 5  # samples, so that one taken during a fault does not count as growth
PARTS = ("web", "worker main", "worker child", "beat", "consumer")
Sample = dict[str, int]


def sample(arena: Any) -> Sample:
    """Measure the resources of each part; for several processes of a part, the largest."""
    from . import resource_usage

    resource_usage.query("VACUUM delaytasks_job")
    measured: Sample = {}
    pids = resource_usage.pids(arena)
    for part in PARTS:
        measured[f"rss {part}"] = max(map(resource_usage.resident, pids.get(part, [])), default=0)
        measured[f"files {part}"] = max(map(resource_usage.files, pids.get(part, [])), default=0)
    measured["connections"] = resource_usage.sessions()
    measured |= resource_usage.redis_usage(arena)
    measured |= {f"bytes {name}": size for name, size in resource_usage.sizes().items()}
    for name, where in {"live": "ended_at IS NULL", "ended": "ended_at IS NOT NULL"}.items():
        measured[f"rows {name}"] = sum(
            n for (n,) in resource_usage.query(f"SELECT count(*) FROM delaytasks_job WHERE {where}")
        )
    return measured


def growth(samples: Sequence[Sample], settle: int) -> dict[str, tuple[int, int]]:
    """Return the medians of the first `settle` samples and of the last, for each name in BOUNDS.

    A sample of 0, taken while a process was down, does not count.
    """
    medians = {}
    for name in BOUNDS:
        first = [each[name] for each in samples[:settle] if each.get(name)]
        last = [each[name] for each in samples[settle:][-LAST:] if each.get(name)]
        if first and last:
            medians[name] = (statistics.median_high(first), statistics.median_low(last))
    return medians


def outgrown(samples: Sequence[Sample], settle: int) -> list[str]:
    """Return a sentence for each resource that outgrew its bound or was never measured."""
    medians = growth(samples, settle)
    grew = [f"{n} was {a}, and is {b}" for n, (a, b) in medians.items() if b > a + BOUNDS[n]]
    return grew + [f"{name} was not measured" for name in BOUNDS if name not in medians]


def run_faults(arena: Any, faults: Sequence[Any], chance: random.Random, options: argparse.Namespace) -> Any:
    """Inject a fault every `every` seconds until the time is over; yield samples and errors."""
    from . import trial

    deadline, next_sample = time.monotonic() + options.minutes * 60, time.monotonic() + options.sample_seconds
    while time.monotonic() < deadline:
        began = time.monotonic()
        fault = chance.choice(faults)
        trouble = trial._inflict(arena, [fault])
        print(f"{fault.name}; {time.monotonic() - began:.0f} s {trouble}".rstrip(), flush=True)
        arena.hold(max(1.0, began + options.every - time.monotonic()))
        if time.monotonic() >= next_sample:
            next_sample = time.monotonic() + options.sample_seconds
            yield sample(arena), trouble


def violations_at_the_end(arena: Any) -> list[str]:
    """Return what the checker finds after all jobs have ended."""
    from . import trial

    arena.unload()
    arena.until_quiet(trial._live, seconds=2 * trial.QUIET_SECONDS)
    _, violations = trial._mended(arena, trial.MENDED_SECONDS)
    return [f"{v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in violations]


def line(taken: Sample) -> str:
    """Format a sample as one line."""
    rss = ", ".join(f"{part} {taken[f'rss {part}'] // MIB}/{taken[f'files {part}']}" for part in PARTS)
    index = taken.get("bytes delaytasks_job_live_due", 0) // 1024
    return (
        f"    MiB/files: {rss}; connections {taken['connections']}; redis {taken.get('redis keys', 0)} keys, "
        f"{taken.get('redis bytes', 0) / MIB:.1f} MiB; live index {index} KiB; "
        f"{taken['rows live']} jobs live, {taken['rows ended']} ended"
    )


def run(arena: Any, options: argparse.Namespace) -> list[str]:
    """Run the soak test, print the samples and return a sentence for each problem."""
    from . import resource_usage
    from .faults import load_all

    faults = [f for f in load_all().values() if not f.alone and "postgres" in f.databases]
    chance, samples, broken = random.Random(options.seed), [], []
    if (vacuums := resource_usage.query("SHOW autovacuum")) != [("on",)]:
        broken.append(f"autovacuum is {vacuums}")
    arena.load(seed=options.seed, per_second=options.per_second)
    for taken, trouble in run_faults(arena, faults, chance, options):
        samples.append(taken)
        print(line(taken), flush=True)
        broken += [trouble] if trouble else []
    broken += outgrown(samples, round(options.settle * 60 / options.sample_seconds)) + violations_at_the_end(arena)
    print(f"\n{'':34} {'first':>12} {'last':>12} {'may grow by':>12}")
    for name, (first, last) in growth(samples, round(options.settle * 60 / options.sample_seconds)).items():
        print(f"{name:34} {first:12} {last:12} {BOUNDS[name]:12}")
    for name, size in sorted(samples[-1].items()) if samples else ():
        if name.startswith("bytes delaytasks") and name not in BOUNDS:
            print(f"{name:34} {samples[0].get(name, 0):12} {size:12}   (grows with ended jobs)")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--settle", type=float, default=5, help="minutes at the beginning to compare with")
    parser.add_argument("--sample-seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=20, help="seconds between faults")
    parser.add_argument("--per-second", type=float, default=10, help="calls per second of each caller")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from .environment import arena

    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"Logs and ledger: {directory}", flush=True)
    with arena(directory) as installation:
        installation.populate()
        broken = run(installation, options)
    print("\n".join(f"BROKEN  {each}" for each in broken) or "Nothing grew, and every promise was kept.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
