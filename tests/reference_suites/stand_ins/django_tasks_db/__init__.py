"""What the suite of django-tasks-db imports from that package: ours, under its names."""

from typing import Any

from delaytasks.django_tasks import compat


def __getattr__(name: str) -> Any:
    if name == "DatabaseBackend":
        from delaytasks.django_tasks import DelaytasksBackend

        return DelaytasksBackend
    raise AttributeError(name)


__all__ = ["compat"]
