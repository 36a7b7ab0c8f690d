"""A backend for Django's Tasks: `django.tasks` of Django 6, and the package django-tasks on Django 5.2.

INSTALLED_APPS = [..., "delaytasks", "delaytasks.django_tasks"]
TASKS = {"default": {"BACKEND": "delaytasks.django_tasks.DelaytasksBackend"}}
"""

from typing import TYPE_CHECKING

__all__ = ["DelaytasksBackend"]

if TYPE_CHECKING:
    from .backend import DelaytasksBackend
else:

    def __getattr__(name: str) -> object:
        if name == "DelaytasksBackend":  # imported late: Django imports this package before its apps are loaded
            from .backend import DelaytasksBackend

            return DelaytasksBackend
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
