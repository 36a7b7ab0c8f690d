"""A million orders with a declared timeout while workers are killed: `python -m tests.torture.declared_load --help`.

Some of the orders fall due during the run, the others later. Some are paid meanwhile, by `update()`, which sends no
signals: triggers notice it. Once a minute a worker is killed. At the end, a scan of the whole table says which orders
should have been closed and which should have a job; exit status 1 if the orders or the jobs differ.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")

SETTINGS = "tests.torture.declared.settings"
TABLE = "declared_order"
DUE_SHARE = 0.1  # of the orders, due during the run
PAID_SHARE = 0.05  # of the orders, paid during the run; two fifths of them are due in the run
PAID_DUE_SHARE = 0.4
APPLY_PER_SECOND = 4_000  # orders whose jobs `timeouts apply` makes in a second, at the least
KILL_SECONDS = 60.0
SETTLE_SECONDS = 600.0  # after the run, until every order and job is as it should be


@dataclass
class Result:
    """Figures and problems of a run."""

    facts: dict[str, Any] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def text(self) -> str:
        lines = [f"{name:34} {value}" for name, value in self.facts.items()]
        return "\n".join([*lines, *(f"BROKEN  {each}" for each in self.broken)])


def fill(orders: int, start: datetime, seconds: float) -> int:
    """Insert orders, numbered from 1 on. Return how many are due in the run.

    Each tenth is due within `seconds` of `start`, the others hours later.
    """
    from django.db import connection

    from .declared.timeouts import PAY_WITHIN

    every = round(1 / DUE_SHARE)
    due = orders // every
    with connection.cursor() as cursor:
        cursor.execute(
            f"""INSERT INTO {TABLE} (state, created_at, "window", note)
                SELECT 'open', date_trunc('milliseconds', %s + CASE
                           WHEN n %% %s = 0 THEN interval '1 second' * (%s * n::float / %s)
                           ELSE interval '3 hours' + n * interval '10 milliseconds' END), interval '0', ''
                FROM generate_series(1, %s) n ORDER BY n""",
            [start - PAY_WITHIN, every, seconds, orders, orders],
        )
        cursor.execute(f"VACUUM ANALYZE {TABLE}")
    return due


def payments(orders: int, seconds: float, chance: random.Random) -> Iterator[Sequence[int]]:
    """Yield the numbers of the orders that are paid in each second."""
    every = round(1 / DUE_SHARE)
    count = round(orders * PAID_SHARE)
    due = chance.sample(range(every, orders + 1, every), round(count * PAID_DUE_SHARE))
    later = chance.sample([n for n in range(1, orders + 1) if n % every], count - len(due))
    paid = due + later
    chance.shuffle(paid)
    turns = max(1, round(seconds))
    for turn in range(turns):
        yield paid[turn * len(paid) // turns : (turn + 1) * len(paid) // turns]


def run(arena: Any, *, orders: int, seconds: float, kill_seconds: float = KILL_SECONDS, workers: int = 2) -> Result:
    """Fill, declare, pay and kill for `seconds`, wait until all is settled, and compare. `arena` is not populated."""
    from django.db import connection
    from django.utils import timezone

    from tests.timeouts.app.models import Order

    result, chance = Result(), random.Random(0)
    start = timezone.now() + timedelta(seconds=15 + orders / APPLY_PER_SECOND)
    result.facts["orders; due in the run"] = f"{orders}; {fill(orders, start, seconds)}"
    arena.manage("delaytasks", "timeouts", "triggers", "install")
    began = time.monotonic()
    arena.manage("delaytasks", "timeouts", "apply", "--overdue", "run")
    result.facts["jobs made by timeouts apply in"] = f"{time.monotonic() - began:.0f} s"
    arena.populate(workers=workers, consumers=0)
    arena.hold(max(0.0, (start - timezone.now()).total_seconds()))
    began = time.monotonic()
    paid, kills, slowest = 0, 0, 0.0
    for turn, numbers in enumerate(payments(orders, seconds, chance)):
        asked = time.monotonic()
        paid += Order.objects.filter(pk__in=numbers, state="open").update(state="paid")
        slowest = max(slowest, time.monotonic() - asked)
        if turn >= (kills + 0.5) * kill_seconds:
            _kill(arena, kills)
            kills += 1
        arena.hold(max(0.0, began + turn + 1 - time.monotonic()))
    result.facts["paid by update()"] = f"{paid}; {slowest * 1000:.0f} ms for the slowest statement"
    result.facts["workers killed"] = kills
    ended = time.monotonic()
    arena.until_quiet(_unsettled, seconds=SETTLE_SECONDS)
    result.facts["settled after the run in"] = f"{time.monotonic() - ended:.1f} s"
    connection.close()
    _check(result, paid)
    return result


def _kill(arena: Any, kills: int) -> None:
    """Kill a worker with all its processes, or only one that runs jobs, in turn."""
    workers = arena.those("worker")
    worker = workers[kills % len(workers)]
    children = arena.children(worker)
    if kills % 2 and children:
        os.kill(children[0], signal.SIGKILL)
    else:
        worker.signal(signal.SIGKILL, children=True)


def _rows(sql: str) -> list[tuple[Any, ...]]:
    from django.db import connection

    from .declared.timeouts import CLOSE, PAY_WITHIN

    with connection.cursor() as cursor:
        cursor.execute(
            f"""WITH orders AS (SELECT id, state, note, created_at + %(within)s AS due_at FROM {TABLE}),
                     live AS (SELECT subject_pk::bigint AS id, due_at FROM delaytasks_job
                              WHERE topic = %(topic)s AND ended_at IS NULL)
                {sql}""",
            {"within": PAY_WITHIN, "topic": CLOSE},
        )
        return cursor.fetchall()


EARLY = "closed before it was due"
# What a scan of the whole tables says that is not so.
WRONG = {
    "due, open, and not closed": "SELECT id FROM orders WHERE state = 'open' AND due_at <= now()",
    "paid, and its handler was called": "SELECT id FROM orders WHERE state = 'paid' AND note <> ''",
    "closed, and its handler was not called once": r"SELECT id FROM orders WHERE state = 'closed' AND note !~ '^\d+ $'",
    EARLY: """SELECT id FROM orders WHERE state = 'closed'
        AND split_part(note, ' ', 1)::bigint < floor(extract(epoch FROM due_at) * 1000)""",
    "open without a live job for its due time": """SELECT orders.id FROM orders LEFT JOIN live USING (id)
        WHERE state = 'open' AND live.due_at IS DISTINCT FROM orders.due_at""",
    "a live job of an order that is not open": "SELECT id FROM orders JOIN live USING (id) WHERE state <> 'open'",
    "two live jobs": "SELECT id FROM live GROUP BY id HAVING count(*) > 1",
    "a dead job": "SELECT subject_pk FROM delaytasks_job WHERE topic = %(topic)s AND state = 6",
}


def _unsettled() -> int:
    """Return how many orders are due and open, or paid with a live job."""
    return _rows(
        """SELECT (SELECT count(*) FROM orders WHERE state = 'open' AND due_at <= now())
                + (SELECT count(*) FROM orders JOIN live USING (id) WHERE state <> 'open')"""
    )[0][0]


def _check(result: Result, paid: int) -> None:
    for what, sql in WRONG.items():
        wrong = [row[0] for row in _rows(sql)]
        if wrong:
            result.broken.append(f"{len(wrong)} orders: {what}, such as {wrong[:3]}")
    states = dict(_rows("SELECT state, count(*) FROM orders GROUP BY state"))
    result.facts["closed; paid; open"] = "; ".join(str(states.get(name, 0)) for name in ("closed", "paid", "open"))
    if states.get("paid", 0) != paid:
        result.broken.append(f"update() has paid {paid} orders, and {states.get('paid', 0)} are paid")
    (late,) = _rows(
        """SELECT percentile_disc(ARRAY[0.5, 0.99, 1]) WITHIN GROUP
                  (ORDER BY split_part(note, ' ', 1)::bigint - floor(extract(epoch FROM due_at) * 1000)::bigint)
           FROM orders WHERE state = 'closed'"""
    )
    result.facts["closed late: median, 99 %, most"] = ", ".join(f"{ms} ms" for ms in late[0] or ())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.declared_load", description=__doc__.split("\n")[0])
    parser.add_argument("--orders", type=int, default=1_000_000)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--report", type=Path, default=Path("var/torture/declared-load.txt"))
    options = parser.parse_args()
    os.environ["DELAYTASKS_TEST_DB"] = "postgres"
    import django

    django.setup()
    from .environment import arena

    with (
        tempfile.TemporaryDirectory(prefix="declared-load-") as directory,
        arena(Path(directory), settings=SETTINGS, RECONCILE_SECONDS="3600") as installation,
    ):
        result = run(installation, orders=options.orders, seconds=options.minutes * 60, workers=options.workers)
    options.report.parent.mkdir(parents=True, exist_ok=True)
    options.report.write_text(result.text() + "\n")
    print(result.text())
    return 1 if result.broken else 0


if __name__ == "__main__":
    sys.exit(main())
