"""The cost of keeping a table with declared timeouts true by reconciliation alone.

    python -m benchmarks.timeout_reconciliation [--database postgres|sqlite] [--rows 1000000] [--open 5] [--changed 1]

Fills a table: `--open` percent of the rows match the condition and have a live job, the others have an ended one.
Makes a pass with nothing to do, then closes `--changed` percent of the rows by update(), and makes another pass. A
normal result: docs/explanation/performance.md, "Reconciliation".
"""

import argparse
import time
from datetime import timedelta

from .timeout_triggers import database, seconds, set_up

PASSES_AN_HOUR = 12  # with the default RECONCILE_SECONDS

FILL = """
    INSERT INTO declared_order (id, state, created_at, "window", note)
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows})
    SELECT n, CASE WHEN n % 100 < {open} THEN 'open' ELSE 'paid' END, {now}, {window}, '' FROM numbers"""
JOBS = """
    INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, body, created_at, attempt, failures, worker, error,
        ended_at, subject_label, subject_pk, declared_due)
    SELECT 'order.close', 'order:' || id, CASE WHEN state = 'open' THEN 1 ELSE 4 END, {due}, 60000, '{{}}', created_at,
        1, 0, '', '', CASE WHEN state = 'open' THEN NULL ELSE created_at END, 'declared.order', CAST(id AS text), {due}
    FROM declared_order ORDER BY id"""


class Benchmark:
    def __init__(self, rows: int, share: int) -> None:
        from django.db.models import Q

        from delaytasks.timeouts import applied_declarations, declarations
        from tests.timeouts.app.models import Order

        self.rows, self.orders = rows, Order.objects
        self.declaration = declarations.Declaration(
            "order.close", Order, "created_at", after=timedelta(days=300), while_=Q(state="open")
        )
        declarations.add(self.declaration)
        applied_declarations.store(self.declaration, "default")
        self._fill(share)

    def _fill(self, share: int) -> None:
        from django.db import connection

        is_postgres = connection.vendor == "postgresql"
        now = "date_trunc('milliseconds', now())" if is_postgres else "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
        due = "created_at + interval '300 days'" if is_postgres else (
            "strftime('%Y-%m-%d %H:%M:%f000', created_at, '+300 days')"
        )  # fmt: skip
        window = "interval '30 minutes'" if is_postgres else "1800000000"
        with connection.cursor() as cursor:
            cursor.execute(FILL.format(rows=self.rows, open=share, now=now, window=window))
            cursor.execute(JOBS.format(due=due))
            cursor.execute("VACUUM ANALYZE" if is_postgres else "ANALYZE")

    def a_pass(self, what: str) -> None:
        """Make all pages of a pass, each in a transaction as in the guard. Print the seconds."""
        from django.db import transaction

        from delaytasks.timeouts import reconcile
        from delaytasks.timeouts.sync import Synced

        total, phase, position, pages = Synced(), reconcile.ROWS, "", []
        cpu = time.process_time()
        while phase != reconcile.DONE:
            began = time.perf_counter()
            with transaction.atomic():
                page = reconcile.next_page(self.declaration, "default", phase, position)
            total, phase, position = reconcile.add(total, page.synced), page.phase, page.position
            pages.append(time.perf_counter() - began)
        pages.sort()
        took, in_python = sum(pages), time.process_time() - cpu
        print(f"{what}: {took:.1f} s in {len(pages):,} transactions, {in_python:.1f} s of them in Python; "
              f"median {pages[len(pages) // 2] * 1000:.0f} ms, longest {pages[-1] * 1000:.0f} ms; made {total.made:,}, "
              f"moved {total.moved:,}, cancelled {total.cancelled:,}. {PASSES_AN_HOUR} passes an hour: "
              f"{took * PASSES_AN_HOUR:.0f} s", flush=True)  # fmt: skip

    def run(self, changed: int) -> None:
        self.a_pass("nothing to do")
        condition = f"id %% 100 < {changed}"  # open ones first
        took = seconds(lambda: self.orders.extra(where=[condition]).update(state="paid"))
        print(f"update() of {changed} percent of the rows: {took:.1f} s")
        self.a_pass("after the update")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=("postgres", "sqlite"), default="postgres")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--open", type=int, default=5, help="percent of the rows")
    parser.add_argument("--changed", type=int, default=1, help="percent of the rows")
    args = parser.parse_args()
    with database(args.database) as options:
        set_up(options)
        Benchmark(args.rows, args.open).run(args.changed)
        from django.db import connection

        connection.close()


if __name__ == "__main__":
    main()
