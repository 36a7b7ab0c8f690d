"""A task of the project, beside the engine's in the same pool."""

import json
from pathlib import Path

from celery import shared_task
from django.conf import settings
from django.db import connection


def backend():
    """The server's process behind this process's connection."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return cursor.fetchone()[0]


@shared_task(name="acceptance.of_the_project", ignore_result=True)
def of_the_project(name):
    """Leaves a file: was there a connection when it began, and which backend it then had."""
    found = connection.connection is not None
    half = Path(settings.VAR) / f"{name}.half"
    half.write_text(json.dumps({"found_one": found, "backend": backend()}))
    half.rename(half.with_suffix(".json"))
