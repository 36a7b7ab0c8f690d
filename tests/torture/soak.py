"""Hours of work with a fault each twenty seconds, and nothing grows: `python -m tests.torture.soak --help`.

Each minute it is measured what every part takes up. What the first minutes took is the measure of what comes after.
Ended jobs and their events grow by design: to prune them is the archive's. What must not grow is in BOUNDS. Exit
status 1 if something outgrew its bound or a promise was broken.
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
# By how much the median of the last samples may be above that of the first.
BOUNDS = {
    "rss web": 40 * MIB,
    "rss worker main": 25 * MIB,
    "rss worker child": 100 * MIB,  # the handler that eats memory may have been there last
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
    # A B-tree gives no page back but takes its empty ones again: after a vacuum it is to live in what it has.
    **{f"bytes {name}": 1 * MIB for name in LIVE_INDEXES},
}
LAST = 5  # samples, so that one in the middle of a fault is not taken for growth
PARTS = ("web", "worker main", "worker child", "beat", "consumer")
Sample = dict[str, int]


def sample(arena: Any) -> Sample:
    """What every part takes up now: of several processes of a part, the largest."""
    from . import measuring

    measuring.ask("VACUUM delaytasks_job")
    found: Sample = {}
    those = measuring.pids(arena)
    for part in PARTS:
        found[f"rss {part}"] = max(map(measuring.resident, those.get(part, [])), default=0)
        found[f"files {part}"] = max(map(measuring.files, those.get(part, [])), default=0)
    found["connections"] = measuring.sessions()
    found |= measuring.redis_takes(arena)
    found |= {f"bytes {name}": size for name, size in measuring.sizes().items()}
    for name, where in {"live": "ended_at IS NULL", "ended": "ended_at IS NOT NULL"}.items():
        found[f"rows {name}"] = sum(n for (n,) in measuring.ask(f"SELECT count(*) FROM delaytasks_job WHERE {where}"))
    return found


def growth(samples: Sequence[Sample], settle: int) -> dict[str, tuple[int, int]]:
    """The medians of the first `settle` samples and of the last, for everything that has a bound.

    A sample of what was away at that moment, a 0, does not count.
    """
    found = {}
    for name in BOUNDS:
        first = [each[name] for each in samples[:settle] if each.get(name)]
        last = [each[name] for each in samples[settle:][-LAST:] if each.get(name)]
        if first and last:
            found[name] = (statistics.median_high(first), statistics.median_low(last))
    return found


def outgrown(samples: Sequence[Sample], settle: int) -> list[str]:
    """What grew beyond its bound, one sentence each; and what was never measured."""
    found = growth(samples, settle)
    grew = [f"{n} was {a}, and is {b}" for n, (a, b) in found.items() if b > a + BOUNDS[n]]
    return grew + [f"{name} was not measured" for name in BOUNDS if name not in found]


def go_on(arena: Any, faults: Sequence[Any], chance: random.Random, asked: argparse.Namespace) -> Any:
    """Samples, as they are taken. A fault each `every` seconds until the time is over."""
    from . import trial

    until, next_sample = time.monotonic() + asked.minutes * 60, time.monotonic() + asked.sample_seconds
    while time.monotonic() < until:
        began = time.monotonic()
        fault = chance.choice(faults)
        trouble = trial._inflict(arena, [fault])
        print(f"{fault.name}; {time.monotonic() - began:.0f} s {trouble}".rstrip(), flush=True)
        arena.hold(max(1.0, began + asked.every - time.monotonic()))
        if time.monotonic() >= next_sample:
            next_sample = time.monotonic() + asked.sample_seconds
            yield sample(arena), trouble


def wrong_at_the_end(arena: Any) -> list[str]:
    """What the checker finds once everything has ended."""
    from . import trial

    arena.unload()
    arena.until_quiet(trial._live, seconds=2 * trial.QUIET_SECONDS)
    _, wrong = trial._mended(arena, trial.MENDED_SECONDS)
    return [f"{v.kind}: {v.topic} {v.key} (job {v.job}): {v.why}" for v in wrong]


def line(taken: Sample) -> str:
    """A sample in a line."""
    rss = ", ".join(f"{part} {taken[f'rss {part}'] // MIB}/{taken[f'files {part}']}" for part in PARTS)
    index = taken.get("bytes delaytasks_job_live_due", 0) // 1024
    return (
        f"    MiB/files: {rss}; connections {taken['connections']}; redis {taken.get('redis keys', 0)} keys, "
        f"{taken.get('redis bytes', 0) / MIB:.1f} MiB; live index {index} KiB; "
        f"{taken['rows live']} jobs live, {taken['rows ended']} ended"
    )


def run(arena: Any, asked: argparse.Namespace) -> list[str]:
    """What was wrong, one sentence each. Prints as it goes."""
    from . import measuring
    from .faults import load_all

    faults = [f for f in load_all().values() if not f.alone and "postgres" in f.databases]
    chance, samples, broken = random.Random(asked.seed), [], []
    if (vacuums := measuring.ask("SHOW autovacuum")) != [("on",)]:
        broken.append(f"autovacuum is {vacuums}")
    arena.load(seed=asked.seed, per_second=asked.per_second)
    for taken, trouble in go_on(arena, faults, chance, asked):
        samples.append(taken)
        print(line(taken), flush=True)
        broken += [trouble] if trouble else []
    broken += outgrown(samples, round(asked.settle * 60 / asked.sample_seconds)) + wrong_at_the_end(arena)
    print(f"\n{'':34} {'first':>12} {'last':>12} {'may grow by':>12}")
    for name, (first, last) in growth(samples, round(asked.settle * 60 / asked.sample_seconds)).items():
        print(f"{name:34} {first:12} {last:12} {BOUNDS[name]:12}")
    for name, size in sorted(samples[-1].items()) if samples else ():
        if name.startswith("bytes delaytasks") and name not in BOUNDS:
            print(f"{name:34} {samples[0].get(name, 0):12} {size:12}   (grows with what has ended)")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--settle", type=float, default=5, help="minutes of the beginning that are the measure")
    parser.add_argument("--sample-seconds", type=float, default=60)
    parser.add_argument("--every", type=float, default=20, help="seconds from fault to fault")
    parser.add_argument("--per-second", type=float, default=10, help="what each caller asks for")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from .arena import arena

    directory = Path(tempfile.mkdtemp(prefix="soak-"))
    print(f"Logs and ledger: {directory}", flush=True)
    with arena(directory) as there:
        there.populate()
        broken = run(there, asked)
    print("\n".join(f"BROKEN  {each}" for each in broken) or "Nothing grew, and every promise was kept.")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
