"""Handlers of the failures that begin in a handler. Files in the installation's directory say how they behave."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from delaytasks import handler
from delaytasks.backoff import Backoff

SLOW, POISON, HERD = "gameday.slow", "gameday.poison", "gameday.herd"
SLOW_FILE, REPAIRED_FILE = "slow", "repaired"
SLOW_SECONDS = 3
HERD_SECONDS = 0.03
TTR_SECONDS = 10
_QUICKLY = Backoff(base_seconds=0.5, factor=1.5, cap_seconds=3)


def _exists(name: str) -> bool:
    return (Path(os.environ["VAR_DIR"]) / name).exists()


@handler(SLOW, ttr=TTR_SECONDS, backoff=_QUICKLY)
def slow(job: Any) -> None:
    """Wait for a service that has become slow."""
    if _exists(SLOW_FILE):
        time.sleep(SLOW_SECONDS)


@handler(POISON, ttr=TTR_SECONDS, max_attempts=3, backoff=_QUICKLY)
def poison(job: Any) -> None:
    """Kill the process that runs it, as a job does that takes all its memory, until it is repaired."""
    if not _exists(REPAIRED_FILE):
        os.kill(os.getpid(), signal.SIGKILL)


@handler(HERD, ttr=TTR_SECONDS)
def herd(job: Any) -> None:
    time.sleep(HERD_SECONDS)
