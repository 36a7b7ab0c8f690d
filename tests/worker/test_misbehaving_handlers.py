"""Misbehaving handlers: their job ends as documented, other jobs run, and no transaction or process is left behind."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import sys
import time

import pytest
from django.db import DatabaseError, connection, transaction

from delaytasks import schedule, schedule_many
from delaytasks.exceptions import TTRExceeded
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.worker import runner, ttr
from delaytasks.worker.isolation import close_connections, reset_broken_connections

from ..support.stage import Boom, effect, effects, outcomes, state_of


@pytest.fixture(autouse=True)
def _repaired_connection(transactional_db):
    """Repair the connection after a failed test, so that the next test can use it."""
    yield
    if connection.in_atomic_block or not connection.get_autocommit():
        connection.close()
        connection.in_atomic_block, connection.connection = False, None


class Panic(BaseException):
    """An exception that `except Exception` does not catch, as extension modules raise them."""


def run_with_another_job(stage) -> list[str]:
    """Run a job of topic t and one of topic u. Return the keys of u that ran."""
    keys = stage.recorder("u")
    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    return keys


# -- transactions that are left open ------------------------------------------------------------


def enter_a_block():
    transaction.atomic().__enter__()


def begin_by_hand():
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")


def switch_autocommit_off():
    transaction.set_autocommit(False)


@pytest.mark.parametrize("leave_open", [enter_a_block, begin_by_hand, switch_autocommit_off])
def test_an_open_transaction_of_a_handler_without_atomic_is_rolled_back_and_its_job_fails(stage, leave_open):
    @stage.handler("t", atomic=False, max_attempts=1)
    def open_transaction(job):
        leave_open()
        effect("effect-t")

    assert run_with_another_job(stage) == ["b"]
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "finished", [])
    assert "left a transaction open" in Job.objects.get(key="a").error
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_an_open_atomic_block_inside_the_handlers_transaction_does_not_capture_later_jobs(stage):
    @stage.handler("t", max_attempts=1)
    def open_transaction(job):
        effect("effect-t")
        enter_a_block()

    assert run_with_another_job(stage) == ["b"]
    connection.close()  # rolls back what was not committed
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "finished", [])
    assert "left a transaction open" in Job.objects.get(key="a").error


def test_a_finish_inside_an_uncommitted_transaction_is_rolled_back_with_its_effect(stage):
    @stage.handler("t", atomic=False)
    def open_transaction(job):
        transaction.set_autocommit(False)
        with job.finishing():
            effect("effect-t")

    schedule("t", key="a", delay=0)
    stage.go()
    committed = connection.vendor == "sqlite"  # its outermost savepoint is a transaction of its own
    assert (outcomes("a"), effects()) == ((["finished"], ["effect-t"]) if committed else (["failed"], []))


# -- children -----------------------------------------------------------------------------------


def fork() -> bool:
    """Return True in the child. The parent waits for the child's end, so that the order of effects is fixed."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid == 0


def returns():
    pass


def raises():
    raise Boom("in the child")


def exits():
    sys.exit(7)


def works():
    effect("effect-child")


def closes():
    connection.close()


def works_in_a_block():
    with transaction.atomic():
        effect("effect-child")


@pytest.mark.parametrize("child_does", [returns, raises, exits, works, closes, works_in_a_block])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_child_that_a_handler_forks_ends_with_the_handler_and_never_uses_its_connection(stage, child_does, atomic):
    @stage.handler("t", atomic=atomic, max_attempts=1)
    def forks(job):
        if fork():
            child_does()
        elif atomic:
            effect("effect-parent")

    pid = os.getpid()
    assert run_with_another_job(stage) == ["b"]
    assert os.getpid() == pid
    assert (outcomes("a"), outcomes("b")) == (["finished"], ["finished"])
    assert effects() == (["effect-parent"] if atomic else ["effect-child"] if "works" in child_does.__name__ else [])


# -- exceptions and results of any kind ---------------------------------------------------------


@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit, Panic])
@pytest.mark.parametrize("options", [{}, {"one_commit": True}, {"atomic": False}], ids=str)
def test_an_exception_that_ends_the_process_is_recorded_as_the_jobs_failure_first(stage, raised, options):
    @stage.handler("t", max_attempts=1, **options)
    def fail(job):
        if job.key == "a":
            raise raised("all of it")

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    with pytest.raises(raised):
        stage.go()
    assert (state_of("a"), Job.objects.get(key="a").error) == ("dead", f"{_name(raised)}: all of it")
    stage.dispatched.append("t")
    stage.go()
    assert state_of("b") == "finished"


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Unprintable(Exception):
    def __str__(self):
        raise Boom

    __repr__ = __str__


@pytest.mark.parametrize("options", [{}, {"one_commit": True}, {"batch": 2}], ids=str)
def test_an_exception_that_cannot_be_printed_is_stored_with_its_name(stage, options):
    @stage.handler("t", max_attempts=1, **options)
    def fail(job):
        raise Unprintable

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b")) == ("dead", "dead")
    assert "Unprintable" in Job.objects.get(key="a").error


