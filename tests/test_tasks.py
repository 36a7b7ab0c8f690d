"""The engine's Celery tasks serve each database, also if another one is down."""

from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from django.db import DatabaseError, connections

from delaytasks import schedule, tasks
from delaytasks.celery import shutdown
from delaytasks.celery.bootsteps import MoverStep
from delaytasks.maintenance import guard
from delaytasks.worker import dispatch, sender

from .support.stage import state_of

DOWN = {
    "sqlite": {"ENGINE": "django.db.backends.sqlite3", "NAME": "/nonexistent/directory/db.sqlite3"},
    "postgresql": {"ENGINE": "django.db.backends.postgresql", "NAME": "none", "HOST": "/nonexistent"},
}


@pytest.fixture
def database_down(stage, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of two databases is down; the second one is the test's."""
    monkeypatch.setitem(
        connections.settings, "down", connections.settings["default"] | DOWN[connections["default"].vendor]
    )
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["down", "default"]}
    yield
    connections["down"].close()
    del connections["down"]


def test_the_sweep_takes_back_expired_jobs_of_the_databases_after_one_that_is_down(
    stage, database_down, db_clock, caplog
) -> None:
    stage.handler("t")(print)
    schedule("t", "a", delay=0, ttr=10)
    assert stage.take("t")
    db_clock.advance(seconds=11)
    with pytest.raises(DatabaseError):  # the worker's log shows that the task has failed
        tasks.sweep()
    assert state_of("a") == "delayed"
    assert "database down failed" in caplog.text


def test_move_due_guards_the_databases_after_one_that_is_down(stage, database_down, monkeypatch) -> None:
    guarded: list[str] = []

    def recording_guard(using: str) -> None:
        guard.guard(using)
        guarded.append(using)

    monkeypatch.setattr(tasks, "guard", recording_guard)
    movers = {"default": stage.mover, "down": dispatch.new_mover("down")}
    monkeypatch.setattr(tasks, "mover", movers.__getitem__)
    stage.handler("t")(print)
    schedule("t", "a", delay=0)
    with pytest.raises(DatabaseError):
        tasks.move_due()
    assert stage.dispatched == ["t"]
    assert guarded == ["default"]


@pytest.mark.django_db
def test_a_runner_knows_when_its_message_was_sent(monkeypatch):
    run = Mock(return_value=0)
    monkeypatch.setattr(tasks.runner, "run_topic", run)
    tasks.run_topic.apply(args=("t",), headers={sender.SENT_MS: 5})
    tasks.run_topic("t")
    assert [call.kwargs["message_ms"] for call in run.call_args_list] == [5, sender.UNKNOWN_MS]


def test_jobs_run_in_a_process_in_which_a_worker_was_stopped(stage, request: Any) -> None:
    """As in a test suite, where tests with Celery's fixture of a worker come before tests with eager tasks."""
    request.addfinalizer(shutdown.reset)
    ran = stage.recorder("t")
    MoverStep(None).stop(None)
    schedule("t", "a", delay=0)
    stage.mover.move_due()
    assert tasks.run_topic("t") == 1
    assert ran == ["a"]


def test_the_projects_default_rate_limit_does_not_limit_the_engine() -> None:
    app = Celery("of a test", set_as_current=False)
    app.conf.task_default_rate_limit = "10/m"
    app.finalize()
    limits = {name: task.rate_limit for name, task in app.tasks.items() if name.startswith("delaytasks.")}
    assert "delaytasks.run_topic" in limits
    assert not any(limits.values())
