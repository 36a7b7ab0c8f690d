"""The row that an "update" handler changes: the same table, statement and transaction for every contestant.

Synchronous handlers use Django, as delaytasks does. The connection stays open between jobs for all contestants; in a
Django project, Celery would close it after every task.
"""

import os

import dj_database_url
import django
import psycopg
from django.conf import settings

UPDATE = "UPDATE bench_row SET n = n + 1 WHERE id = %s"


def make(count: int) -> None:
    """Fill the table with the ids 0 to count - 1 and vacuum it, as autovacuum would."""
    with psycopg.connect(os.environ["BENCH_POSTGRES"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bench_row (id bigint PRIMARY KEY, n bigint NOT NULL)")
        connection.execute("TRUNCATE bench_row")
        connection.execute("INSERT INTO bench_row SELECT i, 0 FROM generate_series(0, %s) AS i", [count - 1])
        connection.execute("VACUUM (ANALYZE) bench_row")


def touch(row: int) -> None:
    """Add one to a row in a durable transaction. The connection stays open."""
    if not settings.configured:
        settings.configure(DATABASES={"default": dj_database_url.parse(os.environ["BENCH_POSTGRES"])})
        django.setup()
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(UPDATE, [row])
