"""Indexes of the job tables, which are quicker built when the rows are there."""

from typing import Any


def without_indexes(cursor: Any) -> list[str]:
    """Drop what is quicker built at the end; how to build it."""
    cursor.execute(
        "SELECT indexname, indexdef FROM pg_indexes WHERE tablename IN ('delaytasks_job', 'delaytasks_jobevent')"
        " AND indexname NOT LIKE '%pkey'"
    )
    found = cursor.fetchall()
    for name, _definition in found:
        cursor.execute(f'DROP INDEX "{name}"')
    return [definition for _name, definition in found]
