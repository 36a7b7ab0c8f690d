"""DelaytasksBackend: schedule each enqueued task as a job, in the topic of its queue."""

import uuid
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.apps import apps
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils.module_loading import import_string

from .. import databases, handlers
from ..db.retries import in_transaction
from ..exceptions import BadInput
from ..jobs import control, inputs
from ..jobs.schedule import schedule
from ..outcomes import CancelResult
from .compat import BaseTaskBackend, Task, TaskResultDoesNotExist, normalize_json, task_backends, task_enqueued
from .execution import bury, connect_receivers, run_task
from .results import DelaytasksResult, to_result

OPTIONS = ("ttr", "max_attempts", "concurrency", "celery_queue", "atomic")
DEFAULTS: Mapping[str, Any] = {"ttr": 600, "max_attempts": 1, "atomic": False}
HINT = f'OPTIONS takes {", ".join(OPTIONS)}, and "queues": {{queue: the same options}}.'


class DelaytasksBackend(BaseTaskBackend):
    """A backend of Django's Tasks that runs each task as a job.

    OPTIONS, all optional. They can be given for a single queue, too, as "queues": {"mail": {...}}:

    ttr           timedelta or seconds that one attempt may take; default: 600
    max_attempts  int, 1 or more: the task has failed after this many failed attempts; default: 1
    concurrency   int, 1 or more: how many tasks of the queue run at the same time; default: the CONCURRENCY setting
    celery_queue  str, the Celery queue in which the tasks run; default: Celery's default queue
    atomic        bool: run the task in one transaction with its result; default: False

    The topic of a queue is "tasks.<queue>", or "tasks.<alias>.<queue>" if the backend's alias is not "default". If
    QUEUES is [], all queues share the topic of the queue "default".
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.topic_prefix = "tasks" if alias == "default" else f"tasks.{alias}"
        for queue in sorted(self.queues) or ["default"]:
            self._register(queue)
        connect_receivers()

    def _register(self, queue: str) -> None:
        """Register the handler of a queue. Raises ImproperlyConfigured."""
        options = self._options(queue)
        options["queue"] = options.pop("celery_queue", None)
        try:
            handlers.handler(self.topic(queue), on_dead=bury, **options)(run_task)
        except (BadInput, ValueError, TypeError) as error:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}], queue {queue!r}: {error} {HINT}") from None

    def _options(self, queue: str) -> dict[str, Any]:
        common = {name: value for name, value in self.options.items() if name != "queues"}
        own = self.options.get("queues", {})
        if not isinstance(own, Mapping) or not isinstance(own.get(queue, {}), Mapping):
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: OPTIONS['queues'] is {own!r:.80}. {HINT}")
        unknown = [*(common.keys() | own.get(queue, {}).keys()) - set(OPTIONS)]
        unknown += [f"queues[{name!r}]" for name in own.keys() - self.queues]
        if unknown:
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}] has unknown options: {', '.join(sorted(unknown))}. {HINT}"
            )
        return {**DEFAULTS, **common, **own.get(queue, {})}

    def topic(self, queue: str) -> str:
        """Return the topic of a queue."""
        return f"{self.topic_prefix}.{queue if queue in self.queues else 'default'}"

    # -- enqueue --------------------------------------------------------------------------------

    def enqueue(self, task: "Task[Any, Any]", args: Any, kwargs: Any) -> DelaytasksResult:
        """Schedule the task's job and store its arguments, in the caller's transaction.

        Raises InvalidTask; TypeError, BadBody or BodyTooLarge for arguments that are not JSON or too large; BadDelay.
        """
        from .models import TaskRecord

        self.validate_task(task)
        arguments = normalize_json({"args": args, "kwargs": kwargs})
        inputs.to_body(arguments)
        using, record_id = databases.alias(), uuid.uuid4()
        with transaction.atomic(using):
            job = schedule(
                self.topic(task.queue_name),
                str(record_id),
                delay=0 if task.run_after is None else None,
                due_at=task.run_after,
                body={"task": task.module_path},
                using=using,
                priority=job_priority(task.priority),
            )
            record = TaskRecord(
                id=record_id,
                job=job,
                task_path=task.module_path,
                priority=task.priority,
                queue_name=task.queue_name,
                backend_name=self.alias,
                run_after=task.run_after,
                enqueued_at=job.created_at,
                **arguments,
            )
            record.save(using=using, force_insert=True)
        result = to_result(record, task)
        task_enqueued.send(type(self), task_result=result)
        return result

    # -- results --------------------------------------------------------------------------------

    def get_result(self, result_id: str) -> DelaytasksResult:
        """Return the result. Raises TaskResultDoesNotExist."""
        return to_result(self._find(result_id))

    def _find(self, result_id: str) -> Any:
        from .models import TaskRecord

        records = TaskRecord.objects.using(databases.alias()).select_related("job")
        try:
            return records.get(pk=result_id)
        except (TaskRecord.DoesNotExist, ValidationError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def cancel(self, result_id: str, *, by: str = "", reason: str = "") -> CancelResult:
        """Cancel a task unless it is running. Return "cancelled", "running", "already finished" or "unknown".

        The result of a cancelled task is FAILED, and its error is TaskCancelled. Raises TaskResultDoesNotExist.
        """
        record = self._find(result_id)
        result = control.cancel_job(record.job_id, by=by, reason=reason)
        # The record outlives its job, which may have been archived or deleted.
        return CancelResult.ALREADY_FINISHED if result is CancelResult.UNKNOWN and record.outcome else result

    async def acancel(self, result_id: str, *, by: str = "", reason: str = "") -> CancelResult:
        return await sync_to_async(self.cancel)(result_id, by=by, reason=reason)

    def reschedule(self, result_id: str, run_after: datetime, *, by: str = "", reason: str = "") -> DelaytasksResult:
        """Move a task that is not running to another time, earlier or later. Return its result.

        run_after   aware datetime, to the millisecond; a past time means now

        Raises TaskResultDoesNotExist, NotLive, Reserved, NaiveDatetime, BadDelay.
        """
        using, record = databases.alias(), self._find(result_id)

        def move() -> None:
            record.job = control.reschedule_job(record.job_id, due_at=run_after, using=using, by=by, reason=reason)
            record.run_after = run_after
            record.save(using=using, update_fields=["run_after"])

        in_transaction(using, move)
        return to_result(record)

    async def areschedule(
        self, result_id: str, run_after: datetime, *, by: str = "", reason: str = ""
    ) -> DelaytasksResult:
        return await sync_to_async(self.reschedule)(result_id, run_after, by=by, reason=reason)

    def delete_results(self, finished_before: datetime) -> int:
        """Delete the results of this backend's tasks that finished before a time. Return their number.

        Keeps those of failed tasks that staff have retried and that have not finished again.
        """
        from ..models import Job
        from .models import TaskRecord

        records = TaskRecord.objects.using(databases.alias()).filter(backend_name=self.alias)
        jobs = Job.objects.using(records.db).filter(pk=OuterRef("job_id"))
        stored = Q(~Exists(jobs.live()), finished_at__lt=finished_before)
        # A process that was killed when it had cancelled a job has stored nothing.
        later = jobs.exclude(ended_at__lt=finished_before)
        cancelled = Q(~Exists(later), finished_at=None, enqueued_at__lt=finished_before)
        return sum(records.filter(old).delete()[0] for old in (stored, cancelled))

    # -- checks ---------------------------------------------------------------------------------

    def check(self, **kwargs: Any) -> Iterable[checks.CheckMessage]:
        """E030: the app is not installed. E031: another backend has the same topics."""
        yield from super().check(**kwargs)
        missing = [name for name in ("delaytasks", "delaytasks.django_tasks") if not apps.is_installed(name)]
        if missing:
            yield checks.Error(
                f"TASKS[{self.alias!r}] uses delaytasks, but {' and '.join(missing)} is not installed.",
                hint=f"Add {', '.join(map(repr, missing))} to INSTALLED_APPS and run `manage.py migrate`.",
                id="delaytasks.E030",
            )
        yield from self._clashes()

    def _clashes(self) -> Iterable[checks.CheckMessage]:
        own = {self.topic(queue) for queue in self.queues or {"default"}}
        for other in task_backends.all():
            if isinstance(other, DelaytasksBackend) and other.alias > self.alias:
                for topic in sorted(own & {other.topic(queue) for queue in other.queues or {"default"}}):
                    yield checks.Error(
                        f"TASKS[{self.alias!r}] and TASKS[{other.alias!r}] both use the topic {topic!r}.",
                        hint="Rename a queue or an alias: the topic of a queue is tasks.<alias>.<queue>.",
                        id="delaytasks.E031",
                    )


def configured_backends() -> Iterator[DelaytasksBackend]:
    """Return the backends of this class in TASKS. Those that do not exist yet are created."""
    for alias, options in (getattr(settings, "TASKS", None) or {}).items():
        try:
            backend_class = import_string(options["BACKEND"])
        except (ImportError, KeyError):
            continue  # Django reports it when the backend is used
        if isinstance(backend_class, type) and issubclass(backend_class, DelaytasksBackend):
            backend: Any = task_backends[alias]
            yield backend


def job_priority(priority: int) -> int:
    """Convert the priority of a task (-100 to 100) to that of a job (0 to 9). Negative priorities become 0."""
    return max(0, -(-priority * 9 // 100))
