"""An HTTP consumer that uses the shipped client: `python -m tests.torture.consumer URL TOKEN`.

Runs until SIGTERM. From the database it reads only the clock, for the ledger.
"""

import logging
import os
import sys
import time
from pathlib import Path

import django
from django.db import DatabaseError, connection

from delaytasks.client import Client, Consumer, Job

from .ledger import Ledger

TOPIC = "torture.http"
WORK_SECONDS = 0.05


LEDGER = Ledger(Path(os.environ.get("TORTURE_LEDGER", ".")), "consumer")


class RecordingClient(Client):
    """A client that logs each successful finish."""

    def finish(self, job: Job) -> None:
        super().finish(job)
        LEDGER.write("finishes", job=job.number, attempt=job.attempt)


def main(url: str, token: str) -> None:
    django.setup()
    logging.basicConfig(level=logging.INFO)

    def work(job: Job) -> None:
        fields = {"job": job.number, "topic": TOPIC, "key": job.id, "attempt": job.attempt}
        due_ms = round(job.due_at.timestamp() * 1000)
        LEDGER.write("begins", **fields, due_ms=due_ms, now_ms=_now_ms(due_ms))
        LEDGER.write("outside", **fields)
        time.sleep(WORK_SECONDS)
        LEDGER.write("ends", job=job.number, attempt=job.attempt, how="returned")

    print("consuming", flush=True)
    Consumer(RecordingClient(url, token), TOPIC, work, threads=2).run()


def _now_ms(default: int) -> int:
    """Return the database's time, or `default` while the database is down."""
    from delaytasks.db import dialects

    try:
        return int(dialects.now_ms("default"))
    except DatabaseError:
        return default
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
