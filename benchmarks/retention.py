"""The effect of the retention on workers: lateness at 200 jobs a second, without and with pruning.

    python -m benchmarks.retention [--rows 5000000] [--seconds 60] [--rate 200]

Fills PostgreSQL with ended jobs, each with an event, and runs one worker with two processes. Each round measures the
lateness without pruning, then while `manage.py delaytasks prune` deletes those jobs in a process of its own, then how
many jobs a second it deletes and how many rows are dead in the tables. Needs about 1 GB for a million rows.
"""

import argparse
import random
import subprocess
import sys
import time
from typing import Any

from .contestants import roster
from .filling import fill_ahead
from .indexes import without_indexes
from .servers import benchmark_postgres
from .sink import lateness
from .stand import ROOT, Testbed

ENDED = """
    INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at,
                                ended_at, worker, error)
    SELECT 'old.' || n %% 20, 'order:' || n, 4, at, 60000, 1, 0, jsonb_build_object('order', n), at - interval '1 hour',
        at, at, 'worker-1', ''
    FROM (SELECT n, now() - interval '60 days' + n * interval '1 ms' AS at FROM generate_series(1, %s) AS n) AS rows"""
EVENTS = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error,
                                     reason)
    SELECT id, 'finished', 1, extract(epoch FROM due_at) * 1000, extract(epoch FROM due_at) * 1000,
        extract(epoch FROM due_at) * 1000, worker, '', '', ''
    FROM delaytasks_job WHERE ended_at < now() - interval '30 days' ORDER BY id"""
DEAD_ROWS = "SELECT n_dead_tup, n_live_tup FROM pg_stat_user_tables WHERE relname = 'delaytasks_job'"


def fill(testbed: Testbed, rows: int) -> None:
    with testbed.postgres.connect(testbed.database_name) as connection, connection.cursor() as cursor:
        definitions = without_indexes(cursor)
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute(ENDED, [rows])
        cursor.execute(EVENTS)
        for definition in definitions:
            cursor.execute(definition)
        connection.commit()
    with testbed.postgres.connect(testbed.database_name, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


def ask(testbed: Testbed, sql: str) -> Any:
    with testbed.postgres.connect(testbed.database_name) as connection:
        return connection.execute(sql).fetchone()


def ended_rows(testbed: Testbed) -> int:
    return int(ask(testbed, "SELECT count(*) FROM delaytasks_job WHERE ended_at < now() - interval '30 days'")[0])


def start_prune(testbed: Testbed) -> subprocess.Popen[bytes]:
    env = testbed.env | {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings"}
    command = [sys.executable, str(ROOT / "manage.py"), "delaytasks", "prune", "--older-than", "30d"]
    return subprocess.Popen(command, env=env, cwd=testbed.directory, stdout=subprocess.DEVNULL)


def measure(testbed: Testbed, rate: int, seconds: float, *, prune: bool) -> dict[str, float]:
    rng = random.Random(7)
    offsets = sorted(rng.uniform(0, seconds) for _ in range(round(rate * seconds)))
    testbed.sink.empty()
    start = fill_ahead(testbed, "noop", len(offsets), lambda start: [start + offset for offset in offsets])
    rows_before = ended_rows(testbed) if prune else 0
    process = start_prune(testbed) if prune else None
    began = time.monotonic()
    try:
        testbed.sink.await_count(len(offsets), start + seconds - time.time() + 60, 60)
        numbers = lateness(testbed.sink.records(), len(offsets))
    finally:
        if process is not None:
            process.terminate()
            process.wait(30)
    if prune:
        took = time.monotonic() - began
        left = ended_rows(testbed)
        dead, live = ask(testbed, DEAD_ROWS)
        numbers |= {"pruned": rows_before - left, "pruned_per_second": (rows_before - left) / took, "left": left}
        numbers |= {"dead_rows": dead, "live_rows": live}
    return numbers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rate", type=int, default=200, help="jobs due per second")
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with (
        benchmark_postgres() as postgres,
        Testbed(roster.OURS, roster.contestants()[roster.OURS], postgres) as testbed,
    ):
        fill(testbed, args.rows)
        with testbed.workers():
            for number in range(args.rounds):
                for prune in (False, True):
                    figures = measure(testbed, args.rate, args.seconds, prune=prune)
                    line = ", ".join(f"{name} {value:,.1f}" for name, value in figures.items())
                    print(f"round {number + 1}, {'with' if prune else 'without'} pruning: {line}", flush=True)


if __name__ == "__main__":
    main()
