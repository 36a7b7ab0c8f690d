"""TaskRecord: a task that was enqueued, and its result."""

import uuid
from datetime import datetime
from typing import Any, ClassVar

from django.db import models


class TaskRecord(models.Model):
    """The arguments and the result of an enqueued task. Its state is in its job, whose key is the id of the record.

    The record outlives the job: jobs that have ended may be archived and deleted.
    """

    class Outcome(models.TextChoices):
        NONE = ""
        SUCCESSFUL = ("SUCCESSFUL",)
        FAILED = ("FAILED",)

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    # The job may have been deleted, so the database does not enforce the reference, and queries need an outer join.
    job = models.ForeignKey(
        "delaytasks.Job", models.DO_NOTHING, related_name="+", db_constraint=False, null=True, db_index=False
    )
    task_path = models.CharField(max_length=255)
    args = models.JSONField(default=list)
    kwargs = models.JSONField(default=dict)
    priority = models.SmallIntegerField()  # of the task, -100 to 100
    queue_name = models.CharField(max_length=100)
    backend_name = models.CharField(max_length=100)
    run_after = models.DateTimeField(null=True)
    enqueued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    last_attempted_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=10, choices=Outcome.choices, default="", db_default="")
    return_value = models.JSONField(null=True)
    errors = models.JSONField(default=list)  # [{"exception_class_path": ..., "traceback": ...}]
    worker_ids = models.JSONField(default=list)  # one for each attempt

    class Meta:
        default_permissions = ()  # it has no page in the admin: staff see its job
        indexes: ClassVar[list[Any]] = [models.Index(fields=["finished_at"], name="delaytasks_taskrecord_ended")]

    def __str__(self) -> str:
        return f"{self.task_path} {self.id}"

    def add_attempt(self, attempt: int, worker: str, at: datetime) -> None:
        """Record that this attempt has begun. A second call for the same attempt changes nothing."""
        if len(self.worker_ids) < attempt:
            missed = attempt - 1 - len(self.worker_ids)  # attempts whose transaction was rolled back
            self.worker_ids = [*self.worker_ids, *[""] * missed, worker]
            self.started_at = self.started_at or at
            self.last_attempted_at = at
