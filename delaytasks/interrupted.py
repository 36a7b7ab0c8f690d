"""Database connections of a handler that was interrupted: what they run must not live on in the server."""

import logging

from django.db import connections

logger = logging.getLogger("delaytasks")
CANCEL_SECONDS = 2


def cancel_queries() -> None:
    """Cancel what this thread's connections are running, so that rollbacks on the way up find them idle or closed.

    Called inside the signal's handler, before the interrupt is raised. Never raises.
    """
    for connection in connections.all(initialized_only=True):
        raw = connection.connection
        if raw is None or connection.vendor != "postgresql" or raw.info.transaction_status.name != "ACTIVE":
            continue
        try:
            raw.cancel_safe(timeout=CANCEL_SECONDS)
        except Exception as error:
            logger.warning("an interrupted query could not be cancelled: %s", error)


def drop_connections() -> None:
    """Close this thread's connections: in what state the interrupt left them nobody knows."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            try:
                if connection.vendor == "sqlite":
                    # A cursor that a traceback refers to keeps a closed connection alive, and with it the write lock.
                    connection.connection.rollback()
                connection.close()
            except Exception as error:
                logger.warning("an interrupted connection could not be closed: %s", error)


def forget_broken() -> None:
    """After everything was unwound: who still believes to be in a transaction of a closed connection, begins anew."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block and connection.closed_in_transaction:
            connection.in_atomic_block, connection.connection = False, None  # the next connect() resets the rest
