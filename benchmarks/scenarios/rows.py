"""Insert many rows with SQL. PostgreSQL only; needs Django to be set up, see inside.py."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

from delaytasks.states import State

REBUILT_FROM = 50_000  # from this number of rows on, rebuilding the indexes is faster
WEEK_SECONDS = 7 * 86_400
LATER_SECONDS = 600  # minimum delay of jobs that are not due
COLUMNS = "(topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker, error)"


def pending(count: int, topic: str, first_seconds: float, last_seconds: float) -> None:
    """Insert `count` delayed jobs of a topic, due at random between two offsets from now."""
    due = "clock_timestamp() + (%s + random() * %s) * interval '1 second'"
    _insert(count, "%s", due, [topic], [first_seconds, last_seconds - first_seconds])


def backlog(count: int, due: int, *, together: str, scattered: str, later: str) -> None:
    """Insert `count` delayed jobs: `due` adjacent due rows, as many due rows scattered over one half, and others.

    The others are due at random within a week. Adjacent rows are the result of a fixed delay: jobs scheduled together
    are due together. Scattered rows are the result of random delays.
    """
    half = count // 2
    stride = max(1, half // due)
    near = f"(n >= {half} AND n < {half + due})"
    far = f"(n < {stride * due} AND n %% {stride} = 0)"
    kind = f"CASE WHEN {near} THEN %s WHEN {far} THEN %s ELSE %s END"
    seconds = f"CASE WHEN {near} OR {far} THEN -random() ELSE %s + random() * %s END"
    moment = f"clock_timestamp() + {seconds} * interval '1 second'"
    _insert(count, kind, moment, [together, scattered, later], [LATER_SECONDS, WEEK_SECONDS])


def _insert(count: int, topic: str, due: str, of_topic: list[str], of_due: list[float]) -> None:
    sql = f"""
        INSERT INTO delaytasks_job {COLUMNS}
        SELECT {topic}, 'order:' || n, {int(State.DELAYED)}, date_trunc('milliseconds', {due}), 60000, 0, 0,
            jsonb_build_object('n', n), date_trunc('milliseconds', clock_timestamp()), '', ''
        FROM generate_series(0, {count - 1}) AS n"""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL maintenance_work_mem = '512MB'")
        cursor.execute("SET LOCAL synchronous_commit = off")
        with _indexes_afterwards(count):
            cursor.execute(sql, [*of_topic, *of_due])


@contextmanager
def _indexes_afterwards(count: int) -> Iterator[None]:
    """For many rows, drop all indexes but the primary key and recreate them after the block."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'delaytasks_job'"
            " AND indexname NOT LIKE '%%pkey' AND schemaname = current_schema()",
            [],
        )
        indexes = cursor.fetchall() if count >= REBUILT_FROM else []
        for name, _ in indexes:
            cursor.execute(f'DROP INDEX "{name}"')
        yield
        for _, definition in indexes:
            cursor.execute(definition)
