"""delaytasks in the example project: PostgreSQL or SQLite, the Redis mirror, beat, a worker with two prefork children.

Jobs are scheduled with the public functions. Bulk cancelling is a bulk change as staff make it, applied in this process
as a worker's task does.
"""

import os
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.contestants.ours.settings")
django.setup()

import celery  # noqa: E402
import hiredis  # noqa: E402
import redis  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.db import connection, transaction  # noqa: E402

import delaytasks  # noqa: E402
from benchmarks.contestants import rows  # noqa: E402
from benchmarks.contestants.lines import Command, chunks, serve, timed  # noqa: E402
from benchmarks.contestants.ours.settings import REDIS_URL, SQLITE  # noqa: E402
from benchmarks.contestants.ours.timeouts import TOPICS  # noqa: E402
from delaytasks import cancel, schedule, schedule_many  # noqa: E402
from delaytasks.bulk import changes  # noqa: E402
from delaytasks.models import BulkChange, Job, JobEvent, MirrorMark  # noqa: E402

ON_DISK = "WAL, synchronous NORMAL" if SQLITE else "synchronous_commit on for each claim and finish"
CONFIGURATION = (
    f"{'SQLite' if SQLITE else 'PostgreSQL'}, {ON_DISK}; Redis mirror; hiredis; one worker with 2 prefork children and"
    " the mover thread, and beat; default settings; a row per job and an event per attempt"
)
CAN = ["schedule.one", "schedule.ten", "schedule.bulk", "cancel.one", "cancel.bulk", "punctual", "pending"]
CAN += ["burst", "burst.update", "burst.one-commit", "burst.batch", "slow.herd", "slow.call", "slow.call-one-commit"]
BULK = 1000
TEN = 10

run = 0
scheduled: list[str] = []  # the keys of the last `schedule`


def describe() -> dict[str, Any]:
    versions = [f"delaytasks {delaytasks.__version__}", f"Django {django.__version__}", f"celery {celery.__version__}"]
    versions += [f"redis-py {redis.__version__} with hiredis {hiredis.__version__}", _database_version()]
    app = [sys.executable, "-m", "celery", "-A", "benchmarks.contestants.ours"]
    beat = ["beat", f"--schedule={os.environ['BENCH_DIR']}/beat-schedule", "--pidfile=", "--loglevel=info"]
    return {
        "name": f"delaytasks on {'SQLite' if SQLITE else 'PostgreSQL'}",
        "version": ", ".join(versions),
        "configuration": CONFIGURATION,
        "workers": [[*app, "worker", "--pool=prefork", "--concurrency=2", "--hostname=bench@%h", "--loglevel=info"]],
        "extra": [[*app, *beat]],
        "can": CAN if SQLITE else [*CAN, "burst.update-relaxed"],
    }


def _database_version() -> str:
    if SQLITE:
        from sqlite3 import sqlite_version

        return f"SQLite {sqlite_version}"
    import psycopg

    return f"psycopg {psycopg.__version__} ({psycopg.pq.__impl__})"


def setup() -> None:
    call_command("migrate", verbosity=0, stdout=sys.stderr)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bench_row (id bigint PRIMARY KEY, n bigint NOT NULL)")
    schedule(TOPICS["noop"], key="first", delay=600, body={"n": 0})
    clear()


def _new_run(count: int) -> list[str]:
    global run
    run += 1
    return [f"bench:{run}:{n}" for n in range(count)]


# The protocol's `schedule` command; the name `schedule` is the product's function.
def schedule_jobs(how: str, count: int, delay: float) -> dict[str, Any]:
    global scheduled
    scheduled = _new_run(count)
    topic = TOPICS["noop"]
    items = [{"topic": topic, "key": key, "delay": delay, "body": {"n": n}} for n, key in enumerate(scheduled)]
    with timed() as answer:
        if how == "one":
            for item in items:
                schedule(**item)
        elif how == "ten":
            for chunk in chunks(items, TEN):
                with transaction.atomic():
                    for item in chunk:
                        schedule(**item)
        else:
            schedule_many(items)
    return answer


def fill(due: list[float], kind: str = "noop") -> dict[str, Any]:
    keys = _new_run(len(due))
    if kind.startswith("update"):
        _make_rows(len(due))

    def items() -> Iterator[dict[str, Any]]:
        for n, (key, at) in enumerate(zip(keys, due, strict=True)):
            due_ms = -(-at * 1000 // 1)  # rounded up to milliseconds
            body = {"n": n, "due": int(due_ms) * 1000}
            yield {
                "topic": TOPICS[kind],
                "key": key,
                "due_at": datetime.fromtimestamp(due_ms / 1000, UTC),
                "body": body,
            }

    jobs = list(items())
    with timed() as answer:
        for chunk in chunks(jobs, BULK):
            schedule_many(chunk)
    return answer


def _make_rows(count: int) -> None:
    if not SQLITE:
        rows.make(count)
        return
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("DELETE FROM bench_row")
        cursor.executemany("INSERT INTO bench_row (id, n) VALUES (%s, 0)", [(n,) for n in range(count)])


def cancel_jobs(how: str, count: int) -> dict[str, Any]:
    keys = scheduled[:count]
    ids = list(Job.objects.filter(topic=TOPICS["noop"], key__in=keys).order_by("id").values_list("id", flat=True))
    with timed() as answer:
        if how == "one":
            cancelled = sum(cancel(TOPICS["noop"], key=key) == "cancelled" for key in keys)
        else:
            change = changes.start(BulkChange.Operation.CANCEL, ids, by="benchmark")
            while changes.work(change.pk, using="default"):
                pass
            change.refresh_from_db()
            cancelled = change.outcomes.get("cancelled", 0)
    return answer | {"cancelled": cancelled}


def left() -> dict[str, Any]:
    return {"left": Job.objects.filter(ended_at=None).count()}


def clear() -> None:
    """Reset to the state after the migrations: empty tables and an empty Redis."""
    tables = [model._meta.db_table for model in (Job, JobEvent, BulkChange)]
    with connection.cursor() as cursor:
        if SQLITE:
            for table in tables:
                cursor.execute(f"DELETE FROM {table}")
        else:
            cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")
    MirrorMark.objects.all().delete()
    with redis.Redis.from_url(REDIS_URL) as client:
        client.flushall()


if __name__ == "__main__":
    commands: dict[str, Command] = {"describe": describe, "setup": setup, "left": left, "clear": clear}
    serve(commands | {"schedule": schedule_jobs, "fill": fill, "cancel": cancel_jobs})