def test_the_error_of_a_job_names_the_exception_however_long_its_message_is(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom("x" * 10_000_000)

    schedule("t", key="a", delay=0)
    stage.go()
    assert "Boom: xxx" in Job.objects.get().error
    assert len(JobEvent.objects.get().error) < 5_000


@pytest.mark.filterwarnings("error")
def test_a_handler_whose_body_has_not_run_fails(stage):
    """Calling a generator function runs nothing: the job must not be finished."""

    @stage.handler("t", max_attempts=1)
    def generator(job):
        yield effect("effect-t")

    @stage.handler("u", max_attempts=1)
    async def asynchronous_generator(job):
        yield effect("effect-u")

    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "dead", [])
    assert "generator" in Job.objects.get(key="a").error
    assert "async_generator" in Job.objects.get(key="b").error


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("atomic", [True, False])
def test_a_batch_in_which_the_body_of_a_job_has_not_run_fails_that_job_only(stage, atomic):
    def of_one(job):
        yield effect("effect")

    @stage.handler("t", batch=2, max_attempts=1, atomic=atomic)
    def some(jobs):
        return {job.id: of_one(job) for job in jobs if job.key == "b"}

    runner._paces["t"] = runner.Pace(size=2)
    schedule_many({"topic": "t", "key": key, "delay": 0} for key in ("a", "b"))
    stage.go()
    assert (state_of("a"), state_of("b"), effects()) == ("finished", "dead", [])
    assert "generator" in Job.objects.get(key="b").error


def test_a_job_whose_handler_returns_an_unprintable_value_is_finished(stage, caplog):
    class Result:
        def __repr__(self):
            raise Boom

    stage.handler("t", max_attempts=1)(lambda job: Result())
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.WARNING):
        stage.go()
    assert state_of("a") == "finished"
    assert "Result" in caplog.text


# -- what comes after the handler ---------------------------------------------------------------


def test_an_on_commit_callback_that_never_returns_is_interrupted_at_the_ttr(stage, ttr_state):
    ttr.enforce(watchdog=False, grace_seconds=1)

    @stage.handler("t", ttr=0.2)
    def hang(job):
        effect("effect-t")
        transaction.on_commit(lambda: time.sleep(20))

    began = time.monotonic()
    assert run_with_another_job(stage) == ["b"]
    assert time.monotonic() - began < 10
    assert (outcomes("a"), effects()) == (["finished"], ["effect-t"])


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
def test_the_job_is_dead_whatever_on_dead_raises(stage, raised):
    def on_dead(job):
        raise raised

    @stage.handler("t", max_attempts=1, on_dead=on_dead)
    def fail(job):
        raise Boom

    assert run_with_another_job(stage) == ["b"]
    assert state_of("a") == "dead"


def close_connection(job):
    connection.close()


def leave_a_block(job):
    enter_a_block()


def overrun(job):
    raise TTRExceeded


@pytest.mark.parametrize("callback", [close_connection, leave_a_block, overrun])
def test_the_job_is_dead_even_if_on_dead_breaks_the_transaction(stage, callback):
    @stage.handler("t", max_attempts=1, on_dead=callback)
    def fail(job):
        raise Boom

    assert run_with_another_job(stage) == ["b"]
    connection.close()
    assert (state_of("a"), outcomes("a")) == ("dead", ["dead"])


@pytest.mark.parametrize("atomic", [True, False])
@pytest.mark.parametrize("error", [Boom, DatabaseError])
def test_an_error_in_an_on_commit_callback_of_on_dead_is_logged_and_the_death_reported(stage, caplog, atomic, error):
    def callback():
        raise error("in the callback")

    @stage.handler("t", max_attempts=1, on_dead=lambda job: transaction.on_commit(callback), atomic=atomic)
    def fail(job):
        raise Boom

    assert run_with_another_job(stage) == ["b"]
    assert (state_of("a"), outcomes("a")) == ("dead", ["dead"])
    assert "in the callback" in caplog.text
    assert "dead topic='t'" in caplog.text
    assert "is refused" not in caplog.text


def test_other_leases_end_even_if_an_on_dead_breaks_the_transaction(stage, db_clock):
    called = []

    def on_dead(job):
        if job.key == "a":
            connection.close()
        called.append(job.key)

    stage.handler("t", ttr=5, max_attempts=1, on_dead=on_dead)(lambda job: None)
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.take("t")
    db_clock.advance(seconds=60)
    stage.guard()
    stage.go()
    connection.close()
    assert (state_of("a"), state_of("b")) == ("dead", "dead")
    assert "b" in called


@pytest.mark.only_on("sqlite")
def test_a_closed_connection_releases_the_write_lock_even_if_a_traceback_keeps_its_cursor(stage):
    Topic.objects.bulk_create(Topic(name=f"t{n}") for n in range(3))
    path = connection.settings_dict["NAME"]
    kept = None
    with contextlib.suppress(DatabaseError), transaction.atomic():
        Topic.objects.create(name="written")
        kept = connection.connection.execute("SELECT name FROM delaytasks_topic")
        next(kept)  # but do not exhaust it
        close_connections()
    reset_broken_connections()
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert kept is not None
    assert not Topic.objects.filter(name="written").exists()
