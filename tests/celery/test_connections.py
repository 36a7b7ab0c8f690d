"""The engine's tasks reuse their connection, although Celery closes all connections between tasks."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest
from celery import Celery
from celery.app.trace import build_tracer
from django.db import OperationalError, connections, transaction
from django.db.backends.signals import connection_created

from delaytasks import databases
from delaytasks.celery import connections as connecting
from delaytasks.celery.connections import answers, keep_connections, measure_time_anew
from delaytasks.db import dialects
from tests.support.silent_server import silent_server

pytestmark = pytest.mark.usefixtures("transactional_db")


class Worker:
    """One thread of a pool: runs a function as a task, and closes connections when Celery does."""

    def __init__(self, thread: ThreadPoolExecutor) -> None:
        self.app = Celery("of a test", set_as_current=False)
        self.thread = thread

    def run(self, body: Callable[[], Any] = lambda: session(), *, engine: bool = True) -> Any:
        """Run the body as a task of the engine or of the project; return or raise what it does."""
        return self.thread.submit(self._run, body, engine).result()

    def _run(self, body: Callable[[], Any], engine: bool) -> Any:
        results: list[Any] = []
        errors: list[Exception] = []

        def task() -> None:
            try:
                results.append(body())
            except Exception as error:
                errors.append(error)
                raise

        task.__name__ = f"task_{uuid4().hex}"
        celery_task = self.app.task(keep_connections(task) if engine else task)
        connections.close_all()  # as Celery's task_prerun does, and its task_postrun
        build_tracer(celery_task.name, celery_task, app=self.app)(uuid4().hex, (), {}, {})
        connections.close_all()
        if errors:
            raise errors[0]
        return results[0]


def session(using: str = "default") -> Any:
    """Execute a statement; return the driver's connection."""
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT 1")
    return connections[using].connection


@pytest.fixture
def max_age(monkeypatch: pytest.MonkeyPatch) -> Callable[[int | None], None]:
    """Sets CONN_MAX_AGE."""
    return lambda seconds: monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", seconds)


@pytest.fixture
def worker(max_age: Callable[[int | None], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    max_age(600)
    monkeypatch.setitem(connections.settings["default"], "CONN_HEALTH_CHECKS", True)

    def close() -> None:
        connecting._restore()
        connections.close_all()

    with ThreadPoolExecutor(1) as thread:
        yield Worker(thread)
        thread.submit(close).result()


def test_two_tasks_share_a_connection(worker: Worker) -> None:
    assert worker.run() is worker.run()


def test_a_task_of_the_project_has_its_own_connection_that_celery_closes(worker: Worker) -> None:
    kept = worker.run()
    assert worker.run(lambda: connections["default"].connection, engine=False) is None, "closed before the task began"
    other = worker.run(session, engine=False)
    assert other is not kept
    assert worker.run(lambda: connections["default"].connection, engine=False) is None, "closed when the task ended"
    assert worker.run() is kept


def test_without_conn_max_age_no_connection_is_kept(worker: Worker, max_age: Callable[[int | None], None]) -> None:
    max_age(0)
    assert worker.run() is not worker.run()


def test_no_connection_is_kept_beyond_its_age(worker: Worker) -> None:
    def expire() -> Any:
        raw = session()
        connections["default"].close_at = 0.0
        return raw

    assert worker.run(expire) is not worker.run()


def test_a_connection_that_expired_between_two_tasks_is_replaced(worker: Worker) -> None:
    def expire() -> None:
        connecting._idle[threading.get_ident()]["default"].close_at = 0.0

    before = worker.run()
    worker.run(expire, engine=False)
    assert worker.run() is not before


def leave_transaction_open() -> Any:
    with connections["default"].cursor() as cursor:
        cursor.execute("BEGIN")
    return session()


def leave_without_autocommit() -> Any:
    transaction.set_autocommit(False)
    return session()


@pytest.mark.parametrize("leave", [leave_transaction_open, leave_without_autocommit])
def test_a_connection_left_in_a_transaction_is_not_kept(worker: Worker, leave: Callable[[], Any]) -> None:
    left = worker.run(leave)
    assert worker.run() is not left


def test_after_an_error_no_connection_is_kept(worker: Worker) -> None:
    before = worker.run()

    def fail() -> None:
        assert session() is before
        raise RuntimeError

    with pytest.raises(RuntimeError):
        worker.run(fail)
    assert worker.run() is not before


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("when", ["between two tasks", "in a task"])
def test_a_connection_that_the_server_closed_is_replaced_before_the_next_task(worker: Worker, when: str) -> None:
    def terminate() -> None:
        with connections["default"].connection.__class__.connect(raw.info.dsn, password=raw.info.password) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])

    def terminate_in_task() -> None:
        session()  # checks the connection: from now on this task uses it
        terminate()
        with pytest.raises(OperationalError):
            session()

    raw = worker.run()
    if when == "in a task":
        worker.run(terminate_in_task)
    else:
        terminate()
    assert worker.run() is not raw


