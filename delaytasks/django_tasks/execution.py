"""Run tasks and store their results. Has the handler and the on_dead callback for the topics of all queues."""

import weakref
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction

from .. import databases, handlers, signals
from ..clock import from_ms
from ..db.retries import retry_conflicts, try_twice
from ..jobs import inputs
from ..outcomes import ErrorCode
from ..states import Outcome
from ..validators import JSON_NULL
from ..worker.attempt import RunningJob
from ..worker.coroutines import await_result
from ..worker.executor import format_error
from .compat import TaskContext, TaskError, normalize_json, task_backends, task_finished, task_started
from .results import cancelled, engine_error, find_task, path_of, to_result

ATTEMPT = ["worker_ids", "started_at", "last_attempted_at"]  # the columns that add_attempt() changes
# The error of an attempt, until bury() or the receiver of job_failed stores it after the attempt's rollback.
_errors: "weakref.WeakKeyDictionary[RunningJob, TaskError]" = weakref.WeakKeyDictionary()


def find_record(record_id: Any, *, lock: bool = False) -> Any:
    """Return a record with its job, or None. The id of a record is the key of its job."""
    from .models import TaskRecord

    records = TaskRecord.objects.using(databases.alias()).select_related("job")
    if lock:
        records = records.select_for_update(of=("self",))
    try:
        return records.filter(pk=record_id).first()
    except ValidationError:  # not a UUID: a job that was scheduled in the queue's topic without a task
        return None


def is_task(topic: str) -> bool:
    """Return whether the topic is that of a backend's queue."""
    handler = handlers.find(topic)
    return handler is not None and handler.function is run_task


def run_task(job: RunningJob) -> None:
    """Run a task. Its result is committed in one transaction with the end of its job."""
    record = find_record(job.key)
    if record is None:
        raise LookupError(f"{job!r} has no task. Enqueue tasks; do not schedule jobs in the topic of a queue.")
    record.add_attempt(job.attempt, job.worker, from_ms(job.reserved_ms))
    record.save(using=job.using, update_fields=ATTEMPT)
    try:
        record.return_value = _call(record)
    except BaseException as error:
        _errors[job] = TaskError(exception_class_path=path_of(type(error)), traceback=format_error(error))
        raise
    handler = handlers.find(job.topic)
    if handler is None or handler.atomic:
        end(record, record.Outcome.SUCCESSFUL, job.using)
    else:  # the task has run: a lost connection or a conflict must not make it run again
        try_twice(lambda: retry_conflicts(lambda: _finish(record, job), job.using), job.using)


def _finish(record: Any, job: RunningJob) -> None:
    with job.finishing():
        end(record, record.Outcome.SUCCESSFUL, job.using)


def _call(record: Any) -> Any:
    """Call the task's function. Return its result as JSON data. Raises TypeError or BadBody if it is not JSON."""
    task = find_task(record)
    result = to_result(record, task)
    task_started.send(type(task_backends[record.backend_name]), task_result=result)
    context = [TaskContext(task_result=result)] if task.takes_context else []
    value = normalize_json(await_result(task.func(*context, *record.args, **record.kwargs)))
    inputs.to_body(JSON_NULL if value is None else value)
    return value


def bury(job: Any) -> None:
    """Store that a task has failed, in the transaction in which its job becomes dead."""
    record = find_record(job.key, lock=True)
    if record is not None:
        add_error(record, job)
        end(record, record.Outcome.FAILED, databases.alias())


def store_error(sender: str, job: Any, **kwargs: Any) -> None:
    """Store the error of an attempt that will be retried. A receiver of job_failed."""
    if not is_task(sender):
        return
    using = databases.alias()
    with transaction.atomic(using):
        record = find_record(job.key, lock=True)
        if record is not None:
            add_error(record, job)
            record.save(using=using, update_fields=["errors", *ATTEMPT])


def store_cancellation(sender: str, job: Any, **kwargs: Any) -> None:
    """Store that a task was cancelled, by its caller or by staff. A receiver of job_cancelled.

    A failed task keeps its result.
    """
    if not is_task(sender):
        return
    using = databases.alias()
    with transaction.atomic(using):
        record = find_record(job.key, lock=True)
        if record is not None and not (record.outcome and _was_dead(job)):
            record.errors = [*record.errors, _as_dict(cancelled())]
            end(record, record.Outcome.FAILED, using)


def _was_dead(job: Any) -> bool:
    """Return whether a cancelled job was dead before."""
    return Outcome.DEAD in job.events.order_by("-id").values_list("outcome", flat=True)[1:2]


def connect_receivers() -> None:
    signals.job_failed.connect(store_error, dispatch_uid="delaytasks.django_tasks")
    signals.job_cancelled.connect(store_cancellation, dispatch_uid="delaytasks.django_tasks")


def add_error(record: Any, job: Any) -> None:
    """Add the error of the job's last attempt to the record.

    job   the RunningJob of an attempt that has raised, or the row of a job that was taken back
    """
    if isinstance(job, RunningJob):
        error, began = _errors.pop(job, None) or engine_error(ErrorCode.TIMED_OUT), from_ms(job.reserved_ms)
    else:  # the row is that of the next attempt, if there is one
        event = job.events.filter(attempt=job.attempt, reserved_ms__isnull=False).order_by("id").last()
        error = engine_error(event.error if event else job.error)
        began = from_ms(event.reserved_ms) if event else job.due_at
    record.add_attempt(job.attempt, job.worker, began)
    record.errors = [*record.errors, _as_dict(error)]


def _as_dict(error: "TaskError") -> dict[str, str]:
    return {"exception_class_path": error.exception_class_path, "traceback": error.traceback}


def end(record: Any, outcome: str, using: str) -> None:
    """Store the outcome and send task_finished on commit."""
    record.outcome, record.finished_at = outcome, databases.now(using)
    others = ["return_value"] if outcome == record.Outcome.SUCCESSFUL else ["errors", *ATTEMPT]
    record.save(using=using, update_fields=["outcome", "finished_at", *others])
    transaction.on_commit(lambda: _send_finished(record.pk), using=using, robust=True)


def _send_finished(record_id: Any) -> None:
    record = find_record(record_id)
    if record is not None:
        task_finished.send(type(task_backends[record.backend_name]), task_result=to_result(record))
