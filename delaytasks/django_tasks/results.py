"""Task results: made from the record of a task and the state of its job."""

import copy
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from django.core.exceptions import SuspiciousOperation
from django.utils.module_loading import import_string

from ..exceptions import TTRExceeded
from ..outcomes import CancelResult, ErrorCode, error_code, error_text
from ..states import State
from .compat import Task, TaskError, TaskResult, TaskResultStatus
from .exceptions import TaskCancelled, WorkerLost

if TYPE_CHECKING:
    from .backend import DelaytasksBackend
    from .models import TaskRecord

STATUSES = {
    State.DELAYED: TaskResultStatus.READY,
    State.RESERVED: TaskResultStatus.RUNNING,
    State.FINISHED: TaskResultStatus.SUCCESSFUL,
    State.DEAD: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DelaytasksResult(TaskResult):
    """The result of a task, with methods to cancel and to reschedule the task."""

    def cancel(self, *, by: str = "", reason: str = "") -> CancelResult:
        """Cancel the task unless it is running. Return "cancelled", "running", "already finished" or "unknown"."""
        return _backend_of(self).cancel(self.id, by=by, reason=reason)

    async def acancel(self, *, by: str = "", reason: str = "") -> CancelResult:
        return await _backend_of(self).acancel(self.id, by=by, reason=reason)

    def reschedule(self, run_after: datetime, *, by: str = "", reason: str = "") -> None:
        """Move the task to another time. Raises NotLive, Reserved, NaiveDatetime, BadDelay."""
        _backend_of(self).reschedule(self.id, run_after, by=by, reason=reason)

    async def areschedule(self, run_after: datetime, *, by: str = "", reason: str = "") -> None:
        await _backend_of(self).areschedule(self.id, run_after, by=by, reason=reason)


def _backend_of(result: DelaytasksResult) -> "DelaytasksBackend":
    backend: Any = result.task.get_backend()
    return backend


def find_task(record: "TaskRecord") -> "Task[Any, Any]":
    """Return the task of a record. Raises ImportError, or SuspiciousOperation if the path does not name a task."""
    task = import_string(record.task_path)
    if not (hasattr(task, "func") and hasattr(task, "using") and hasattr(task, "takes_context")):
        raise SuspiciousOperation(f"{record.task_path} of task {record.id} is not a task.")
    stored = copy.copy(task)  # task.using() would refuse a queue that QUEUES no longer has
    for name in ("priority", "queue_name", "run_after"):
        object.__setattr__(stored, name, getattr(record, name))
    object.__setattr__(stored, "backend", record.backend_name)
    return stored


def to_result(record: "TaskRecord", task: "Task[Any, Any] | None" = None) -> "DelaytasksResult":
    """Return the result of a task. Its status is that of its job, or the stored outcome if the job has been deleted.

    task   the task, if the caller has it; None: import it by the record's path
    """
    status = _status(record)
    ended = status in (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
    result = DelaytasksResult(
        task=task or find_task(record),
        id=str(record.id),
        status=status,
        enqueued_at=record.enqueued_at,
        started_at=record.started_at,
        last_attempted_at=record.last_attempted_at,
        finished_at=_finished_at(record) if ended else None,
        args=record.args,
        kwargs=record.kwargs,
        backend=record.backend_name,
        errors=[TaskError(**error) for error in record.errors] + _missing_errors(record, status),
        worker_ids=record.worker_ids,
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", record.return_value)
    return result


def _status(record: "TaskRecord") -> TaskResultStatus:
    if record.job is not None:
        return STATUSES[State(record.job.state)]
    # A cancelled job that was deleted has no outcome if its process was killed before it stored one.
    return TaskResultStatus[record.outcome or "FAILED"]


def _finished_at(record: "TaskRecord") -> datetime | None:
    if record.finished_at is None and record.job is not None:
        return record.job.ended_at
    return record.finished_at


def _missing_errors(record: "TaskRecord", status: TaskResultStatus) -> "list[TaskError]":
    """Return the error of a failed task without a stored outcome: its job was cancelled, or ended elsewhere."""
    if status != TaskResultStatus.FAILED or record.outcome:
        return []
    if record.job is not None and record.job.state == State.DEAD:
        return [engine_error(record.job.error)]
    return [cancelled()]


def engine_error(stored: str) -> "TaskError":
    """Return the error of an attempt that the engine ended, from the stored error of its job."""
    lost = error_code(stored) in (ErrorCode.WORKER_LOST, ErrorCode.RUN_FAILED)
    return TaskError(exception_class_path=path_of(WorkerLost if lost else TTRExceeded), traceback=error_text(stored))


def cancelled() -> "TaskError":
    return TaskError(exception_class_path=path_of(TaskCancelled), traceback="The task was cancelled.")


def path_of(class_: type) -> str:
    return f"{class_.__module__}.{class_.__qualname__}"