@pytest.fixture
def two_databases(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`other` is a second name of the test's database."""
    monkeypatch.setitem(connections.settings, "other", connections.settings["default"])
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["other", "default"]}
    connecting._breaker.cache_clear()
    yield
    connecting._breaker.cache_clear()


@contextmanager
def silent(raw: Any) -> Iterator[None]:
    """Stop the server's process of a connection inside the block: it stays open, and nobody answers."""
    pid = raw.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.only_on("postgresql")
def test_a_kept_connection_to_a_silent_database_does_not_hold_the_tasks_of_another(
    worker: Worker, two_databases: None
) -> None:
    raw, kept = worker.run(lambda: session("other")), worker.run()
    with silent(raw):
        task = worker.thread.submit(worker._run, session, engine=True)
        try:
            assert task.result(timeout=10) is kept
        finally:
            if not task.done():  # the thread must end
                os.kill(raw.info.backend_pid, signal.SIGCONT)
    assert worker.run(lambda: session("other")) is raw


@pytest.mark.only_on("postgresql")
def test_a_silent_database_is_left_alone_for_a_while_and_then_asked_again(
    worker: Worker, two_databases: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    raw = worker.run(lambda: session("other"))
    assert worker.run(lambda: answers("other"))
    with silent(raw):
        assert not worker.run(lambda: answers("other"))
        assert "database other does not answer" in caplog.text
    assert not worker.run(lambda: answers("other")), "it is not asked again at once"
    assert worker.run(lambda: answers("default"))
    monkeypatch.setattr(connecting._breaker("other"), "_open_until", 0.0)
    assert worker.run(lambda: answers("other"))


@pytest.mark.only_on("postgresql")
def test_a_server_that_accepts_connections_and_is_silent_does_not_answer(
    worker: Worker, two_databases: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_server() as port:
        options = {"HOST": "127.0.0.1", "PORT": str(port), "OPTIONS": {"connect_timeout": 2}}
        monkeypatch.setitem(connections.settings, "other", connections.settings["default"] | options)
        assert not worker.run(lambda: answers("other"))


def test_each_thread_has_its_own_connection(worker: Worker) -> None:
    with ThreadPoolExecutor(1) as thread:
        other = Worker(thread)
        here, there = worker.run(), other.run()
        assert here is not there
        assert (worker.run(), other.run()) == (here, there)
        thread.submit(lambda: (connecting._restore(), connections.close_all())).result()


def test_a_direct_call_of_a_task_uses_the_callers_connection(worker: Worker) -> None:
    def call() -> tuple[Any, Any, Any]:
        before = session()
        called = keep_connections(session)()
        task = worker.app.task(keep_connections(session), name="called")
        sessions = (before, called, task(), task.apply().get(), session())
        connections.close_all()
        return sessions

    assert len({id(each) for each in worker.thread.submit(call).result()}) == 1


def test_a_forked_process_has_no_kept_connection_and_does_not_close_the_parents(worker: Worker) -> None:
    kept = worker.run()

    def fork() -> int:
        child = os.fork()
        if child == 0:
            os._exit(len(connecting._idle))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert worker.thread.submit(fork).result() == 0
    assert worker.run() is kept


def test_in_a_greenlet_no_connection_is_kept(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "detect_environment", lambda: "gevent")
    assert worker.run() is not worker.run()


def test_a_connection_that_celery_keeps_is_used(worker: Worker) -> None:
    first = worker.run()

    def opened_first() -> bool:
        raw = session()
        connecting._restore()
        return connections["default"].connection is raw is not first

    assert worker.run(opened_first, engine=False)


def test_the_time_of_a_new_connection_is_measured_anew(worker: Worker) -> None:
    """It may be another server, whose clock is behind: a lease that has just begun would seem to be over."""

    def ahead_ms() -> int:
        clock = databases.clock("default")
        clock.measure()  # the last measurement may be almost too old
        clock._offset_ms += 20_000  # as if the former server's clock had been ahead
        clock._measured_ms -= 2_000
        connections["default"].close()
        session()
        return clock.now_ms() - int(dialects.now_ms("default"))

    assert worker.run(ahead_ms) > 15_000  # in a web process, where connections are many
    measure_time_anew()
    try:
        assert worker.run(ahead_ms) <= 0
    finally:
        connection_created.disconnect(dispatch_uid="delaytasks.measure_time_anew")
        databases.clock("default").invalidate()
