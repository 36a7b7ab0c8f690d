"""What a due job costs while ten thousand, or ten million, wait beside it; with more buckets, workers, masters.

The rows come by SQL. Most are due at random within a week, and the part of them that is within the horizon is in the
mirror, as it would be. `mover.*`: microseconds per member, through the mover's loop. `claim.*`: microseconds per job to
reserve and claim it in batches of 200, for jobs that were scheduled together and fall due together, as a fixed delay
makes them; `claim-scattered.*`: for jobs that lie anywhere, so that each is on a page of its own.

BENCH_SIZES   of mover and claim; default: 10k,100k,1m,10m
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster import Cluster

from ..drivers import Driver, DriverFailed
from ..plan import Form, Measured, Options
from ..servers import REDIS
from ..stand import Stand
from . import burst
from .ourselves import inside

OURS = "delaytasks"
SIZES = {"10k": 10_000, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
DUE = 5_000  # that lie together, and as many that lie anywhere: the smallest size has no other
MEMBERS = 100_000  # for the mover
COMPARED = 100_000  # rows pending where buckets and masters are compared


def chosen_sizes() -> list[str]:
    """The sizes to measure. Ends the program if one is unknown."""
    found = os.environ.get("BENCH_SIZES", ",".join(SIZES)).split(",")
    if unknown := set(found) - set(SIZES):
        sys.exit(f"BENCH_SIZES: {', '.join(sorted(unknown))}; there are {', '.join(SIZES)}.")
    return found


def prepare(ours: Driver, count: int, due: int) -> dict[str, float]:
    """Rows, their statistics, and the mirror; how long each took."""
    return {
        "fill_seconds": ours.do("backlog", count=count, due=due)["seconds"],
        "settle_seconds": ours.do("settle")["seconds"],
        "rebuild_seconds": ours.do("rebuild")["seconds"],
    }


def moved(ours: Driver, members: int) -> tuple[float, int]:
    """(seconds, members) of the mover's loop, after a first one that nobody counts."""
    ours.do("promote", count=max(1, members // 10))
    answer = ours.do("promote", count=members)
    return answer["seconds"], answer["moved"]


def claimed(ours: Driver, kind: str, due: int) -> dict[str, float]:
    """Raises DriverFailed unless all that were due were claimed."""
    answer = ours.do("claim", kind=kind)
    if answer["claimed"] != due:
        raise DriverFailed(f"{answer['claimed']} of {due} due jobs were claimed.")
    return {"us": answer["us"], "mean_us": answer["mean_us"]}


def of_size(size: str) -> Form:
    def measure(stand: Stand, options: Options) -> list[Measured]:
        count, due = options.scaled(SIZES[size]), options.scaled(DUE)
        with emptied(stand), inside(stand) as ours:
            took = prepare(ours, count, due)
            seconds, members = moved(ours, options.scaled(MEMBERS))
            together, anywhere = claimed(ours, "noop", due), claimed(ours, "one-commit", due)
        more = {"rows": count, **took}
        return [
            Measured(seconds / members * 1_000_000, {"members": members, **more}, f"mover.{size}"),
            Measured(together["us"], {"mean_us": together["mean_us"], "rows": count}, f"claim.{size}"),
            Measured(anywhere["us"], {"mean_us": anywhere["mean_us"], "rows": count}, f"claim-scattered.{size}"),
        ]

    costly = SIZES[size] > 1_000_000
    return Form(
        "scale",
        f"mover.{size}",
        measure=measure,
        only=(OURS,),
        databases=("postgres",),
        unit="us/job",
        better="less",
        repeats=1 if costly else None,
        note=f"{SIZES[size]:,} rows pending",
    )


def on(name: str, note: str, other: Callable[[Stand], Any]) -> Form:
    """The mover's and the claim's pace on another mirror: `other(stand)` is a context in which `inside` is at hand."""

    def measure(stand: Stand, options: Options) -> list[Measured]:
        due = options.scaled(DUE)
        with emptied(stand), other(stand) as ours:
            prepare(ours, options.scaled(COMPARED), due)
            seconds, members = moved(ours, options.scaled(MEMBERS))
            together = claimed(ours, "noop", due)
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
def emptied(stand: Stand) -> Iterator[None]:
    """After the block the stand holds none of its rows: ten million would be in everybody's way."""
    try:
        yield
    finally:
        stand.clear()


@contextmanager
def on_cluster(stand: Stand) -> Iterator[Driver]:
    with (
        Cluster(replicas=False, **REDIS) as cluster,
        inside(stand, redis_url=cluster.url(), REDIS_CLUSTER=True) as ours,
    ):
        yield ours


def with_buckets(buckets: int) -> Form:
    return on(f".buckets{buckets}", f"BUCKETS {buckets}", lambda stand: inside(stand, BUCKETS=buckets))


def with_workers(processes: int, kind: str) -> Form:
    """A burst with so many worker processes."""
    once = burst.form(kind, kind, "", "")

    def measure(stand: Stand, options: Options) -> Measured:
        before = stand.said["workers"]
        stand.said["workers"] = [[_concurrency(word, processes) for word in command] for command in before]
        try:
            found = once.measure(stand, options)
        finally:
            stand.said["workers"] = before
        assert isinstance(found, Measured)
        return found

    note = f"a burst of kind {kind} with {processes} worker process{'es' * (processes > 1)}"
    return Form(
        "scale", f"workers{processes}.{kind}", "jobs/s", measure, only=(OURS,), databases=("postgres",), note=note
    )


def _concurrency(word: str, processes: int) -> str:
    return f"--concurrency={processes}" if word.startswith("--concurrency=") else word


FORMS = [
    on("", "the mover's loop on one Redis, 4 buckets", inside),
    *(with_buckets(buckets) for buckets in (1, 2, 3, 4)),
    on(".cluster", "a Redis Cluster of three masters, 4 buckets", on_cluster),
    *(with_workers(processes, kind) for kind in ("batch", "noop") for processes in (1, 2, 3)),
    *(of_size(size) for size in chosen_sizes()),
]
