"""How large the tables become while jobs are run and pruned, with PostgreSQL's autovacuum and with the recommended one.

    python -m benchmarks.bloat [--rows 1000000] [--rounds 16] [--jobs 20000]

Fills PostgreSQL with ended jobs, each with an event. Each round then schedules jobs that are due now, waits until
two processes have run them, and prunes as many of the oldest: the number of rows stays the same, so growth is bloat.
Does this with default storage parameters and with those of docs/howto/retention.md, each with tables of its own.
Autovacuum looks at the tables every NAPTIME instead of every minute, because a round stands for hours of a real
site. Needs about 1 GB for a million rows.
"""

import argparse
import re
import time
from typing import Any, NamedTuple

from tests.support.servers import PostgresServer

from .contestants import roster
from .retention import ask, fill, start_prune
from .servers import benchmark_postgres
from .stand import ROOT, Testbed

NAPTIME = "5s"
TABLES = ("delaytasks_job", "delaytasks_jobevent")
AGE_SECONDS = 60 * 86_400  # of the oldest row, see retention.fill()
APART_MS = 100  # prune takes ages in minutes, which is 600 rows then
RUN_SECONDS = 300
SIZES = """
    SELECT pg_table_size(relid), pg_indexes_size(relid), n_live_tup, n_dead_tup, autovacuum_count
    FROM pg_stat_user_tables WHERE relname = '{}'"""


def recommended() -> list[str]:
    """Return the statements of the document."""
    text = (ROOT / "docs/howto/retention.md").read_text()
    return re.findall(r"^ALTER TABLE delaytasks_\w+ +SET \(autovacuum.+?\);$", text, re.MULTILINE)


class Size(NamedTuple):
    """Bytes of a table with its TOAST table, and of its indexes; PostgreSQL's estimates of rows."""

    table: int
    indexes: int
    live: int
    dead: int
    vacuums: int


def sizes(testbed: Testbed) -> dict[str, Size]:
    return {table: Size(*ask(testbed, SIZES.format(table))) for table in TABLES}


def run_jobs(testbed: Testbed, count: int) -> None:
    testbed.sink.empty()
    testbed.do("fill", due=[time.time()] * count, kind="batch")
    if not testbed.sink.await_count(count, RUN_SECONDS):
        raise SystemExit(f"{testbed.sink.count()} of {count} jobs ran within {RUN_SECONDS} s.\n{testbed.report()}")


def prune_oldest(testbed: Testbed, count: int, filled_at: float) -> None:
    """Delete the ended jobs up to number `count` of those that were filled in."""
    age = AGE_SECONDS + time.time() - filled_at - count * APART_MS / 1000
    status = start_prune(testbed, f"{age / 60:.0f}m").wait(RUN_SECONDS)
    if status:
        raise SystemExit(f"prune ended with status {status}.")


def measure(postgres: PostgresServer, statements: list[str], args: Any) -> dict[str, list[Size]]:
    """Return the sizes of each table before the first round and after each."""
    found: dict[str, list[Size]] = {table: [] for table in TABLES}
    with Testbed(roster.OURS, roster.contestants()[roster.OURS], postgres) as testbed:
        filled_at = time.time()
        fill(testbed, args.rows, APART_MS)
        with postgres.connect(testbed.database_name, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement)
        with testbed.workers():
            for number in range(args.rounds + 1):
                for table, size in sizes(testbed).items():
                    found[table].append(size)
                if number < args.rounds:
                    run_jobs(testbed, args.jobs)
                    prune_oldest(testbed, args.jobs * (number + 1), filled_at)
    return found


def report(name: str, found: dict[str, list[Size]]) -> None:
    for table, rounds in found.items():
        first, last = rounds[0], rounds[-1]
        print(
            f"{name:12} {table:20} table {first.table / 2**20:,.0f} -> {last.table / 2**20:,.0f} MiB, "
            f"indexes {first.indexes / 2**20:,.0f} -> {last.indexes / 2**20:,.0f} MiB, rows {first.live:,} -> "
            f"{last.live:,}, dead at most {max(each.dead for each in rounds):,}, autovacuums {last.vacuums}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000, help="ended jobs; there are as many events")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--jobs", type=int, default=20_000, help="scheduled, run and pruned in each round")
    args = parser.parse_args()
    for name, statements in {"default": [], "recommended": recommended()}.items():
        with benchmark_postgres(autovacuum_naptime=NAPTIME) as postgres:
            report(name, measure(postgres, statements, args))


if __name__ == "__main__":
    main()
