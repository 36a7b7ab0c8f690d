"""What `migrate` costs a running site: the longest wait of its writes, for each migration, with many rows.

    python -m benchmarks.migrations [--rows 10000000] [--from 0009] [--writes-per-second 50]

Fills PostgreSQL with jobs and events in the tables of an older release: a fifth pending, the others ended. Then applies
the newer migrations one by one, while two connections write to each of the tables of jobs, events and topics as a
process of that release would. The wait of a write is from its statement to its commit, so it also has the time of the
disk: compare with the row "none". Needs about 1 GB for a million rows.
"""

import argparse
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.servers import PostgresServer, make_directory

from .indexes import without_indexes
from .servers import benchmark_postgres, benchmark_redis
from .stand import ROOT, environment

APP = "delaytasks"
DATABASE = "migrations"
IDLE_SECONDS = 10.0
BUSY = "none"  # the row without a migration
# A dead job has an error that a migration turns into a code.
JOBS = """
    INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, ended_at,
                                died_at, worker, error)
    SELECT 'topic.' || n %% 20, 'order:' || n, CASE WHEN n %% 5 = 0 THEN 1 WHEN n %% 100 = 1 THEN 6 ELSE 4 END,
        CASE WHEN n %% 5 = 0 THEN now() + n * interval '1 s' ELSE at END, 60000, 1, 0,
        jsonb_build_object('order', n), at - interval '1 hour',
        CASE WHEN n %% 5 = 0 THEN NULL ELSE at END, CASE WHEN n %% 100 = 1 THEN at END,
        'worker-1', CASE WHEN n %% 100 = 1 THEN 'Its TTR was over and nobody had finished it.' ELSE '' END
    FROM (SELECT n, now() - interval '60 days' + n * interval '1 ms' AS at FROM generate_series(1, %s) AS n) AS rows"""
EVENTS = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error)
    SELECT id, CASE state WHEN 6 THEN 'failed' WHEN 4 THEN 'finished' ELSE 'scheduled' END, 1,
        extract(epoch FROM due_at) * 1000, extract(epoch FROM due_at) * 1000, worker, '', error
    FROM delaytasks_job ORDER BY id"""
# The statements that each connection repeats, in one transaction.
WRITES = {
    "jobs": [
        """INSERT INTO delaytasks_job
               (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker, error)
           VALUES ('new', gen_random_uuid()::text, 1, now() + interval '1 day', 60000, 0, 0, '{}', now(), '', '')""",
        """UPDATE delaytasks_job SET due_at = now() + interval '2 days'
           WHERE id = (SELECT max(id) FROM delaytasks_job WHERE state = 1)""",
    ],
    "events": [
        """INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, done_ms, worker, actor, error)
           VALUES ((SELECT max(id) FROM delaytasks_job), 'scheduled', 1, 0, 0, '', '', '')""",
    ],
    "topics": [
        """INSERT INTO delaytasks_topic (name, paused, slots) VALUES ('topic.1', false, '[]')
           ON CONFLICT (name) DO UPDATE SET paused = false""",
    ],
}


@dataclass
class Waits:
    """The waits of each table's writes in seconds, and the errors."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {table: [] for table in WRITES})
    errors: set[str] = field(default_factory=set)

    def line(self, name: str, took: float) -> str:
        longest = "".join(f" {max(self.seconds[table], default=0) * 1e3:>10,.0f}" for table in WRITES)
        return f"{name:<32} {took:>8,.1f} s{longest}  {'; '.join(sorted(self.errors))}"


@contextmanager
def writing(postgres: PostgresServer, writes_per_second: float) -> Iterator[Waits]:
    """Write to each table until the block ends. Two connections for each, so that a new one can wait behind another."""
    waits, ended = Waits(), threading.Event()

    def write(table: str) -> None:
        with postgres.connect(DATABASE) as connection:
            while not ended.wait(1 / writes_per_second):
                began = time.perf_counter()
                try:
                    for statement in WRITES[table]:
                        connection.execute(statement)
                    connection.commit()
                except Exception as error:
                    connection.rollback()
                    waits.errors.add(str(error).partition("\n")[0])
                waits.seconds[table].append(time.perf_counter() - began)

    threads = [threading.Thread(target=write, args=[table]) for table in WRITES for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield waits
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def fill(postgres: PostgresServer, rows: int) -> None:
    with postgres.connect(DATABASE) as connection, connection.cursor() as cursor:
        definitions = without_indexes(cursor)
        cursor.execute("SET LOCAL synchronous_commit = off")
        cursor.execute(JOBS, [rows])
        cursor.execute(EVENTS)
        for definition in definitions:
            cursor.execute(definition)
        connection.commit()
    with postgres.connect(DATABASE, autocommit=True) as connection:
        connection.execute("VACUUM (ANALYZE)")


def newer_migrations(first: str, manage: Callable[..., str]) -> list[str]:
    """Return the names of the migrations after the one that begins with `first`."""
    lines = [line.split()[-1] for line in manage("showmigrations", APP).splitlines() if line.strip().startswith("[")]
    return [name for name in lines if name[: len(first)] > first]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="jobs; there are as many events")
    parser.add_argument("--from", dest="first", default="0009", help="the last migration of the older release")
    parser.add_argument("--writes-per-second", type=float, default=50, help="of each connection")
    args = parser.parse_args()
    with benchmark_postgres() as postgres, benchmark_redis() as redis:
        settings = {"DJANGO_SETTINGS_MODULE": "benchmarks.contestants.ours.settings"}
        directory = make_directory("delaytasks-bench-")
        env = environment(directory, postgres.make_database(DATABASE), redis.url(), "postgres") | settings

        def manage(*arguments: Any) -> str:
            command = [sys.executable, str(ROOT / "manage.py"), *arguments]
            return subprocess.run(command, env=env, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout

        manage("migrate", APP, args.first, "--skip-checks")
        fill(postgres, args.rows)
        print(f"{args.rows:,} jobs and as many events; the longest wait of a write in milliseconds")
        print(f"{'migration':<32} {'took':>10}" + "".join(f" {table:>10}" for table in WRITES), flush=True)
        with writing(postgres, args.writes_per_second) as waits:
            time.sleep(IDLE_SECONDS)
        print(waits.line(BUSY, IDLE_SECONDS), flush=True)
        for name in newer_migrations(args.first, manage):
            with writing(postgres, args.writes_per_second) as waits:
                began = time.monotonic()
                manage("migrate", APP, name, "--skip-checks")
                took = time.monotonic() - began
            print(waits.line(name, took), flush=True)


if __name__ == "__main__":
    main()
