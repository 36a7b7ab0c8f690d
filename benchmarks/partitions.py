"""Would range partitions of the events pay? Compares the table of today with one in ranges of ids.

    python -m benchmarks.partitions [--rows 2000000] [--partitions 16] [--rounds 30]

Fills both tables with the same events, oldest first, three for each job. Each round then measures, in turn on either
table and each time in one transaction: 300 inserts of an event, one after the other; the events of 100 jobs, read one
after the other, as a job's page does; and the deletion of the events of 300 of the oldest jobs, as by the retention.
At the end it deletes all events of a range, and drops a partition instead.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import psycopg

from tests.support.servers import PostgresServer, make_directory

from .servers import benchmark_postgres, benchmark_redis
from .stand import ROOT, environment

DATABASE = "partitions"
PER_JOB = 3  # events
INSERTS, READS, DELETED = 300, 100, 300
COLUMNS = "job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error, reason"
VALUES = "%s, 'finished', 1, %s, %s, %s, 'worker-1', '', '', ''"
FILL = f"""
    INSERT INTO {{}} (id, {COLUMNS})
    SELECT n, (n - 1) / {PER_JOB} + 1, 'finished', 1, n, n, n, 'worker-1', '', '', ''
    FROM generate_series(1, %s) AS n"""


def create(connection: psycopg.Connection, rows: int, partitions: int) -> None:
    """Create and fill both tables, each with the indexes of today's."""
    connection.execute("CREATE TABLE plain (LIKE delaytasks_jobevent INCLUDING DEFAULTS INCLUDING INDEXES)")
    connection.execute(
        "CREATE TABLE ranges (LIKE delaytasks_jobevent INCLUDING DEFAULTS INCLUDING INDEXES) PARTITION BY RANGE (id)"
    )
    size = -(-rows // (partitions - 1))  # the last partition takes the inserts
    for number in range(partitions):
        until = str(1 + (number + 1) * size) if number < partitions - 1 else "MAXVALUE"
        bounds = f"FROM ({1 + number * size}) TO ({until})"
        connection.execute(f"CREATE TABLE range_{number} PARTITION OF ranges FOR VALUES {bounds}")
    for table in ("plain", "ranges"):
        connection.execute(f"CREATE SEQUENCE {table}_ids START {rows + 1}")
        connection.execute(f"ALTER TABLE {table} ALTER id DROP IDENTITY IF EXISTS")
        connection.execute(f"ALTER TABLE {table} ALTER id SET DEFAULT nextval('{table}_ids')")
        connection.execute(FILL.format(table), [rows])
        connection.execute(f"VACUUM (ANALYZE) {table}")


def insert(connection: psycopg.Connection, table: str, number: int, jobs: int) -> None:
    for n in range(INSERTS):
        job = jobs + number * INSERTS + n
        connection.execute(f"INSERT INTO {table} ({COLUMNS}) VALUES ({VALUES})", [job, n, n, n], prepare=True)


def read(connection: psycopg.Connection, table: str, number: int, jobs: int) -> None:
    for n in range(READS):
        job = jobs - 1 - (number * READS + n) * 7 % (jobs // 2)
        connection.execute(f"SELECT * FROM {table} WHERE job_id = %s ORDER BY id", [job], prepare=True).fetchall()


def delete(connection: psycopg.Connection, table: str, number: int, jobs: int) -> None:
    first = 1 + number * DELETED
    connection.execute(
        f"DELETE FROM {table} WHERE job_id = ANY(%s)", [list(range(first, first + DELETED))], prepare=True
    )


def timed(connection: psycopg.Connection, work: Callable[[], object]) -> float:
    """Return the milliseconds of a transaction."""
    began = time.perf_counter()
    with connection.transaction():
        work()
    return (time.perf_counter() - began) * 1000


def compare(connection: psycopg.Connection, rows: int, rounds: int) -> None:
    jobs = rows // PER_JOB
    works = {f"{INSERTS} inserts": insert, f"{READS} jobs read": read, f"{DELETED} jobs deleted": delete}
    found: dict[tuple[str, str], list[float]] = {(name, table): [] for name in works for table in ("plain", "ranges")}
    for number in range(rounds):
        for name, work in works.items():
            for table in ("plain", "ranges") if number % 2 else ("ranges", "plain"):
                ms = timed(connection, lambda: work(connection, table, number, jobs))  # noqa: B023  called at once
                found[name, table].append(ms)
    for name in works:
        plain, ranges = (statistics.median(found[name, table][3:]) for table in ("plain", "ranges"))
        print(f"{name:18} today {plain:8.2f} ms, in ranges {ranges:8.2f} ms: {ranges / plain:.2f} times", flush=True)


def remove_a_range(connection: psycopg.Connection, rows: int, partitions: int) -> None:
    size = -(-rows // (partitions - 1))
    bounds = [1 + size, 2 * size]
    ms = timed(connection, lambda: connection.execute("DELETE FROM plain WHERE id BETWEEN %s AND %s", bounds))
    dropped = timed(connection, lambda: connection.execute("DROP TABLE range_1"))
    print(f"a range of {size:,}      deleted {ms:8.0f} ms, dropped {dropped:8.0f} ms", flush=True)


def migrated(postgres: PostgresServer) -> psycopg.Connection:
    with benchmark_redis() as redis:
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings"}
        directory = make_directory("delaytasks-bench-")
        env = environment(directory, postgres.make_database(DATABASE), redis.url(), "postgres") | settings
        command = [sys.executable, str(ROOT / "manage.py"), "migrate", "delaytasks", "--skip-checks", "--verbosity=0"]
        subprocess.run(command, env=env, cwd=ROOT, check=True)
    return postgres.connect(DATABASE, autocommit=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--partitions", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    with benchmark_postgres() as postgres, migrated(postgres) as connection:
        create(connection, args.rows, args.partitions)
        compare(connection, args.rows, args.rounds)
        remove_a_range(connection, args.rows, args.partitions)


if __name__ == "__main__":
    main()
