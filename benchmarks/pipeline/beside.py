"""Run the same report and audit with PostgreSQL, with DuckDB and with bare Spark, with the same SQL.

    python -m benchmarks.pipeline.beside postgres|duckdb|spark QUESTION DATABASE OUT.parquet [NOW_MS]

DATABASE is a libpq connection string, NOW_MS the time of the audit. The audit is one statement, the report two: the
hours with outcomes, lateness and run times, and what falls due; the first result is written. Percentiles are exact.
PostgreSQL sorts in memory, with a process per core. DuckDB reads PostgreSQL with its extension, with a thread per core.
Bare Spark runs the statements in a session with the pipeline's options and its reader, which joins jobs and events in
PostgreSQL: what a question costs without the lake, histograms, checks, statistics and pages.
"""

import importlib.util
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from delaytasks.states import State

from .rows import TOPIC

HOUR_MS = 3_600_000
COUNTS = {
    "finished": "'finished'", "retried": "'failed', 'expired'", "died": "'dead'", "cancelled": "'cancelled'",
    "snoozed": "'snoozed'",
}  # fmt: skip
SHARES = {"late_p50_ms": "0.5", "late_p95_ms": "0.95", "late_p99_ms": "0.99"}

EVENTS = "SELECT e.*, j.topic FROM delaytasks_jobevent AS e JOIN delaytasks_job AS j ON j.id = e.job_id"

REPORT = f"""
    WITH events AS ({EVENTS})
    SELECT topic, hour_ms, count(*) AS happened,
        {", ".join(f"count(*) FILTER (WHERE outcome IN ({of})) AS {name}" for name, of in COUNTS.items())},
        count(late) AS begun,
        {", ".join(f"percentile_disc({at}) WITHIN GROUP (ORDER BY late) AS {name}" for name, at in SHARES.items())},
        max(late) AS late_worst_ms, count(ran) AS attempts, CAST(coalesce(sum(ran), 0) AS bigint) AS run_total_ms
    FROM (
        SELECT topic, done_ms - done_ms % {HOUR_MS} AS hour_ms, outcome,
            CASE WHEN reserved_ms IS NOT NULL THEN greatest(done_ms - reserved_ms, 0) END AS ran,
            CASE WHEN attempt = 1 AND reserved_ms IS NOT NULL THEN greatest(reserved_ms - due_ms, 0) END AS late
        FROM events
    ) AS told
    GROUP BY topic, hour_ms"""

# What falls due in each minute, and what is overdue.
DUE = f"""
    SELECT topic, date_trunc('minute', greatest(due_at, now())) AS minute_at,
        count(*) FILTER (WHERE due_at > now()) AS due, count(*) FILTER (WHERE due_at <= now()) AS overdue
    FROM delaytasks_job
    WHERE ended_at IS NULL AND state = {int(State.DELAYED)} AND due_at < now() + INTERVAL '36 hours'
    GROUP BY 1, 2"""

MS = "CAST(extract(epoch FROM {}) * 1000 AS bigint)".format

# The classes of delaytasks.pipeline.transforms.promises that occur in the data of rows.py.
AUDIT = f"""
    WITH events AS ({EVENTS}), attempted AS (
        SELECT job_id, count(*) FILTER (WHERE outcome = 'finished') AS finishes,
            count(*) FILTER (WHERE reserved_ms < due_ms) AS early,
            count(*) FILTER (WHERE outcome = 'rescheduled') AS moves, min(reserved_ms) AS first_ms,
            max(CASE attempt WHEN 1 THEN reserved_ms - due_ms END) AS late_ms
        FROM events WHERE topic = '{TOPIC}' GROUP BY job_id
    ), jobs AS (
        SELECT key, count(*) AS jobs, count(*) FILTER (WHERE ended_at IS NULL) AS live,
            min(CASE WHEN ended_at IS NULL THEN {MS("due_at")} END) AS overdue_ms,
            sum(greatest(coalesce(finishes, 0), CASE state WHEN 4 THEN 1 ELSE 0 END)) AS finishes,
            sum(early) AS early, coalesce(sum(moves), 0) AS moves, min(first_ms) AS first_ms, max(late_ms) AS late_ms,
            max(CASE state WHEN 5 THEN {MS("ended_at")} END) AS cancelled_ms,
            max(CASE state WHEN 6 THEN {MS("ended_at")} END) AS died_ms
        FROM delaytasks_job AS j LEFT JOIN attempted AS a ON a.job_id = j.id WHERE topic = '{TOPIC}' GROUP BY key
    ), orders AS (
        SELECT 'order:' || id AS key, payment = 'later' AS promised, status = 'open' AS holds,
            {MS("placed_at")} + 1800000 AS promised_ms
        FROM bench_order
    ), keys AS (
        SELECT jobs.*, promised, holds, orders.key AS order_key, finishes = 0 AND live = 0 AS over,
            CASE WHEN promised AND jobs = 1 AND moves = 0 THEN promised_ms END AS agreed_ms
        FROM orders FULL JOIN jobs ON jobs.key = orders.key
    )
    SELECT class, count(*) AS keys FROM (
        SELECT CASE WHEN jobs IS NULL AND promised THEN 'missing' WHEN jobs IS NULL THEN NULL
            WHEN order_key IS NULL THEN 'orphan'
            WHEN finishes > 1 OR live > 1 OR finishes > 0 AND live > 0 THEN 'twice'
            WHEN over AND cancelled_ms > coalesce(died_ms, 0) AND holds THEN 'called_off'
            WHEN over AND died_ms IS NOT NULL AND NOT coalesce(cancelled_ms > died_ms, false) THEN 'died'
            WHEN early > 0 OR first_ms < agreed_ms - 1000 THEN 'early'
            WHEN late_ms > 60000 OR overdue_ms < {{now_ms}} - 60000 OR first_ms > agreed_ms + 60000
                OR live > 0 AND first_ms IS NULL AND agreed_ms < {{now_ms}} - 60000 THEN 'late'
            WHEN live > 0 THEN 'open' ELSE 'kept' END AS class
        FROM keys
    ) AS classed WHERE class IS NOT NULL GROUP BY class"""

