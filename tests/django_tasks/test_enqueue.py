"""Enqueue tasks and read, cancel and move them."""

import datetime
import uuid

import pytest
from asgiref.sync import async_to_sync
from django.core.exceptions import SuspiciousOperation
from django.db import transaction

from delaytasks import retry_dead, signals
from delaytasks.clock import from_ms
from delaytasks.django_tasks.backend import DelaytasksBackend, job_priority
from delaytasks.django_tasks.compat import TaskResultDoesNotExist
from delaytasks.django_tasks.models import TaskRecord
from delaytasks.exceptions import BadBody, BadDelay, BodyTooLarge, NotLive
from delaytasks.models import Job, JobEvent

from ..db.test_isolation_levels import alter
from ..support.locks import committed_meanwhile
from . import tasks


@pytest.fixture(autouse=True)
def _backend(backend):
    tasks.seen.clear()


def in_an_hour(db_clock):
    return datetime.datetime.fromtimestamp(db_clock.now_ms / 1000 + 3600, datetime.UTC)


def test_the_backend_supports_every_feature():
    assert DelaytasksBackend.supports_defer
    assert DelaytasksBackend.supports_async_task
    assert DelaytasksBackend.supports_get_result
    assert DelaytasksBackend.supports_priority


@pytest.mark.parametrize("task", [tasks.add, tasks.add_later], ids=["function", "coroutine"])
def test_an_enqueued_task_is_a_job_in_the_topic_of_its_queue(task, sent):
    result = task.enqueue(1, b=2)
    job = Job.objects.get()
    assert (job.topic, job.key, job.body) == ("tasks.default", result.id, {"task": task.module_path})
    assert (result.status, result.is_finished, result.attempts) == ("READY", False, 0)
    assert (result.args, result.kwargs, result.task) == ([1], {"b": 2}, task)
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert result.enqueued_at == job.created_at
    assert uuid.UUID(result.id).version == 4
    assert sent == [("task_enqueued", DelaytasksBackend, "READY")]
    with pytest.raises(ValueError, match="has not finished yet"):
        _ = result.return_value


def test_tasks_are_enqueued_and_read_in_async_code(sent):
    async def view():
        result = await tasks.add.aenqueue(1)
        again = await tasks.add.aget_result(result.id)
        await result.arefresh()
        return result, again

    result, again = async_to_sync(view)()
    assert result == again
    assert [name for name, _, _ in sent] == ["task_enqueued"]


def test_a_result_is_read_by_its_id(django_assert_num_queries, backend):
    result = tasks.add.enqueue(1)
    with django_assert_num_queries(1):
        assert backend.get_result(result.id) == result


@pytest.mark.parametrize("result_id", ["5f0c3f6e-8a5d-4f1c-9a52-3d1d0c6d2b11", "123", ""])
def test_an_unknown_result_does_not_exist(backend, result_id):
    for read in (backend.get_result, async_to_sync(backend.aget_result)):
        with pytest.raises(TaskResultDoesNotExist):
            read(result_id)


def test_a_rollback_leaves_neither_the_job_nor_the_record():
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.add.enqueue(1)
        _ = 1 / 0
    assert (Job.objects.count(), TaskRecord.objects.count()) == (0, 0)


def test_run_after_is_the_due_time_of_the_job(db_clock):
    moment = in_an_hour(db_clock)
    result = tasks.add.using(run_after=moment).enqueue(1)
    assert Job.objects.get().due_at == moment
    result.refresh()
    assert result.task.run_after == moment


def test_a_time_beyond_the_limit_is_refused(db_clock):
    with pytest.raises(BadDelay):
        tasks.add.using(run_after=in_an_hour(db_clock) + datetime.timedelta(days=20 * 366)).enqueue(1)
    assert TaskRecord.objects.count() == 0


@pytest.mark.parametrize(
    ("argument", "error"),
    [(object(), TypeError), ("a\x00b", BadBody), ("x" * 70_000, BodyTooLarge), (float("nan"), BadBody)],
    ids=["object", "NUL", "too large", "NaN"],
)
def test_arguments_that_cannot_be_stored_are_refused(argument, error):
    with pytest.raises(error):
        tasks.add.enqueue(argument)
    assert (Job.objects.count(), TaskRecord.objects.count()) == (0, 0)


def test_each_queue_is_a_topic():
    tasks.add.using(queue_name="mail").enqueue(1)
    assert Job.objects.get().topic == "tasks.mail"


@pytest.mark.parametrize(("priority", "expected"), [(-100, 0), (-1, 0), (0, 0), (1, 1), (50, 5), (99, 9), (100, 9)])
def test_priorities_are_mapped_to_those_of_jobs(priority, expected):
    assert job_priority(priority) == expected


@pytest.mark.parametrize(("priority", "of_job"), [(-7, 0), (50, 5)])
def test_the_priority_of_a_task_is_kept_and_that_of_its_job(backend, priority, of_job):
    result = tasks.add.using(priority=priority).enqueue(1)
    assert backend.get_result(result.id).task.priority == priority
    assert Job.objects.get().priority == of_job


def test_a_record_that_names_no_task_is_refused(backend):
    result = tasks.add.enqueue(1)
    TaskRecord.objects.update(task_path=f"{tasks.__name__}.not_a_task")
    with pytest.raises(SuspiciousOperation, match="is not a task"):
        backend.get_result(result.id)
    TaskRecord.objects.update(task_path="missing.task")
    with pytest.raises(ImportError):
        backend.get_result(result.id)


