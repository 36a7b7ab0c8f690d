"""What PostgreSQL says besides errors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection


@contextmanager
def collected_notices() -> Iterator[list[str]]:
    """Collect the texts of the warnings and notices that the server sends inside the block."""
    texts: list[str] = []

    def collect(notice: Any) -> None:  # valid only during this call
        texts.append(notice.message_primary)

    connection.ensure_connection()
    raw = connection.connection
    raw.add_notice_handler(collect)
    try:
        yield texts
    finally:
        raw.remove_notice_handler(collect)
