"""Everything due at one instant, two worker processes: jobs per second from that instant to the last start.

Without a word more, the handler does nothing. What is ours alone says how its jobs are committed; the peers' bare
no-op touches no database.
"""

import time

from ..drivers import DriverFailed
from ..filling import fill_ahead
from ..plan import Form, Measured, Options
from ..sink import lateness, per_second
from ..stand import Stand

AT_MOST_SECONDS = 900.0
STALLED_SECONDS = 60.0


def form(name: str, kind: str, needs: str, note: str) -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        with stand.workers():
            due = fill_ahead(stand, kind, options.jobs, lambda start: [start] * options.jobs)
            until_due = max(0.0, due - time.time())
            stand.sink.await_count(options.jobs, until_due + AT_MOST_SECONDS, until_due + STALLED_SECONDS)
            stand.await_quiet()
            records = stand.sink.records()
        found = lateness(records, options.jobs)
        if found["missing"] or found["twice"]:  # who loses jobs would be done sooner
            raise DriverFailed(f"{found['missing']:.0f} jobs did not run, {found['twice']:.0f} ran twice")
        return Measured(per_second(records, due), found)

    return Form("burst", name, "jobs/s", measure, needs=needs, note=note)


FORMS = [
    form("noop", "noop", "burst", "a handler per job that does nothing; ours in a transaction of its own"),
    form("update", "update", "burst.update", "a handler per job that updates one row, in a transaction of its own"),
    form("update-relaxed", "update-relaxed", "burst.update-relaxed", "as update; the finish waits for no disk"),
    form("one-commit", "one-commit", "burst.one-commit", "a handler per job; the jobs of a batch share one commit"),
    form("batch", "batch", "burst.batch", "a handler that is called with up to 200 jobs"),
]
