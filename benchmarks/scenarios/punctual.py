"""Jobs due at random times within 30 seconds, scheduled in advance: how late each one starts."""

import random
import time

from ..filling import fill_ahead
from ..plan import DEFAULT_JOBS, Form, Measured, Options
from ..sink import lateness
from ..stand import Testbed

SECONDS = 30.0
MIN_SECONDS = 3.0
TIMEOUT_SECONDS = 120.0
STALLED_SECONDS = 30.0
UNIT = "ms late, p50"
SEED = 7  # the same times for all contestants


def form(rate: int) -> Form:
    def measure(testbed: Testbed, options: Options) -> Measured:
        seconds = max(MIN_SECONDS, SECONDS * min(1.0, options.jobs / DEFAULT_JOBS))
        rng = random.Random(SEED)
        offsets = sorted(rng.uniform(0, seconds) for _ in range(round(rate * seconds)))
        count = len(offsets)
        with testbed.workers():
            start = fill_ahead(testbed, "noop", count, lambda start: [start + offset for offset in offsets])
            until_end = max(0.0, start + seconds - time.time())
            testbed.sink.await_count(count, until_end + TIMEOUT_SECONDS, until_end + STALLED_SECONDS)
            testbed.await_quiet()
            numbers = lateness(testbed.sink.records(), count)
        return Measured(numbers.pop("p50_ms"), numbers)

    note = f"{rate} due per second"
    return Form("punctual", str(rate), UNIT, measure, needs="punctual", better="less", note=note)


FORMS = [form(200), form(1000)]
