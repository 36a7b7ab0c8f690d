"""Insert five million jobs into PostgreSQL for benchmarks.admin_pages.

Topics have from 80 % of all jobs down to none; many are small, and one has only old jobs. Jobs are in every state,
overdue for hours or due from the next minutes to a year ahead, with two spikes. Dead jobs have tracebacks. Each ended
job has an event, 5 % of them in the last hour. One job has 5,000 attempts.
"""

from django.db import connection, transaction

from .indexes import without_indexes

LARGE, MIDDLE, SMALL, WHOLE = "load.large", "load.middle", "load.small", "load.whole"
FEW, OLD, EMPTY, OTHERS = "load.few", "load.old", "load.empty", 30
PATIENT = "patient"  # key of the job with 5,000 attempts

_JOBS = f"""
    INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, reserved_at,
                                lease_until, ended_at, died_at, worker, error)
    SELECT
        CASE WHEN n <= %(rows)s / 125 THEN '{OLD}'
             WHEN t < 0.8 THEN '{LARGE}' WHEN t < 0.94 THEN '{MIDDLE}' WHEN t < 0.98 THEN '{SMALL}'
             WHEN t < 0.998 THEN '{WHOLE}' WHEN t < 0.9985 THEN '{FEW}'
             ELSE 'load.shop.' || lpad((n %% {OTHERS})::text, 2, '0') END,
        'order:' || n, state, date_trunc('milliseconds', due), 60000, attempt,
        CASE WHEN state IN (1, 6) THEN attempt ELSE 0 END,
        jsonb_build_object('order', n, 'customer', 'c' || n %% 99991, 'token', md5(n::text)), due - interval '1 hour',
        CASE WHEN attempt > 0 AND state <> 1 THEN due + interval '20 ms' END,
        CASE WHEN state = 3 THEN now() + interval '1 day' END,
        CASE WHEN state IN (4, 5, 6) THEN ended END, CASE WHEN state = 6 THEN ended END,
        CASE WHEN attempt > 0 THEN 'worker-' || n %% 16 ELSE '' END,
        CASE WHEN state = 6 OR state = 1 AND attempt > 0 THEN
            'Traceback (most recent call last):' || repeat(E'\\n  File "shop/bank.py", line 42, in ask_the_bank', 20)
            || E'\\nBankError: no answer for order ' || n ELSE '' END
    FROM (
        SELECT n, t, ended, state,
            CASE WHEN state IN (4, 5, 6) THEN ended - interval '100 ms'
                 WHEN state = 3 THEN now() - r * interval '10 min'
                 WHEN s < 0.93 THEN now() + interval '1 hour' + r * interval '365 days'
                 WHEN s < 0.974 THEN now() + r * interval '1 day'
                 WHEN s < 0.982 THEN date_trunc('minute', now()) + interval '50 min'
                 WHEN s < 0.99 THEN date_trunc('hour', now()) + interval '20 h'
                 ELSE now() - r * interval '6 hours' END AS due,
            CASE WHEN state IN (3, 4) THEN 1 WHEN state = 6 THEN 5 WHEN state = 1 AND r < 0.02 THEN 2 ELSE 0 END
                AS attempt
        FROM (
            SELECT n, t, s, r,
                CASE WHEN s < 0.65 THEN 4 WHEN s < 0.71 THEN 5 WHEN s < 0.72 THEN 6 WHEN s >= 0.9995 THEN 3
                     ELSE 1 END AS state,
                now() - interval '1 ms' * CASE WHEN %(rows)s - n < %(rows)s / 20
                    THEN (%(rows)s - n) * 3600000.0 / (%(rows)s / 20)
                    ELSE 3600000.0 + (%(rows)s - n) * 1000.0 END AS ended
            FROM (SELECT n, random() AS t, random() AS s, random() AS r FROM generate_series(1, %(rows)s) AS n) AS dice
        ) AS states
    ) AS jobs"""

_EVENTS = """
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, worker, actor, error,
                                     reason)
    SELECT id, CASE state WHEN 4 THEN 'finished' WHEN 5 THEN 'cancelled' ELSE 'dead' END, attempt,
        extract(epoch FROM due_at) * 1000, extract(epoch FROM reserved_at) * 1000, extract(epoch FROM ended_at) * 1000,
        worker, CASE state WHEN 5 THEN 'anna' ELSE '' END, error, ''
    FROM delaytasks_job WHERE ended_at IS NOT NULL ORDER BY id"""

_PATIENT = """
    WITH made AS (
        INSERT INTO delaytasks_job (topic, key, state, due_at, ttr_ms, attempt, failures, body, created_at, worker,
                                    error)
        VALUES (%s, %s, 1, now() + interval '10 min', 60000, 5000, 0, '{}', now() - interval '40 days', '', '')
        RETURNING id)
    INSERT INTO delaytasks_jobevent (job_id, outcome, attempt, due_ms, reserved_ms, done_ms, next_due_ms, worker, actor,
                                     error, reason)
    SELECT id, 'snoozed', n, ms, ms + 9, ms + 200, ms + 600000, 'worker-1', '', '', '' FROM (
        SELECT id, n, (extract(epoch FROM now())::bigint - (8640 + 5001 - n) * 600) * 1000 AS ms
        FROM made, generate_series(1, 5000) AS n) AS asked"""


def fill(rows: int) -> None:
    """Insert this many jobs into empty tables. Takes about a minute per million."""
    with connection.cursor() as cursor:
        with transaction.atomic():
            indexes = without_indexes(cursor)
            cursor.execute("SELECT setseed(0.42)")
            cursor.execute(_PATIENT, [MIDDLE, PATIENT])
            cursor.execute(_JOBS, {"rows": rows})
            cursor.execute(_EVENTS)
            for definition in indexes:
                cursor.execute(definition)
        cursor.execute("VACUUM (ANALYZE, FREEZE)")
