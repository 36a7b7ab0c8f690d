"""Drop and recreate the indexes of the job tables around a bulk insert."""

from typing import Any


def without_indexes(cursor: Any) -> list[str]:
    """Drop all indexes but the primary keys; return the statements that recreate them."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('delaytasks_job', 'delaytasks_jobevent')"
        " AND indexname NOT LIKE '%pkey'"
    )
    indexes = cursor.fetchall()
    for name, _definition in indexes:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _name, definition in indexes]
