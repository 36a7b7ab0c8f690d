"""The effect of the retention on workers: lateness at 200 jobs a second, without and with pruning.

    python -m benchmarks.retention [--by command] [--rows 5000000] [--pairs 20] [--window 4] [--rate 200]

Fills PostgreSQL with ended jobs, each with an event, and runs one worker with two processes, whose jobs are due all the
time. In every other window of some seconds the ended jobs are deleted, so both kinds of window have the same machine,
tables and caches. `--by command`: `manage.py delaytasks prune` in a process of its own, which is stopped (SIGSTOP) in
the other windows. `--by sweep`: the thread that follows a sweep, in the worker.

Prints the lateness of all jobs of each kind, and the ratio of the 99th percentiles of each two neighbouring windows.
A vacuum that pruning caused may run in a window without pruning; such pairs are counted apart. Then prints how many
jobs a second were deleted, and how many rows are dead in the tables. Needs about 1 GB for a million rows.
"""

import abc
import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from celery import Celery

from .contestants import roster
from .filling import fill_ahead
from .indexes import without_indexes
from .servers import benchmark_postgres
from .sink import Record, lateness, percentile
from .stand import ROOT, Testbed

ENDED = """
    INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at,
                                ended_at, worker, error)
    SELECT 'old.' || n %% 20, 'order:' || n, 4, at, 60000, 1, 0, jsonb_build_object('order', n), at - interval '1 hour',
        at, at, 'worker-1', ''
    FROM (SELECT n, now() - interval '60 days' + n * %s * interval '1 ms' AS at
          FROM generate_series(1, %s) AS n) AS rows"""
EVENTS = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error,
                                     reason)
    SELECT id, 'finished', 1, extract(epoch FROM due_at) * 1000, extract(epoch FROM due_at) * 1000,
        extract(epoch FROM due_at) * 1000, worker, '', '', ''
    FROM delaytasks_job WHERE ended_at < now() - interval '30 days' ORDER BY id"""
SETTLE_SECONDS = 0.5  # at the beginning of a window: what waited before may still be late
LOOK_SECONDS = 0.5
VACUUMS = "SELECT count(*) FROM pg_stat_progress_vacuum"
PASSES_DONE = "SELECT count(*) FROM delaytasks_retentioncursor WHERE job_id IS NULL AND event_id IS NULL"
DEAD_ROWS = "SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relname = 'delaytasks_job'"


def fill(testbed: Testbed, rows: int, apart_ms: int = 1) -> None:
    """Insert jobs that ended from 60 days ago on, each so long after the last one, and their events."""
    with testbed.postgres.connect(testbed.database_name) as connection, connection.cursor() as cursor:
        definitions = without_indexes(cursor)
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute(ENDED, [apart_ms, rows])
        cursor.execute(EVENTS)
        for definition in definitions:
            cursor.execute(definition)
        connection.commit()
    with testbed.postgres.connect(testbed.database_name, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")
        connection.execute("CHECKPOINT")  # otherwise one that the fill has caused would run during the measurement


def ask(testbed: Testbed, sql: str) -> Any:
    with testbed.postgres.connect(testbed.database_name) as connection:
        return connection.execute(sql).fetchone()


def ended_rows(testbed: Testbed) -> int:
    return int(ask(testbed, "SELECT count(*) FROM delaytasks_job WHERE ended_at < now() - interval '30 days'")[0])


def start_prune(testbed: Testbed, age: str = "30d") -> subprocess.Popen[bytes]:
    env = testbed.env | {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings"}
    command = [sys.executable, str(ROOT / "manage.py"), "delaytasks", "prune", "--older-than", age]
    return subprocess.Popen(command, env=env, cwd=testbed.directory, stdout=subprocess.DEVNULL)


class Pruning(abc.ABC):
    """What deletes the ended jobs."""

    @abc.abstractmethod
    def begin(self, end: float) -> None:
        """Begin a window with pruning, until `end` in seconds since 1970."""

    @abc.abstractmethod
    def pause(self) -> None:
        """Begin a window without pruning."""

    @abc.abstractmethod
    def is_done(self) -> bool:
        """Return whether everything is pruned."""

    @abc.abstractmethod
    def close(self) -> None:
        """End pruning."""


class ByCommand(Pruning):
    """`manage.py delaytasks prune`."""

    def __init__(self, testbed: Testbed) -> None:
        self._process = start_prune(testbed)

    def begin(self, end: float) -> None:
        self._process.send_signal(signal.SIGCONT)

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def is_done(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self._process.kill()
        self._process.wait(30)


class BySweep(Pruning):
    """What follows a sweep: a thread of the worker's process, until the end of the window."""

    def __init__(self, testbed: Testbed) -> None:
        self._testbed = testbed
        self._celery = Celery(broker=testbed.redis.url())

    def begin(self, end: float) -> None:
        self._celery.send_task("bench.prune", (end,), ignore_result=True)

    def pause(self) -> None:
        """Do nothing: the thread ends with its window."""

    def is_done(self) -> bool:
        return bool(ask(self._testbed, PASSES_DONE)[0])

    def close(self) -> None:
        self._celery.close()


PRUNING: dict[str, Callable[[Testbed], Pruning]] = {"command": ByCommand, "sweep": BySweep}


