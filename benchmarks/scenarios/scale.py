"""The cost of a due job with 10,000 to 10 million pending jobs, and with more buckets, workers or masters.

Rows are inserted with SQL. Most are due at random within a week; those within the horizon are in the mirror. `mover.*`:
microseconds per member in the mover's loop. `claim.*`: microseconds per job to reserve and claim it in batches of 200,
for jobs that were scheduled together and are due together, as with a fixed delay. `claim-scattered.*`: the same for
jobs scattered over the table, each on a page of its own.

BENCH_SIZES   numbers of pending jobs for mover and claim; default: 10k,100k,1m,10m
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.redis_cluster import Cluster

from ..drivers import Driver, DriverFailed
from ..plan import Form, Measured, Options
from ..servers import REDIS
from ..stand import Testbed
from . import burst
from .ourselves import inside

OURS = "delaytasks"
SIZES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
DUE = 5_000  # adjacent rows, and as many scattered ones: together all rows of the smallest size
MEMBERS = 100_000  # for the mover
COMPARED = 100_000  # pending rows in the comparison of buckets and masters


def chosen_sizes() -> list[str]:
    """Return the sizes to measure. Exits if one is unknown."""
    sizes = os.environ.get("BENCH_SIZES", ",".join(SIZES)).split(",")
    if unknown := set(sizes) - set(SIZES):
        sys.exit(f"BENCH_SIZES: unknown size {', '.join(sorted(unknown))}; use {', '.join(SIZES)}.")
    return sizes


def prepare(ours: Driver, count: int, due: int) -> dict[str, float]:
    """Insert rows, update their statistics and rebuild the mirror; return how long each took."""
    return {
        "fill_seconds": ours.do("backlog", count=count, due=due)["seconds"],
        "settle_seconds": ours.do("settle")["seconds"],
        "rebuild_seconds": ours.do("rebuild")["seconds"],
    }


def time_mover(ours: Driver, members: int) -> tuple[float, int]:
    """Return (seconds, members) of the mover's loop, after a warm-up."""
    ours.do("promote", count=max(1, members // 10))
    answer = ours.do("promote", count=members)
    return answer["seconds"], answer["moved"]


def time_claim(ours: Driver, kind: str, due: int) -> dict[str, float]:
    """Return the microseconds per job. Raises DriverFailed unless all due jobs were claimed."""
    answer = ours.do("claim", kind=kind)
    if answer["claimed"] != due:
        raise DriverFailed(f"{answer['claimed']} of {due} due jobs were claimed.")
    return {"us": answer["us"], "mean_us": answer["mean_us"]}


def of_size(size: str) -> Form:
    def measure(testbed: Testbed, options: Options) -> list[Measured]:
        count, due = options.scaled(SIZES[size]), options.scaled(DUE)
        with cleared(testbed), inside(testbed) as ours:
            took = prepare(ours, count, due)
            seconds, members = time_mover(ours, options.scaled(MEMBERS))
            adjacent, scattered = time_claim(ours, "noop", due), time_claim(ours, "one-commit", due)
        more = {"rows": count, **took}
        return [
            Measured(seconds / members * 1_000_000, {"members": members, **more}, f"mover.{size}"),
            Measured(adjacent["us"], {"mean_us": adjacent["mean_us"], "rows": count}, f"claim.{size}"),
            Measured(scattered["us"], {"mean_us": scattered["mean_us"], "rows": count}, f"claim-scattered.{size}"),
        ]

    expensive = SIZES[size] > 1_000_000
    return Form(
        "scale",
        f"mover.{size}",
        measure=measure,
        only=(OURS,),
        databases=("postgres",),
        unit="us/job",
        better="less",
        repeats=1 if expensive else None,
        note=f"{SIZES[size]:,} rows pending",
    )


def with_mirror(name: str, note: str, mirror: Callable[[Testbed], Any]) -> Form:
    """Return a form for mover and claim on another mirror; `mirror(testbed)` is a context manager around `inside`."""

    def measure(testbed: Testbed, options: Options) -> list[Measured]:
        due = options.scaled(DUE)
        with cleared(testbed), mirror(testbed) as ours:
            prepare(ours, options.scaled(COMPARED), due)
            seconds, members = time_mover(ours, options.scaled(MEMBERS))
            together = time_claim(ours, "noop", due)
        return [
            Measured(members / seconds, {"members": members}, f"promote{name}", "members/s", "more"),
            Measured(together["us"], {"mean_us": together["mean_us"]}, f"claim{name}"),
        ]

    return Form(
        "scale",
        f"promote{name}",
        measure=measure,
        only=(OURS,),
        databases=("postgres",),
        unit="us/job",
        better="less",
        note=note,
    )


@contextmanager
def cleared(testbed: Testbed) -> Iterator[None]:
    """Remove all rows after the block: ten million would slow down other scenarios."""
    try:
        yield
    finally:
        testbed.clear()


@contextmanager
def on_cluster(testbed: Testbed) -> Iterator[Driver]:
    with (
        Cluster(replicas=False, **REDIS) as cluster,
        inside(testbed, redis_url=cluster.url(), REDIS_CLUSTER=True) as ours,
    ):
        yield ours


def with_buckets(buckets: int) -> Form:
    return with_mirror(f".buckets{buckets}", f"BUCKETS {buckets}", lambda testbed: inside(testbed, BUCKETS=buckets))


def with_workers(processes: int, kind: str) -> Form:
    """Return a burst with this number of worker processes."""

    def measure(testbed: Testbed, options: Options) -> Measured:
        return burst.measured(testbed, options, kind, processes)

    note = f"a burst of kind {kind} with {processes} worker process{'es' * (processes > 1)}"
    return Form(
        "scale", f"workers{processes}.{kind}", "jobs/s", measure, only=(OURS,), databases=("postgres",), note=note
    )


FORMS = [
    with_mirror("", "the mover's loop on one Redis, 4 buckets", inside),
    *(with_buckets(buckets) for buckets in (1, 2, 3, 4)),
    with_mirror(".cluster", "a Redis Cluster of three masters, 4 buckets", on_cluster),
    *(with_workers(processes, kind) for kind in ("batch", "noop") for processes in (1, 2, 3)),
    *(of_size(size) for size in chosen_sizes()),
]
