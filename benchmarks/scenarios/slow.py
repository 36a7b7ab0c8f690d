"""Slow handlers: a herd of them on eight processes, and one slow call among quick ones.

"herd": 1,000 jobs due at once, each of which takes 200 ms, on eight processes: seconds until the last one has ended;
25 is ideal. "call": 200 jobs due at once, of which one takes 5 s, on two processes: the greatest lateness of the
others.
"""

import time

from ..contestants.ours.durations import HERD_SECONDS, SLOW_NUMBER
from ..drivers import DriverFailed
from ..filling import fill_ahead
from ..plan import Form, Measured, Options
from ..sink import Record, lateness
from ..stand import Testbed

OURS = "delaytasks"
HERD = 1_000
HERD_PROCESSES = 8
AROUND_SLOW = 200
TIMEOUT_SECONDS = 300.0
STALLED_SECONDS = 30.0


def herd(testbed: Testbed, options: Options) -> Measured:
    count = options.scaled(HERD)
    with testbed.workers(concurrency=HERD_PROCESSES):
        due, records = run_at_once(testbed, "herd", count)
    last_us = max(record.start_us for record in records)
    return Measured(last_us / 1_000_000 + HERD_SECONDS - due, {"ideal_s": count * HERD_SECONDS / HERD_PROCESSES})


def slow_call(testbed: Testbed, kind: str) -> Measured:
    with testbed.workers():
        run_at_once(testbed, kind, SLOW_NUMBER)  # without the slow one: the reservations grow
        testbed.sink.empty()
        _, records = run_at_once(testbed, kind, AROUND_SLOW)
    others = [record for record in records if record.n != SLOW_NUMBER]
    numbers = lateness(others, AROUND_SLOW - 1)
    return Measured(numbers.pop("max_ms"), numbers)


def run_at_once(testbed: Testbed, kind: str, count: int) -> tuple[float, list[Record]]:
    """Run `count` jobs that are due at one instant. Return the due time and the records."""
    due = fill_ahead(testbed, kind, count, lambda start: [start] * count)
    until_due = max(0.0, due - time.time())
    testbed.sink.await_count(count, until_due + TIMEOUT_SECONDS, until_due + STALLED_SECONDS)
    testbed.await_quiet()
    records = testbed.sink.records()
    numbers = lateness(records, count)
    if numbers["missing"] or numbers["twice"]:
        raise DriverFailed(f"{numbers['missing']:.0f} jobs did not run, {numbers['twice']:.0f} ran twice")
    return due, records


def call_form(name: str, note: str) -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        return slow_call(testbed, name)

    return Form("slow", name, "ms late, max", measure, f"slow.{name}", (OURS,), "less", note=note)


FORMS = [
    Form(
        "slow", "herd", "s", herd, "slow.herd", (OURS,), "less",
        note="jobs of 200 ms that are due at once, on eight processes, until the last one has ended",
    ),
    call_form("call", "200 jobs due at once, of which one takes 5 s: the others, each in its own transaction"),
    call_form("call-one-commit", "the same, where the jobs of a batch share one commit"),
]  # fmt: skip
