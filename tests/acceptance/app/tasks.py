"""A task of the project, run in the same pool as the engine's tasks."""

import json
from pathlib import Path

from celery import shared_task
from django.conf import settings
from django.db import connection


def backend():
    """Return the pid of the server process of this connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@shared_task(name="acceptance.project_task", ignore_result=True)
def project_task(name):
    """Write a file: whether there was a connection at the beginning, and the backend's pid."""
    was_connected = connection.connection is not None
    half = Path(settings.VAR) / f"{name}.half"
    half.write_text(json.dumps({"was_connected": was_connected, "backend": backend()}))
    half.rename(half.with_suffix(".json"))
