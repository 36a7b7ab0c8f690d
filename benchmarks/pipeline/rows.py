"""Insert a month of jobs, events and orders into PostgreSQL, or another number of days.

There are 50 topics; the first has half of all jobs. Jobs are due from BACK_DAYS ago to AHEAD_DAYS ahead, so that half
of them ended more than OLD_DAYS ago. They are finished, cancelled or dead after one to three attempts. Each attempt or
change has an event, about 1.5 per job, in chronological order. First attempts began some milliseconds late, one in 100
some seconds and one in 2,000 some minutes.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ..indexes import without_indexes

TOPIC = "order.close"
BACK_DAYS, AHEAD_DAYS = 33, 3
OLD_DAYS = 15  # half of the jobs ended longer ago
RETRY_MS = 60_000
ORPHANS, MISSING, CALLED_OFF, TWICE_EACH, EARLY = 10_007, 1_000, 5_003, 20_011, 30_011  # one in this many jobs

JOBS = f"""
    INSERT INTO delaytasks_job (id, topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at,
                                ended_at, died_at, worker, error)
    SELECT n,
        CASE WHEN t < 0.5 THEN '{TOPIC}' ELSE 'topic.' || lpad((1 + floor(49 * power(2 * t - 1, 3)))::text, 2, '0') END,
        'order:' || n, state, due_at, 60000, attempt, CASE state WHEN 6 THEN 3 ELSE greatest(attempt - 1, 0) END,
        jsonb_build_object('order', n, 'customer', 'c' || n %% 99991),
        date_trunc('milliseconds', first_due) - interval '30 min',
        CASE WHEN attempt > 0 THEN due_at + late END,
        CASE WHEN state = 5 THEN due_at - r * interval '30 min'
             WHEN state > 3 THEN due_at + late + interval '100 ms' END,
        CASE WHEN state = 6 THEN due_at + late + interval '100 ms' END,
        CASE WHEN attempt > 0 THEN 'worker-' || n %% 16 ELSE '' END,
        CASE WHEN state = 6 THEN 'BankError: no answer for order ' || n ELSE '' END
    FROM (
        SELECT n, t, r, state, first_due, attempt, late,
            date_trunc('milliseconds', first_due) + interval '1 ms' * {RETRY_MS} * greatest(attempt - 1, 0) AS due_at
        FROM (
            SELECT n, t, r, first_due, state,
                CASE state WHEN 6 THEN 3 WHEN 4 THEN CASE WHEN a < 0.6 THEN 1 WHEN a < 0.88 THEN 2 ELSE 3 END ELSE 0 END
                    AS attempt,
                interval '1 ms' * floor(
                    -ln(1 - l) * CASE WHEN u < 0.0005 THEN 120000 WHEN u < 0.01 THEN 2000 ELSE 7 END) AS late
            FROM (SELECT *, CASE WHEN first_due > now() - interval '5 min' THEN 1 WHEN s < 0.35 THEN 5
                WHEN s < 0.355 THEN 6 ELSE 4 END AS state FROM (
                SELECT n, random() AS t, random() AS s, random() AS a, random() AS r, random() AS l, random() AS u,
                    now() + interval '1 day'
                        * ((n + random() * %(jitter)s) / %(rows)s * (%(back)s + {AHEAD_DAYS}) - %(back)s) AS first_due
                FROM generate_series(1, %(rows)s) AS n
            ) AS dice) AS thrown
        ) AS states
    ) AS jobs"""

COMING, BAD = 10 / 3, 50  # to be loaded is a row for so many jobs; one in so many of them has no key
FILE_ROWS = 250_000

# Every attempt but the last one failed and was retried a minute later.
EVENTS = f"""
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, next_due_ms, worker, actor,
                                     error, reason)
    SELECT job_id, outcome, attempt, due_ms, reserved_ms, done_ms, next_due_ms, worker, actor, '', ''
    FROM (
        SELECT id AS job_id, 'scheduled' AS outcome, 0 AS attempt, ms(due_at) AS due_ms, NULL::bigint AS reserved_ms,
            ms(created_at) AS done_ms, NULL::bigint AS next_due_ms, '' AS worker, 'anna' AS actor
        FROM delaytasks_job WHERE id %% 100 < 27
        UNION ALL
        SELECT id, 'cancelled', 0, ms(due_at), NULL, ms(ended_at), NULL, '', '' FROM delaytasks_job WHERE state = 5
        UNION ALL
        SELECT id, CASE WHEN k < attempt THEN 'failed' WHEN state = 6 THEN 'dead' ELSE 'finished' END, k,
            ms(due_at) - (attempt - k) * {RETRY_MS},
            ms(reserved_at) - (attempt - k) * {RETRY_MS} - CASE WHEN id %% {EARLY} = 5 THEN 20000 ELSE 0 END,
            ms(ended_at) - (attempt - k) * {RETRY_MS},
            CASE WHEN k < attempt THEN ms(due_at) - (attempt - k - 1) * {RETRY_MS} END, worker, ''
        FROM delaytasks_job, generate_series(1, attempt) AS k WHERE state IN (4, 6)
    ) AS events ORDER BY done_ms"""

# An order for each job; order.close closes those with payment "later". As planted faults, some jobs have no order, some
# orders have no job, and some jobs were cancelled although the order is unpaid.
ORDERS = f"""
    INSERT INTO bench_order (id, payment, status, placed_at)
    SELECT id, CASE topic WHEN '{TOPIC}' THEN 'later' ELSE 'now' END,
        CASE WHEN state = 5 AND id %% {CALLED_OFF} <> 3 THEN 'paid' WHEN state = 4 THEN 'closed' ELSE 'open' END,
        created_at
    FROM delaytasks_job WHERE id %% {ORPHANS} <> 7
    UNION ALL
    SELECT %(rows)s + n, 'later', 'open', now() - n * interval '1 ms' - interval '2 days'
    FROM generate_series(1, %(rows)s / {MISSING}) AS n"""

# A second job with the same key, which also ran.
TWICE = f"""
    INSERT INTO delaytasks_job (id, topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at,
                                ended_at, worker, error)
    SELECT id + %(rows)s, topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at, ended_at,
        worker, error
    FROM delaytasks_job WHERE id %% {TWICE_EACH} = 11 AND state = 4 AND topic = '{TOPIC}'"""

ORDER_TABLE = """
    CREATE TABLE bench_order (
        id bigint PRIMARY KEY, payment varchar(10) NOT NULL, status varchar(10) NOT NULL, placed_at timestamptz NOT NULL
    )"""

MS = """
    CREATE FUNCTION ms(timestamptz) RETURNS bigint LANGUAGE sql IMMUTABLE
    AS 'SELECT CAST(extract(epoch FROM $1) * 1000 AS bigint)'"""


def fill(connection: Any, rows: int, back_days: int = BACK_DAYS) -> None:
    """Insert this many jobs into a newly migrated database. Takes less than a minute per million.

    back_days   how long ago the first job was due
    """
    with connection.transaction(), connection.cursor() as cursor:
        # With wal_level minimal, rows inserted after a TRUNCATE in the same transaction need no WAL.
        cursor.execute("TRUNCATE delaytasks_job, delaytasks_jobevent RESTART IDENTITY")
        indexes = without_indexes(cursor)
        cursor.execute("SET LOCAL work_mem = '256MB'")
        cursor.execute("SET LOCAL max_parallel_maintenance_workers = 2")
        cursor.execute("SELECT setseed(0.42)")
        cursor.execute(MS)
        cursor.execute(JOBS % {"rows": rows, "jitter": rows // 500, "back": back_days})
        cursor.execute(ORDER_TABLE)
        cursor.execute(ORDERS % {"rows": rows})
        cursor.execute(TWICE % {"rows": rows})
        cursor.execute("SELECT setval(pg_get_serial_sequence('delaytasks_job', 'id'), max(id)) FROM delaytasks_job")
        cursor.execute(EVENTS.replace("%%", "%"))
        for definition in indexes:
            cursor.execute(definition)
    connection.execute("VACUUM (ANALYZE, FREEZE)")
    connection.execute("CHECKPOINT")


def export(folder: Path, jobs: int) -> int:
    """Write CSV files with open orders of another system; return the number of rows."""
    folder.mkdir()
    rows, due_at = round(jobs / COMING), datetime.now(UTC) + timedelta(days=30)
    for first in range(0, rows, FILE_ROWS):
        with open(folder / f"orders-{first // FILE_ROWS:03}.csv", "w") as file:
            file.write("order,customer,closes_at\n")
            for n in range(first, min(first + FILE_ROWS, rows)):
                name = "" if n % BAD == 0 else f"moved:{n}"
                file.write(f"{name},c{n % 99_991},{due_at + timedelta(seconds=n % 86_400):%Y-%m-%dT%H:%M:%SZ}\n")
    return rows