class Window(NamedTuple):
    """A part of the run. Times in seconds since 1970."""

    begin: float
    end: float
    pruning: bool
    vacuuming: bool

    def lateness(self, records: Sequence[Record]) -> list[float]:
        """Return how late the jobs of this window began, in ms, sorted. Those of its first moments are left out."""
        since, until = (self.begin + SETTLE_SECONDS) * 1e6, self.end * 1e6
        return sorted((each.start_us - each.due_us) / 1000 for each in records if since <= each.due_us < until)


def play(testbed: Testbed, pruning: Pruning, start: float, pairs: int, seconds: float) -> list[Window]:
    """Prune in one window of each pair, in alternating order, so that a drift of the machine cancels out."""
    windows = []
    for number in range(2 * pairs):
        begin, end, vacuuming = start + number * seconds, start + (number + 1) * seconds, False
        is_pruning = number % 4 in (1, 2)
        if is_pruning:
            pruning.begin(end)
        else:
            pruning.pause()
        while (left := end - time.time()) > 0:
            time.sleep(min(LOOK_SECONDS, left))
            vacuuming = vacuuming or ask(testbed, VACUUMS)[0] > 0
        if pruning.is_done():
            break
        windows.append(Window(begin, end, is_pruning, vacuuming))
    return windows[: len(windows) // 2 * 2]


def summary(records: Sequence[Record], windows: Sequence[Window]) -> list[str]:
    """Return a line for each kind of window, and the ratios of the pairs."""
    lines = []
    for pruning in (False, True):
        late = sorted(ms for each in windows if each.pruning == pruning for ms in each.lateness(records))
        figures = ", ".join(f"p{percent} {percentile(late, percent):.1f} ms" for percent in (50, 95, 99))
        lines.append(
            f"{'beside prune' if pruning else 'without'}: {len(late):,} jobs, {figures}, longest {late[-1]:.1f} ms"
        )
    for name, pairs in _pairs(windows).items():
        ratios = sorted(_p99(with_prune, records) / _p99(without, records) for without, with_prune in pairs)
        if ratios:
            quartiles = f"{percentile(ratios, 25):.2f} to {percentile(ratios, 75):.2f}"
            lines.append(
                f"p99 ratio of {len(ratios)} {name}: median {statistics.median(ratios):.2f}, half within {quartiles}"
            )
    return lines


def _pairs(windows: Sequence[Window]) -> dict[str, list[tuple[Window, Window]]]:
    """Return the pairs (without, with) of neighbouring windows by their kind."""
    found: dict[str, list[tuple[Window, Window]]] = {"pairs": [], "pairs with a vacuum in the window without prune": []}
    for two in zip(windows[::2], windows[1::2], strict=True):
        without, with_prune = sorted(two, key=lambda window: window.pruning)
        found["pairs with a vacuum in the window without prune" if without.vacuuming else "pairs"].append(
            (without, with_prune)
        )
    return found


def _p99(window: Window, records: Sequence[Record]) -> float:
    return percentile(window.lateness(records), 99)


def measure(testbed: Testbed, by: str, rate: int, pairs: int, seconds: float) -> None:
    """Run the windows and print what was found."""
    rng, length = random.Random(7), 2 * pairs * seconds
    offsets = sorted(rng.uniform(0, length) for _ in range(round(rate * length)))
    testbed.sink.empty()
    before = ended_rows(testbed)
    start = fill_ahead(testbed, "noop", len(offsets), lambda start: [start + offset for offset in offsets])
    pruning = PRUNING[by](testbed)
    try:
        time.sleep(max(0.0, start - time.time()))
        windows = play(testbed, pruning, start, pairs, seconds)
        testbed.sink.await_count(len(offsets), start + length - time.time() + 60, 60)
    finally:
        pruning.close()
    left, (dead, live) = ended_rows(testbed), ask(testbed, DEAD_ROWS)
    print("\n".join(summary(testbed.sink.records(), windows)))
    busy = sum(window.end - window.begin for window in windows if window.pruning)
    pruned = f"{before - left:,} of {before:,} pruned, {(before - left) / busy:,.0f} a second"
    print(f"{pruned}; dead rows {dead:,} of {live:,}")
    numbers = lateness(testbed.sink.records(), len(offsets))
    print(", ".join(f"{name} {numbers[name]:,.0f}" for name in ("early", "missing", "twice")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--by", choices=PRUNING, default="command", help="what deletes the ended jobs")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--pairs", type=int, default=20, help="of a window without and a window with pruning")
    parser.add_argument("--window", type=float, default=4, help="length of a window in seconds")
    parser.add_argument("--rate", type=int, default=200, help="jobs due per second")
    args = parser.parse_args()
    with (
        benchmark_postgres() as postgres,
        Testbed(roster.OURS, roster.contestants()[roster.OURS], postgres) as testbed,
    ):
        fill(testbed, args.rows)
        if args.by == "sweep":
            # Runs are short, so that the worker receives the message that begins a window in time.
            options = {"SWEEP_SECONDS": 3600, "RUN_BUDGET_SECONDS": 1}
            testbed.env |= {"BENCH_RETENTION_DAYS": "30", "BENCH_DELAYTASKS": json.dumps(options)}
        with testbed.workers():
            measure(testbed, args.by, args.rate, args.pairs, args.window)


if __name__ == "__main__":
    main()
