"""Workers run tasks and store their results."""

import pytest
from django.db import OperationalError

from delaytasks import cancel, databases, schedule
from delaytasks.db import lookups
from delaytasks.django_tasks import execution
from delaytasks.django_tasks.exceptions import WorkerLost
from delaytasks.django_tasks.models import TaskRecord
from delaytasks.exceptions import TTRExceeded
from delaytasks.models import Job
from delaytasks.outcomes import ERROR_TEXTS, ErrorCode
from delaytasks.worker.attempt import RunningJob
from delaytasks.worker.completion import take_back

from ..support.stage import effects, state_of
from . import tasks


@pytest.fixture(autouse=True)
def _nothing_seen():
    tasks.seen.clear()


@pytest.mark.parametrize("task", [tasks.add, tasks.add_later], ids=["function", "coroutine"])
@pytest.mark.parametrize("atomic", [False, True])
def test_a_task_runs_and_its_result_is_stored(stage, make_backend, sent, db_clock, task, atomic):
    backend = make_backend(OPTIONS={"atomic": atomic})
    result = task.enqueue(1, b=2)
    db_clock.advance(ms=500)
    stage.go()
    assert result.status == "READY"
    result.refresh()
    assert (result.status, result.is_finished, result.return_value, result.errors) == ("SUCCESSFUL", True, 3, [])
    assert (result.attempts, result.worker_ids) == (1, ["w1"])
    assert result.enqueued_at < result.started_at == result.last_attempted_at <= result.finished_at
    assert sent == [
        ("task_enqueued", type(backend), "READY"),
        ("task_started", type(backend), "RUNNING" if not atomic else sent[1][2]),
        ("task_finished", type(backend), "SUCCESSFUL"),
    ]


def test_a_task_that_raises_has_failed_after_one_attempt(stage, backend, sent):
    result = tasks.fail.enqueue("no such order")
    stage.go()
    result.refresh()
    assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1)
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: no such order\n")
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    assert [name for name, _, _ in sent] == ["task_enqueued", "task_started", "task_finished"]
    assert state_of(result.id) == "dead"


def test_a_task_that_exits_has_failed(stage, backend):
    result = tasks.leave.enqueue("SystemExit")
    stage.go()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", SystemExit)


def test_a_keyboard_interrupt_ends_the_worker_and_the_task_has_failed(stage, backend):
    result = tasks.leave.enqueue("KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        stage.go()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", KeyboardInterrupt)


def test_a_return_value_that_is_not_json_fails_the_task(stage, backend):
    result = tasks.answer_something_else.enqueue()
    stage.go()
    result.refresh()
    assert (result.status, result.errors[0].exception_class) == ("FAILED", TypeError)
    assert "Unsupported type" in result.errors[0].traceback


@pytest.mark.parametrize("atomic", [False, True])
def test_attempts_are_repeated_as_often_as_the_queue_allows(stage, make_backend, db_clock, atomic):
    make_backend(OPTIONS={"max_attempts": 3, "atomic": atomic})
    result = tasks.tell_attempt.enqueue(fail_until=2)
    stage.go()
    result.refresh()
    assert (result.status, result.attempts, len(result.errors)) == ("READY", 1, 1)
    for _ in range(2):
        db_clock.advance(seconds=3600)
        stage.go()
    result.refresh()
    assert (result.status, result.attempts) == ("SUCCESSFUL", 3)
    assert result.return_value[:2] == [3, result.id]
    assert [error.traceback.splitlines()[-1] for error in result.errors] == [
        "ValueError: attempt 1",
        "ValueError: attempt 2",
    ]
    assert result.started_at < result.last_attempted_at


@pytest.mark.parametrize("atomic", [False, True])
def test_an_atomic_queue_rolls_the_effects_of_a_failed_task_back(stage, make_backend, atomic):
    make_backend(OPTIONS={"queues": {"mail": {"atomic": atomic}}})
    result = tasks.write.using(queue_name="mail").enqueue("effect-1")
    stage.go()
    result.refresh()
    assert (result.status, result.attempts) == ("FAILED", 1)
    assert effects() == ([] if atomic else ["effect-1"])


def test_a_running_task_is_shown_with_its_worker(stage, backend, db_clock):
    result = tasks.tell_attempt.enqueue()
    stage.go()
    result.refresh()
    assert result.return_value == [1, result.id, "RUNNING"]


def test_a_task_whose_worker_died_has_failed_when_its_ttr_is_over(stage, backend, db_clock, sent):
    result = tasks.add.enqueue(1)
    assert stage.take("tasks.default")
    result.refresh()
    assert result.status == "RUNNING"
    assert backend.cancel(result.id) == "running"
    db_clock.advance(seconds=601)
    stage.take("tasks.default")
    result.refresh()
    assert (result.status, result.attempts, result.worker_ids) == ("FAILED", 1, ["w2"])
    assert result.errors[0].exception_class is TTRExceeded
    assert sent[-1][0] == "task_finished"


