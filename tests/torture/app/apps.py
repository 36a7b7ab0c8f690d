import os
import threading
from typing import Any

from django.apps import AppConfig
from django.db.backends.signals import connection_created


class TortureConfig(AppConfig):
    name = "tests.torture.app"
    label = "torture"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        connection_created.connect(_name_it, dispatch_uid="torture")


def _name_it(connection: Any, **_: Any) -> None:
    """Say on the server whose connection it is, for the fault that cuts it: "delaytasks-mover 4711"."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET application_name = %s", [f"{threading.current_thread().name} {os.getpid()}"])
