"""The handlers of all three databases."""

import os
import time
from pathlib import Path
from typing import Any

from delaytasks import handler

from ..ledger import Ledger
from . import CONCURRENCY, TENANT_TOPIC, TOPIC
from .models import Effect
from .moving import act

_ledger = Ledger(Path(os.environ.get("TORTURE_LEDGER", ".")), "handler")


@handler(TOPIC, ttr=4, max_attempts=100, concurrency=CONCURRENCY)
def close(job: Any) -> None:
    """Write when the attempt began, outside of the database, and the effect, in the job's database."""
    now_ms = time.time_ns() // 1_000_000
    _ledger.write("begins", key=job.key, using=job.using, attempt=job.attempt, now_ms=now_ms)
    Effect.objects.using(job.using).create(key=job.key, at_ms=now_ms)


handler(TENANT_TOPIC, ttr=4, max_attempts=100, concurrency=CONCURRENCY)(act)
