"""Backends in place of Django's own: ours, with what its suites ask of the dummy and of the immediate backend."""

from typing import Any

from delaytasks.django_tasks.backend import DelaytasksBackend
from delaytasks.django_tasks.models import TaskRecord
from delaytasks.django_tasks.results import to_result
from delaytasks.models import Job

from .engine import run_due


class DummyBackend(DelaytasksBackend):
    """Stores tasks and does not run them."""

    @property
    def results(self) -> list[Any]:
        return [to_result(record) for record in TaskRecord.objects.order_by("enqueued_at", "job_id")]

    def clear(self) -> None:
        TaskRecord.objects.all().delete()
        Job.objects.all().delete()


class ImmediateBackend(DelaytasksBackend):
    """Runs each task in a worker's way before enqueue() returns."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        run_due()
        return self.get_result(result.id)