QUESTIONS = {"report": (REPORT, DUE), "audit": (AUDIT,)}
# What bare Spark reads: it does not push column pruning down to the reader.
EVENT_COLUMNS = ["job_id", "topic", "outcome", "attempt", "due_ms", "reserved_ms", "done_ms"]
JOB_COLUMNS = ["id", "topic", "key", "state", "due_at", "ended_at"]
ORDER_COLUMNS = {"id": "long", "payment": "string", "status": "string", "placed_at": "timestamp"}

Rows = list[dict[str, Any]]


def of_postgres(database: str, statements: Sequence[str]) -> list[Rows]:
    import psycopg
    from psycopg.rows import dict_row

    with psycopg.connect(database, row_factory=dict_row) as connection:
        connection.execute("SET work_mem = '256MB'")
        return [connection.execute(sql).fetchall() for sql in statements]


def of_duckdb(database: str, statements: Sequence[str]) -> list[Rows]:
    import duckdb

    with duckdb.connect() as connection:
        connection.execute(f"LOAD '{extension()}'")
        connection.execute(f"ATTACH '{database}' AS pg (TYPE postgres, READ_ONLY)")
        connection.execute("USE pg")
        return [connection.execute(sql).to_arrow_table().to_pylist() for sql in statements]


def of_spark(database: str, statements: Sequence[str]) -> list[Rows]:
    from psycopg.conninfo import conninfo_to_dict
    from pyspark.sql.types import StructType

    from delaytasks.pipeline.sources import arrow
    from delaytasks.pipeline.sources.database import Database
    from delaytasks.pipeline.sources.snapshot import Snapshot
    from delaytasks.pipeline.spark import session

    address = {name.replace("dbname", "name"): str(value) for name, value in conninfo_to_dict(database).items()}
    unnamed = Snapshot(Database("postgresql", **address), 0, 0, 0)
    orders = StructType()
    for name, kind in ORDER_COLUMNS.items():
        orders.add(name, kind)
    with session.session("bare Spark") as spark:
        arrow.read(spark, unnamed, "job_events", EVENT_COLUMNS).createTempView("joined")
        arrow.read(spark, unnamed, "jobs", JOB_COLUMNS).createTempView("delaytasks_job")
        arrow.read_table(spark, unnamed, "bench_order", orders).createTempView("bench_order")
        return [spark.sql(to_spark(sql)).toArrow().to_pylist() for sql in statements]


def to_spark(sql: str) -> str:
    """Return the statement in Spark's SQL, with events that PostgreSQL has joined with their jobs."""
    return re.sub(r"CAST\(extract\(epoch FROM (\w+)\) \* 1000 AS bigint\)", r"unix_millis(\1)",
                  sql.replace(EVENTS, "SELECT * FROM joined"))  # fmt: skip


def extension() -> Path:
    """Return the path of DuckDB's postgres extension in its package; nothing is downloaded."""
    spec = importlib.util.find_spec("duckdb_extension_postgres_scanner")
    if spec is None:
        raise SystemExit("duckdb-extension-postgres-scanner is missing: pip install -r requirements-bench.txt")
    folder = next(iter(spec.submodule_search_locations or ()))
    return next(Path(folder).glob("extensions/*/*.duckdb_extension"))


ENGINES: dict[str, Callable[[str, Sequence[str]], list[Rows]]] = {
    "postgres": of_postgres,
    "duckdb": of_duckdb,
    "spark": of_spark,
}


def main(engine: str, question: str, database: str, out: str, now_ms: str = "") -> None:
    statements = [sql.replace("{now_ms}", now_ms) for sql in QUESTIONS[question]]
    rows, *_ = ENGINES[engine](database, statements)
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
