"""A consumer over HTTP, with the client that the product ships: `python -m tests.torture.consumer URL TOKEN`.

Runs until it is told to stop (SIGTERM), or is killed. It reads the database's clock as a witness, nothing else.
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


class Witnessed(Client):
    """Writes down that it heard of a finish."""

    def finish(self, job: Job) -> None:
        super().finish(job)
        LEDGER.write("finishes", job=job.number, attempt=job.attempt)


def main(url: str, token: str) -> None:
    django.setup()
    logging.basicConfig(level=logging.INFO)

    def work(job: Job) -> None:
        about = {"job": job.number, "topic": TOPIC, "key": job.id, "attempt": job.attempt}
        due_ms = round(job.due_at.timestamp() * 1000)
        LEDGER.write("begins", **about, due_ms=due_ms, now_ms=_now_ms(due_ms))
        LEDGER.write("outside", **about)
        time.sleep(WORK_SECONDS)
        LEDGER.write("ends", job=job.number, attempt=job.attempt, how="returned")

    print("consuming", flush=True)
    Consumer(Witnessed(url, token), TOPIC, work, threads=2).run()


def _now_ms(otherwise: int) -> int:
    """By the database's clock; `otherwise` where the database is away: then there is no witness."""
    from delaytasks import dialect

    try:
        return int(dialect.now_ms("default"))
    except DatabaseError:
        return otherwise
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
