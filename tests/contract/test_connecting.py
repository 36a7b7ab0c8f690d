"""The engine's tasks keep their connection from one to the next, though Celery closes all of them in between."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from django.db import OperationalError, connections, transaction

from delaytasks import connecting
from delaytasks.connecting import keeping_connections


class Worker:
    """One thread of a pool: runs a function as a task of the engine, and closes connections when Celery does."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self.app = Celery("of a test", set_as_current=False)
        self.thread = thread

    def run(self, body: Callable[[], Any] = lambda: session(), *, ours: bool = True) -> Any:
        """What the body returns. Raises what it raises."""
        return self.thread.submit(self._run, body, ours).result()

    def _run(self, body: Callable[[], Any], ours: bool) -> Any:
        answers: list[Any] = []
        errors: list[Exception] = []

        def task() -> None:
            try:
                answers.append(body())
            except Exception as error:
                errors.append(error)
                raise

        task.__name__ = f"task_{uuid4().hex}"
        made = self.app.task(keeping_connections(task) if ours else task)
        connections.close_all()  # as Celery's task_prerun does, and its task_postrun
        build_tracer(made.name, made, app=self.app)(uuid4().hex, (), {}, {})
        connections.close_all()
        if errors:
            raise errors[0]
        return answers[0]


def session() -> Any:
    """The driver's connection that the engine's statements have."""
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT 1")
    return connections["default"].connection


@pytest.fixture
def kept_for(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets CONN_MAX_AGE."""
    return lambda seconds: monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", seconds)


@pytest.fixture
def worker(kept_for: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    kept_for(600)
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)

    def close() -> None:
        connecting._put_back()
        connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        yield Worker(thread)
        thread.submit(close).result()


def test_two_tasks_have_the_same_connection(worker: Worker) -> None:
    assert worker.run() is worker.run()


def test_a_task_of_the_project_has_one_of_its_own_that_celery_closes(worker: Worker) -> None:
    ours = worker.run()
    assert worker.run(lambda: connections["default"].connection, ours=False) is None, "closed before it began"
    theirs = worker.run(session, ours=False)
    assert theirs is not ours
    assert worker.run(lambda: connections["default"].connection, ours=False) is None, "closed when it ended"
    assert worker.run() is ours


def test_without_conn_max_age_none_is_kept(worker: Worker, kept_for: Callable[[int | None], None]) -> None:
    kept_for(0)
    assert worker.run() is not worker.run()


def test_none_is_kept_beyond_its_age(worker: Worker) -> None:
    def grow_old() -> Any:
        raw = session()
        connections["default"].close_at = 0.0
        return raw

    assert worker.run(grow_old) is not worker.run()


def test_one_that_grew_old_between_two_tasks_is_replaced(worker: Worker) -> None:
    def grow_old() -> None:
        connecting._aside.kept["default"].close_at = 0.0

    before = worker.run()
    worker.run(grow_old, ours=False)
    assert worker.run() is not before


def leave_begun() -> Any:
    with connections["default"].cursor() as cursor:
        cursor.execute("BEGIN")
    return session()


def leave_without_autocommit() -> Any:
    transaction.set_autocommit(False)
    return session()


@pytest.mark.parametrize("leave", [leave_begun, leave_without_autocommit])
def test_one_that_is_left_in_a_transaction_is_not_kept(worker: Worker, leave: Callable[[], Any]) -> None:
    left = worker.run(leave)
    assert worker.run() is not left


def test_after_an_error_none_is_kept(worker: Worker) -> None:
    before = worker.run()

    def fail() -> None:
        assert session() is before
        raise RuntimeError

    with pytest.raises(RuntimeError):
        worker.run(fail)
    assert worker.run() is not before


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("when", ["between two tasks", "in a task"])
def test_one_that_the_server_ended_is_replaced_before_the_next_task_begins(worker: Worker, when: str) -> None:
    def end() -> None:
        with connections["default"].connection.__class__.connect(raw.info.dsn, password=raw.info.password) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])

    def end_it_here() -> None:
        end()
        with pytest.raises(OperationalError):
            session()

    raw = worker.run()
    if when == "in a task":
        worker.run(end_it_here)
    else:
        end()
    assert worker.run() is not raw


def test_each_thread_has_its_own(worker: Worker) -> None:
    with ThreadPoolExecutor(1) as thread:
        other = Worker(thread)
        here, there = worker.run(), other.run()
        assert here is not there
        assert (worker.run(), other.run()) == (here, there)
        thread.submit(lambda: (connecting._put_back(), connections.close_all())).result()


def test_a_task_that_is_called_has_the_callers_connection(worker: Worker) -> None:
    def call() -> tuple[Any, Any, Any]:
        before = session()
        called = keeping_connections(session)()
        task = worker.app.task(keeping_connections(session), name="called")
        found = (before, called, task(), task.apply().get(), session())
        connections.close_all()
        return found

    assert len({id(each) for each in worker.thread.submit(call).result()}) == 1


def test_a_process_that_is_forked_meanwhile_finds_none_and_leaves_the_parents_alone(worker: Worker) -> None:
    ours = worker.run()

    def fork() -> int:
        child = os.fork()
        if child == 0:
            os._exit(len(getattr(connecting._aside, "kept", {})))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert worker.thread.submit(fork).result() == 0
    assert worker.run() is ours


def test_in_a_greenlet_none_is_kept(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "detect_environment", lambda: "gevent")
    assert worker.run() is not worker.run()


def test_a_connection_that_celery_was_told_to_keep_is_used(worker: Worker) -> None:
    first = worker.run()

    def opened_before() -> bool:
        raw = session()
        connecting._put_back()
        return connections["default"].connection is raw is not first

    assert worker.run(opened_before, ours=False)