@pytest.mark.parametrize("was_called", [True, False])
@pytest.mark.parametrize("code", [ErrorCode.WORKER_LOST, ErrorCode.RUN_FAILED])
def test_an_attempt_that_was_taken_back_has_the_engines_error_and_its_own_begin(
    stage, make_backend, db_clock, code, was_called
):
    make_backend(OPTIONS={"max_attempts": 3})
    result = tasks.add.enqueue(1)
    for _ in range(3):
        db_clock.advance(seconds=3600)
        assert len(stage.take("tasks.default")) == 1
        began = databases.now("default")
        db_clock.advance(seconds=5)
        held = lookups.held_by("default", "w2", after=(0, 0), limit=9)
        take_back("default", held, code, was_called=lambda _: was_called)
        result.refresh()
        assert result.last_attempted_at == began
    assert (result.status, result.attempts, len(result.errors)) == ("FAILED" if was_called else "READY", 3, 3)
    assert {error.exception_class for error in result.errors} == {WorkerLost}
    assert {error.traceback for error in result.errors} == {ERROR_TEXTS[code]}


def test_a_late_attempt_does_not_overwrite_the_result_of_its_successor(stage, make_backend, db_clock):
    backend = make_backend(OPTIONS={"max_attempts": 3})
    result = tasks.add.enqueue(1)
    (late,) = stage.take("tasks.default")
    assert isinstance(late, RunningJob)
    db_clock.advance(seconds=601)
    stage.go()
    before = backend.get_result(result.id)
    from delaytasks.django_tasks import execution
    from delaytasks.exceptions import LeaseLost

    with pytest.raises(LeaseLost):
        execution.run_task(late)
    after = backend.get_result(result.id)
    assert (after.status, after.return_value, after.finished_at) == ("SUCCESSFUL", 1, before.finished_at)


def test_a_dead_task_that_staff_retry_is_ready_again(stage, backend):
    from delaytasks import retry_dead

    result = tasks.fail.enqueue("x")
    stage.go()
    retry_dead("tasks.default", result.id)
    result.refresh()
    assert (result.status, result.finished_at) == ("READY", None)
    TaskRecord.objects.update(task_path=tasks.add.module_path, args=[5])
    stage.go()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 5, 2)


def test_a_failed_task_that_is_cancelled_keeps_its_result(stage, backend, sent, db_clock):
    """Then nobody can retry it. It has finished only once."""
    result = tasks.fail.enqueue("no")
    stage.go()
    finished = backend.get_result(result.id)
    db_clock.advance(seconds=60)
    assert result.cancel() == "cancelled"
    result.refresh()
    assert (result.status, result.errors, result.finished_at) == ("FAILED", finished.errors, finished.finished_at)
    assert [name for name, _, _ in sent] == ["task_enqueued", "task_started", "task_finished"]


def test_a_dead_task_without_a_result_gets_one_when_it_is_cancelled(stage, backend, sent):
    """Its on_dead, which stores the result, was not called or failed."""
    result = tasks.fail.enqueue("no")
    stage.go()
    TaskRecord.objects.update(outcome="", finished_at=None)
    assert result.cancel() == "cancelled"
    result.refresh()
    assert (result.status, result.errors[-1].exception_class.__name__) == ("FAILED", "TaskCancelled")
    assert TaskRecord.objects.get().outcome == "FAILED"


def test_a_job_that_somebody_else_scheduled_in_a_queue_is_dead_with_the_reason(stage, backend):
    schedule("tasks.default", key="by-hand", delay=0)
    schedule("tasks.default", key="0b9f2f2e-7f0a-4b71-8c40-0d8a7a0f3f11", delay=0)
    stage.go()
    assert [job.state for job in Job.objects.all()] == [6, 6]
    assert all("has no task" in job.error for job in Job.objects.all())


def test_cancelling_the_job_cancels_the_task(stage, backend):
    result = tasks.add.enqueue(1)
    assert cancel("tasks.default", result.id) == "cancelled"
    result.refresh()
    assert result.errors[0].exception_class.__name__ == "TaskCancelled"


def test_a_nul_in_an_error_message_is_stored(stage, backend):
    result = tasks.fail_with_character.enqueue(0)
    stage.go()
    result.refresh()
    assert result.errors[0].exception_class is ValueError
    assert result.errors[0].traceback.endswith("ValueError: \\x00\n")


def test_a_task_has_succeeded_although_its_connection_was_lost_while_it_ran(stage, backend, monkeypatch):
    end, lost = execution.end, []

    def lost_once(record, outcome, using):
        if not lost:
            lost.append(outcome)
            raise OperationalError("server closed the connection unexpectedly")
        end(record, outcome, using)

    monkeypatch.setattr(execution, "end", lost_once)
    result = tasks.add.enqueue(1, b=2)
    stage.go()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", 3, 1)
