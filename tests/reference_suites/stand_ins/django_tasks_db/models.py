"""DBTaskResult: our records with the questions that the suite asks of that model."""

from datetime import datetime
from typing import Any

from django.db import models
from django.utils import timezone

from delaytasks import schedule
from delaytasks.django_tasks.compat import task_backends
from delaytasks.django_tasks.models import TaskRecord
from delaytasks.django_tasks.results import find_task
from delaytasks.models import Job
from delaytasks.states import State

STATES = {"RUNNING": State.RESERVED, "SUCCESSFUL": State.FINISHED, "FAILED": State.DEAD}


class Records(models.QuerySet[Any]):
    def ready(self) -> "Records":
        return self.filter(job__state=State.DELAYED, job__due_at__lte=timezone.now())

    def running(self) -> "Records":
        return self.filter(job__state=State.RESERVED)

    def successful(self) -> "Records":
        return self.filter(job__state=State.FINISHED)

    def failed(self) -> "Records":
        return self.filter(job__state=State.DEAD)

    def finished(self) -> "Records":
        return self.successful() | self.failed()

    def create(self, *, args_kwargs: Any, **fields: Any) -> Any:
        """Store a task whose path may be wrong, as an enqueued one would be stored."""
        backend: Any = task_backends[fields["backend_name"]]
        record = self.model(queue_name="default", priority=0, enqueued_at=timezone.now(), **args_kwargs, **fields)
        record.job = schedule(backend.topic("default"), str(record.id), delay=0, body={"task": record.task_path})
        record.save(force_insert=True)
        return record

    def update(self, **fields: Any) -> int:
        """Write what a worker would have written: the status is the state of the job."""
        jobs, records = list(self.values_list("job", flat=True)), list(self.values_list("pk", flat=True))
        if "run_after" in fields:
            Job.objects.filter(pk__in=jobs).update(due_at=fields["run_after"])
        if "status" in fields:
            state = STATES[str(fields.pop("status"))]
            ended_at, reserved = fields.get("finished_at"), {} if state != State.RESERVED else _reservation()
            Job.objects.filter(pk__in=jobs).update(state=state, ended_at=ended_at, **reserved)
        if "started_at" in fields:
            fields["last_attempted_at"] = fields["started_at"]
        return TaskRecord.objects.filter(pk__in=records).update(**fields) if fields else len(records)


def _reservation() -> dict[str, Any]:
    now = timezone.now()
    return {"reserved_at": now, "lease_until": now, "attempt": 1}


class DBTaskResult(TaskRecord):
    objects = Records.as_manager()

    class Meta:
        proxy = True
        app_label = "delaytasks_django_tasks"

    @property
    def task(self) -> Any:
        return find_task(self)

    @property
    def status(self) -> str:
        words = {state: word for word, state in STATES.items()}
        return words.get(State(Job.objects.get(pk=self.job_id).state), "READY")

    @property
    def traceback(self) -> str:
        return "".join(error["traceback"] for error in self.errors)


def get_date_max() -> datetime:
    raise NotImplementedError("DelaytasksBackend stores None for a task without run_after.")