# -- cancel and reschedule ----------------------------------------------------------------------


def test_a_task_is_cancelled_by_its_result(stage, sent):
    result = tasks.add.enqueue(1)
    assert result.cancel(by="ann", reason="paid") == "cancelled"
    stage.go()
    result.refresh()
    assert (result.status, tasks.seen) == ("FAILED", [])
    assert result.finished_at == Job.objects.get().ended_at
    assert [error.exception_class.__name__ for error in result.errors] == ["TaskCancelled"]
    assert result.cancel() == "cancelled"
    assert (JobEvent.objects.get().actor, JobEvent.objects.get().reason) == ("ann", "paid")
    assert [name for name, _, _ in sent] == ["task_enqueued", "task_finished"]


def test_a_finished_task_is_not_cancelled(stage):
    result = tasks.add.enqueue(1)
    stage.go()
    assert result.cancel() == "already finished"
    Job.objects.all().delete()  # as when it is archived
    assert result.cancel() == "already finished"
    result.refresh()
    assert result.return_value == 1


def test_a_cancellation_is_seen_even_if_nothing_was_stored_after_it(stage, backend):
    """A process may be killed between the commit and its signals."""
    result = tasks.add.enqueue(1)
    result.cancel()
    TaskRecord.objects.update(outcome="", errors=[], finished_at=None)
    for _ in range(2):
        result.refresh()
        assert (result.status, result.errors[0].exception_class.__name__) == ("FAILED", "TaskCancelled")
        Job.objects.all().delete()  # as when it is archived


def test_a_task_is_moved_by_its_result(stage, db_clock):
    moment = in_an_hour(db_clock)
    result = tasks.add.using(run_after=moment).enqueue(1)
    result.reschedule(moment - datetime.timedelta(minutes=30))
    assert Job.objects.get().due_at == TaskRecord.objects.get().run_after == moment - datetime.timedelta(minutes=30)
    db_clock.advance(seconds=1801)
    stage.go()
    result.refresh()
    assert result.status == "SUCCESSFUL"
    with pytest.raises(NotLive):
        result.reschedule(moment)


@pytest.mark.only_on("postgresql")
@pytest.mark.django_db(transaction=True)
def test_a_task_is_moved_under_repeatable_read_while_its_job_changes(db_clock):
    alter("SET default_transaction_isolation = %s", ["repeatable read"])
    try:
        result, moment = tasks.add.using(run_after=in_an_hour(db_clock)).enqueue(1), in_an_hour(db_clock)
        with committed_meanwhile(lambda: Job.objects.update(priority=3)):
            result.reschedule(moment)
        assert Job.objects.get().due_at == moment
    finally:
        alter("RESET default_transaction_isolation")


def test_tasks_are_cancelled_and_moved_in_async_code(db_clock):
    async def view():
        result = await tasks.add.aenqueue(1)
        await result.areschedule(in_an_hour(db_clock))
        return await result.acancel()

    assert async_to_sync(view)() == "cancelled"


def test_results_outlive_their_jobs(stage):
    result = tasks.add.enqueue(1, 2)
    stage.go()
    Job.objects.all().delete()
    result.refresh()
    assert (result.status, result.return_value) == ("SUCCESSFUL", 3)


def test_old_results_are_deleted(stage, backend, db_clock):
    old = tasks.add.enqueue(1)
    stage.go()
    db_clock.advance(seconds=60)
    new = tasks.add.enqueue(2)
    stage.go()
    assert backend.delete_results(backend.get_result(new.id).finished_at) == 1
    with pytest.raises(TaskResultDoesNotExist):
        old.refresh()


@pytest.mark.parametrize("deleted", [False, True], ids=["with its job", "without"])
def test_the_result_of_a_cancelled_task_is_deleted_although_its_process_was_killed_before_it_was_stored(
    deleted, backend, db_clock
):
    result, waiting = tasks.add.enqueue(1), tasks.add.using(run_after=in_an_hour(db_clock)).enqueue(2)
    signals.job_cancelled.disconnect(dispatch_uid="delaytasks.django_tasks")
    db_clock.advance(seconds=1)
    cancelled_at = from_ms(db_clock.now_ms)
    assert result.cancel() == "cancelled"
    if deleted:
        Job.objects.filter(key=result.id).delete()
    else:
        assert backend.delete_results(cancelled_at) == 0
    db_clock.advance(seconds=60)
    assert backend.delete_results(from_ms(db_clock.now_ms)) == 1
    with pytest.raises(TaskResultDoesNotExist):
        result.refresh()
    waiting.refresh()


def test_the_result_of_a_failed_task_that_staff_retried_is_not_deleted(stage, backend, db_clock):
    retried, failed = tasks.fail.enqueue("a"), tasks.fail.enqueue("b")
    stage.go()
    retry_dead("tasks.default", retried.id)
    db_clock.advance(seconds=60)
    assert backend.delete_results(from_ms(db_clock.now_ms)) == 1
    with pytest.raises(TaskResultDoesNotExist):
        failed.refresh()
    stage.go()
    retried.refresh()
    assert [error.exception_class for error in retried.errors] == [ValueError, ValueError]
