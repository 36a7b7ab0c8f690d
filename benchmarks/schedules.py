"""Schedules with second grain, beside schedules that are not due: lateness, and what making the runs costs.

    python -m benchmarks.schedules [--schedules 1000] [--every 2] [--idle 100000] [--seconds 60] [--rounds 2]

Runs one worker with two processes on PostgreSQL. Each round measures the lateness of the runs of 1,000 schedules that
run every two seconds, the processor time of the worker for each run, and the time of the makers' query; the second half
of the rounds does so with 100,000 more schedules in the table whose next run is in a year. Normal: the same numbers.
All runs are due on the full second, half of them on each, so a worker that runs a thousand jobs a second is late by up
to half a second. With `--every 1`, two shared cores do not keep up.
"""

import argparse
import time
from pathlib import Path
from typing import Any

from .contestants import roster
from .servers import benchmark_postgres
from .sink import Record, lateness, wait_until_done
from .stand import Testbed

INSERT = """
    INSERT INTO delaytasks_schedule (name, topic, body, tz, every_ms, start_at, gap, overlap, missed, running, paused,
                                     source, made_until)
    SELECT %s || n, 'bench.noop', jsonb_build_object('n', n), 'UTC', %s,
        date_trunc('second', now()) + make_interval(secs => n %% %s), 'run', 'once', 'all', 'allow', false, 'staff',
        date_trunc('milliseconds', now()) + make_interval(secs => %s)
    FROM generate_series(1, %s) AS n"""
DUE = """
    EXPLAIN (ANALYZE, FORMAT JSON) SELECT id FROM delaytasks_schedule
    WHERE NOT paused AND NOT ended AND made_until <= statement_timestamp() ORDER BY made_until, id LIMIT 200"""
LATE = """
    SELECT job_id, e.due_ms * 1000, e.reserved_ms * 1000 FROM delaytasks_jobevent e
    JOIN delaytasks_job j ON j.id = job_id WHERE e.attempt = 1 AND key LIKE %s AND e.due_ms >= %s AND e.due_ms < %s"""
YEAR = 366 * 86_400
QUIET_SECONDS = 60  # runs are made ten seconds ahead


def execute(testbed: Testbed, sql: str, *params: Any) -> list[Any]:
    with testbed.postgres.connect(testbed.database_name, autocommit=True) as connection:
        cursor = connection.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time that these processes have used."""
    total = 0
    for pid in pids:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / 100


def measure(testbed: Testbed, schedules: int, every: int, seconds: float) -> dict[str, float]:
    """Let the schedules run for `seconds`, after ten to begin with. Return the numbers of these seconds."""
    execute(testbed, INSERT, "run.", every * 1000, every, 0, schedules)
    time.sleep(5)
    execute(testbed, "ANALYZE")  # a plan made for empty tables lasts a minute
    time.sleep(5)
    pids, began, cpu = testbed.pids(), time.time(), cpu_seconds(testbed.pids())
    time.sleep(seconds)
    ended, used = time.time(), cpu_seconds(pids) - cpu
    plan = execute(testbed, DUE)[0][0][0]
    execute(testbed, "DELETE FROM delaytasks_schedule WHERE starts_with(name, 'run.')")
    if not wait_until_done(lambda: not testbed.do("left").get("left"), QUIET_SECONDS):
        raise SystemExit(f"{schedules} schedules are too many here: the worker was more than {QUIET_SECONDS} s behind.")
    first, last = int(began) * 1000 + 1000, int(ended) * 1000
    last -= (last - first) % (every * 1000)
    records = [Record(*row) for row in execute(testbed, LATE, "run.%", first, last)]
    expected = schedules * (last - first) // (every * 1000)
    numbers = lateness(records, expected)
    return numbers | {"runs": len(records), "cpu_ms_per_run": used * 1000 / max(1, len(records)),
                      "due_query_ms": plan["Execution Time"]}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=1000)
    parser.add_argument("--every", type=int, default=2, help="seconds between two runs of a schedule")
    parser.add_argument("--idle", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--rounds", type=int, default=2)
    args = parser.parse_args()
    with (
        benchmark_postgres() as postgres,
        Testbed(roster.OURS, roster.contestants()[roster.OURS], postgres) as testbed,
        testbed.workers(),
    ):
        for idle in (0, args.idle):
            if idle:
                execute(testbed, INSERT, "idle.", 1000, 1, YEAR, idle)
                execute(testbed, "ANALYZE")
            for number in range(args.rounds):
                figures = measure(testbed, args.schedules, args.every, args.seconds)
                line = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
                print(f"{idle:,} idle, round {number + 1}: {line}", flush=True)


if __name__ == "__main__":
    main()
