"""Run the checks of DelaytasksBackend on Django 5.2, where only the app django_tasks would, which it does not need."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import django
from django.apps import apps
from django.core.checks import CheckMessage, register


@register
def check_backends(**_kwargs: Any) -> Iterator[CheckMessage]:
    """E030, E031: see DelaytasksBackend.check()."""
    if django.VERSION >= (6, 0) or apps.is_installed("django_tasks") or find_spec("django_tasks") is None:
        return
    from .backend import configured_backends  # imported late: it needs django-tasks

    for backend in configured_backends():
        yield from backend.check()
