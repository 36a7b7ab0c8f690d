"""What the sessions of PostgreSQL wait for."""

from django.db import connection


def somebody_waits() -> bool:
    """Return whether a session of this database waits for a lock, also when called inside a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_clear_snapshot()")  # otherwise a transaction sees what its first query has seen
        cursor.execute("SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
        return cursor.fetchone() is not None
