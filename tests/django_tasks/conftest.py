"""The backend as the default of Django's Tasks, with the engine run step by step."""

from typing import Any

import pytest

from delaytasks import handlers, signals
from delaytasks.django_tasks import DelaytasksBackend, compat

BACKEND = "delaytasks.django_tasks.DelaytasksBackend"


@pytest.fixture
def make_backend(stage: Any, settings: Any) -> Any:
    """Return a function that sets TASKS["default"] and returns its backend."""

    def make(**params: Any) -> DelaytasksBackend:
        settings.TASKS = {"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], **params}}
        return compat.task_backends["default"]

    before = set(handlers.handled())
    yield make
    for topic in set(handlers.handled()) - before:
        handlers.unregister(topic)
    for signal in (signals.job_failed, signals.job_cancelled):
        signal.disconnect(dispatch_uid="delaytasks.django_tasks")


@pytest.fixture
def backend(make_backend: Any) -> DelaytasksBackend:
    return make_backend()


@pytest.fixture
def sent() -> Any:
    """The signals of Django's Tasks that were sent: (name, sender, status)."""
    received: list[Any] = []
    names = ("task_enqueued", "task_started", "task_finished")
    receivers = {}
    for name in names:

        def receive(sender: Any, task_result: Any, name: str = name, **kwargs: Any) -> None:
            received.append((name, sender, str(task_result.status)))

        receivers[name] = receive
        getattr(compat, name).connect(receive)
    yield received
    for name, receive in receivers.items():
        getattr(compat, name).disconnect(receive)
