"""The row that the handler of kind "update" changes: the same table, statement and transaction for every contestant.

A synchronous handler changes it through Django, as ours does and as a Django team would. No contestant pays for a new
connection for each job: nothing closes it here, which Celery would do after every task of a Django project.
"""

import os

import dj_database_url
import django
import psycopg
from django.conf import settings

UPDATE = "UPDATE bench_row SET n = n + 1 WHERE id = %s"


def make(count: int) -> None:
    """A table of `count` rows with the ids 0 to count - 1, vacuumed as it would be in daily use."""
    with psycopg.connect(os.environ["BENCH_POSTGRES"], autocommit=True) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS bench_row (id bigint PRIMARY KEY, n bigint NOT NULL)")
        connection.execute("TRUNCATE bench_row")
        connection.execute("INSERT INTO bench_row SELECT i, 0 FROM generate_series(0, %s) AS i", [count - 1])
        connection.execute("VACUUM (ANALYZE) bench_row")


def touch(row: int) -> None:
    """Add one to a row, in a transaction that is durable on return. The connection stays open with its process."""
    if not settings.configured:
        settings.configure(DATABASES={"default": dj_database_url.parse(os.environ["BENCH_POSTGRES"])})
        django.setup()
    from django.db import connection, transaction

    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(UPDATE, [row])
