"""System checks of a PostgreSQL database's driver, pooler and isolation level."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.checks import CheckMessage, Error, Info, Warning
from django.db import connections

from .dialects import allows_prepared

PSYCOPG_FOR_POOLERS, LIBPQ_FOR_POOLERS = (3, 2), 170_000  # from these on, prepared statements work behind PgBouncer


def driver_messages(using: str) -> Iterator[CheckMessage]:
    """Yield E013 if Django uses psycopg2. Does not connect."""
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    if not is_psycopg3:
        yield Error(
            f"The database {using!r} is used with psycopg2, which the engine does not support.",
            hint='Install psycopg 3: pip install "psycopg[binary]>=3.1". Django then uses it instead of psycopg2.',
            id="delaytasks.E013",
        )


def timeout_messages(using: str, settings: Mapping[str, Any]) -> Iterator[CheckMessage]:
    """Yield W018 if a new connection to another host may wait for minutes. Does not connect.

    settings   of the database. With a `service` nothing is reported, because libpq's service file may have the timeout
    """
    options = settings.get("OPTIONS") or {}
    hosts = str(settings.get("HOST") or "").split(",")
    limit = options.get("connect_timeout", os.environ.get("PGCONNECT_TIMEOUT", 0))
    is_local = all(not host or host.startswith("/") for host in hosts)
    if is_local or "service" in options or str(limit) not in ("", "0"):
        return
    yield Warning(
        f"The database {using!r} has no connect_timeout.",
        hint='Set OPTIONS["connect_timeout"] = 2 in its settings, in seconds and for each host. Without it, a process '
        "waits two minutes for a host that drops its packets, and workers cannot go on with other databases.",
        id="delaytasks.W018",
    )


def connection_messages(using: str) -> Iterator[CheckMessage]:
    """Yield W015 and W016. Connects to the database. Raises DatabaseError."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid(), current_setting('transaction_isolation')")
        pid, isolation = cursor.fetchone()
    # A pooler gives its clients a process id of its own, for the cancellation of queries.
    if pid != connections[using].connection.info.backend_pid:
        yield from pooler_messages(using)
    if isolation != "read committed":
        yield Info(
            f"Transactions of the database {using!r} are {isolation.upper()}.",
            hint="The engine repeats its own statements after a serialization failure. Inside your transactions it "
            "cannot: repeat those yourself. READ COMMITTED, PostgreSQL's default, is enough for the engine.",
            id="delaytasks.W016",
        )


def pooler_messages(using: str) -> Iterator[CheckMessage]:
    """Yield W015 for each setting that does not work behind a pooler in transaction mode."""
    settings = connections[using].settings_dict
    if allows_prepared(settings) and not _can_prepare_behind_pooler():
        yield Warning(
            f"The database {using!r} is behind a connection pooler, and prepare_threshold allows prepared statements.",
            hint='Remove "prepare_threshold" from its OPTIONS, unless the pooler keeps a session for each client. '
            "PgBouncer supports prepared statements from 1.22 on, with max_prepared_statements, together with psycopg "
            "3.2 and libpq 17.",
            id="delaytasks.W015",
        )
    if not settings.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield Warning(
            f"The database {using!r} is behind a connection pooler, and server-side cursors are enabled.",
            hint="Set DISABLE_SERVER_SIDE_CURSORS = True in its settings, unless the pooler keeps a session for each "
            "client. Otherwise Django's QuerySet.iterator() fails there.",
            id="delaytasks.W015",
        )


def _can_prepare_behind_pooler() -> bool:
    import psycopg

    version = tuple(int(part) for part in psycopg.__version__.split(".")[:2])
    return version >= PSYCOPG_FOR_POOLERS and psycopg.pq.version() >= LIBPQ_FOR_POOLERS
