"""All jobs due at once, two worker processes: jobs per second from the due time to the last start.

The handler of "noop" does nothing; that of the other queues does not use a database. Forms that only delaytasks has
differ in how jobs are committed.
"""

import time

from ..drivers import DriverFailed
from ..filling import fill_ahead
from ..plan import Form, Measured, Options
from ..sink import lateness, per_second
from ..stand import Testbed

TIMEOUT_SECONDS = 900.0
STALLED_SECONDS = 60.0


def form(name: str, kind: str, needs: str, note: str) -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        return measured(testbed, options, kind)

    return Form("burst", name, "jobs/s", measure, needs=needs, note=note)


def measured(testbed: Testbed, options: Options, kind: str, concurrency: int | None = None) -> Measured:
    """Measure a burst of this kind; `concurrency` as in Testbed.workers()."""
    with testbed.workers(concurrency=concurrency):
        due = fill_ahead(testbed, kind, options.jobs, lambda start: [start] * options.jobs)
        until_due = max(0.0, due - time.time())
        testbed.sink.await_count(options.jobs, until_due + TIMEOUT_SECONDS, until_due + STALLED_SECONDS)
        testbed.await_quiet()
        records = testbed.sink.records()
    numbers = lateness(records, options.jobs)
    if numbers["missing"] or numbers["twice"]:  # losing jobs would look fast
        raise DriverFailed(f"{numbers['missing']:.0f} jobs did not run, {numbers['twice']:.0f} ran twice")
    return Measured(per_second(records, due), numbers)


FORMS = [
    form("noop", "noop", "burst", "a handler per job that does nothing; in delaytasks in its own transaction"),
    form("update", "update", "burst.update", "a handler per job that updates one row in its own transaction"),
    form(
        "update-relaxed",
        "update-relaxed",
        "burst.update-relaxed",
        "as update, but the finish does not wait for the disk",
    ),
    form("one-commit", "one-commit", "burst.one-commit", "a handler per job; the jobs of a batch share one commit"),
    form("batch", "batch", "burst.batch", "a handler that is called with up to 200 jobs"),
]
