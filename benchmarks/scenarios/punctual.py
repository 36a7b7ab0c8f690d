"""Jobs due at random instants for half a minute, scheduled before: how late each of them starts."""

import random
import time

from ..filling import fill_ahead
from ..plan import USUAL_JOBS, Form, Measured, Options
from ..sink import lateness
from ..stand import Stand

SECONDS = 30.0
LEAST_SECONDS = 3.0
LATEST_SECONDS = 120.0
STALLED_SECONDS = 30.0
UNIT = "ms late, p50"
SEED = 7  # the same instants for all


def form(rate: int) -> Form:
    def measure(stand: Stand, options: Options) -> Measured:
        seconds = max(LEAST_SECONDS, SECONDS * min(1.0, options.jobs / USUAL_JOBS))
        chosen = random.Random(SEED)
        offsets = sorted(chosen.uniform(0, seconds) for _ in range(round(rate * seconds)))
        count = len(offsets)
        with stand.workers():
            start = fill_ahead(stand, "noop", count, lambda start: [start + offset for offset in offsets])
            until_end = max(0.0, start + seconds - time.time())
            stand.sink.await_count(count, until_end + LATEST_SECONDS, until_end + STALLED_SECONDS)
            stand.await_quiet()
            found = lateness(stand.sink.records(), count)
        return Measured(found.pop("p50_ms"), found)

    note = f"{rate} due per second"
    return Form("punctual", str(rate), UNIT, measure, needs="punctual", better="less", note=note)


FORMS = [form(200), form(1000)]
