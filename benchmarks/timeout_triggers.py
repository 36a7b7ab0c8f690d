"""The cost of the triggers of declared timeouts, and how fast their marks are drained.

    python -m benchmarks.timeout_triggers [--database postgres|sqlite] [--rows 100000] [--rounds 5]

Updates all rows of a table with six columns in one statement, without and with triggers: a watched column, and another
one. Then drains the marks: jobs are made, are right already, are cancelled. Prints the best of the rounds. A
normal result: docs/howto/model-timeouts-triggers.md.
"""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import django
from django.conf import settings

from .servers import benchmark_postgres


@contextlib.contextmanager
def database(kind: str) -> Iterator[dict[str, Any]]:
    """Yield Django's settings of an empty database."""
    if kind == "postgres":
        with benchmark_postgres() as server:
            server.make_database("triggers")
            yield {"ENGINE": "django.db.backends.postgresql", **server.settings, "NAME": "triggers"}
    else:
        with TemporaryDirectory() as directory:
            pragmas = "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL"
            options = {"transaction_mode": "IMMEDIATE", "timeout": 30, "init_command": pragmas}
            path = Path(directory) / "db.sqlite3"
            yield {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": options}


def set_up(options: dict[str, Any]) -> None:
    settings.configure(
        DATABASES={"default": options},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "delaytasks", "tests.timeouts.app"],
        DELAYTASKS={"REDIS_URL": None},
        USE_TZ=True,
    )
    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


def seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Benchmark:
    def __init__(self, rows: int, rounds: int) -> None:
        from django.db.models import Q

        from delaytasks.timeouts import applied_declarations, declarations
        from tests.timeouts.app.models import Order

        self.rows, self.rounds, self.orders = rows, rounds, Order.objects
        declared = declarations.Declaration(
            "order.close", Order, "created_at", after=timedelta(days=300), while_=Q(state__in=["open", "wait"])
        )
        declarations.add(declared)
        self._applied = applied_declarations.automatically()
        self._applied.__enter__()
        now = datetime.now(UTC)
        Order.objects.bulk_create([Order(created_at=now, state="paid") for _ in range(rows)], batch_size=5000)

    def updates(self) -> tuple[float, float]:
        """Return the seconds of an update() of a watched column, and of another one."""
        from delaytasks.models import TimeoutMark

        watched, other = [], []
        for number in range(self.rounds):
            self.tidy()
            watched.append(seconds(lambda number=number: self.orders.update(state=f"s{number}")))  # type: ignore[misc]
            TimeoutMark.objects.all().delete()
            self.tidy()
            other.append(seconds(lambda number=number: self.orders.update(note=f"n{number}")))  # type: ignore[misc]
        return min(watched), min(other)

    def drain(self, state: str) -> float:
        """Change the state of all rows. Return the seconds in which their marks are drained."""
        from delaytasks.timeouts.triggers import marks

        self.orders.update(state=state)
        self.tidy()
        return seconds(lambda: marks.drain("default"))

    def tidy(self) -> None:
        from django.db import connection

        with connection.cursor() as cursor:
            if connection.vendor == "postgresql":
                cursor.execute("VACUUM ANALYZE")
            else:
                cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def run(self) -> None:
        from delaytasks.timeouts.triggers import installation, marks

        plain, plain_other = self.updates()
        installation.install("default")
        marks.drain("default")
        marked, marked_other = self.updates()
        print(f"update() of {self.rows:,} rows, a watched column: {plain:.2f} s without triggers, {marked:.2f} s with, "
              f"ratio {marked / plain:.1f}")  # fmt: skip
        print(f"update() of {self.rows:,} rows, another column: {plain_other:.2f} s without triggers, "
              f"{marked_other:.2f} s with, ratio {marked_other / plain_other:.1f}")  # fmt: skip
        for what, state in (("made", "open"), ("right already", "wait"), ("cancelled", "paid")):
            print(f"drain of {self.rows:,} marks, jobs are {what}: {self.drain(state):.2f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with database(args.database) as options:
        set_up(options)
        Benchmark(args.rows, args.rounds).run()
        from django.db import connection

        connection.close()


if __name__ == "__main__":
    main()
