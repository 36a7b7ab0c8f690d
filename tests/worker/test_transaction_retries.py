"""A handler is repeated only after a retryable database error and only if the transaction is the engine's."""

import sqlite3

import pytest
from django.db import OperationalError, connection

from delaytasks import cancel, handlers, mirror, schedule, schedule_many
from delaytasks.worker import process_name, runner
from delaytasks.worker.executor import Executor

from ..support.stage import Boom, effect, effects, outcomes


def conflict(sqlstate):
    """Return the error that Django raises for an error of PostgreSQL with this code."""
    cause = Exception()
    cause.sqlstate = sqlstate
    error = OperationalError("conflict")
    error.__cause__ = cause
    return error


def schedule_group(stage):
    """Schedule jobs that one run takes together."""
    schedule_many({"topic": "t", "key": key, "delay": 0} for key in "ab")
    stage.mover.move_due()
    runner._paces["t"] = runner.Pace(size=2)


def test_a_handler_without_atomic_is_not_repeated_after_a_serialization_failure(stage):
    calls = []

    @stage.handler("t", atomic=False)
    def outside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise conflict("40001")

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1]
    assert outcomes("a") == ["failed"]


def test_an_atomic_handler_is_repeated_once_after_a_deadlock(stage):
    calls = []

    @stage.handler("t")
    def inside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise conflict("40P01")

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1, 1]
    assert outcomes("a") == ["finished"]


@pytest.mark.on_both
@pytest.mark.parametrize("fails", [1, 9])
def test_on_dead_is_repeated_once_after_a_deadlock(stage, fails):
    calls = []

    def on_dead(job):
        calls.append(job.key)
        effect(f"effect{len(calls)}")
        if len(calls) <= fails:
            raise conflict("40P01")

    @stage.handler("t", max_attempts=1, on_dead=on_dead)
    def failing(job):
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert (calls, effects()) == (["a", "a"], ["effect2"] if fails == 1 else [])
    assert outcomes("a") == ["dead"]


@pytest.mark.only_on("sqlite")
def test_a_busy_database_is_not_a_failure_of_the_handler(stage):
    calls = []
    another = sqlite3.connect(connection.settings_dict["NAME"], isolation_level=None)

    @stage.handler("t", max_attempts=1)
    def patient(job):
        calls.append(job.attempt)

    schedule("t", key="a", delay=0)
    held = stage.take("t")
    another.execute("BEGIN IMMEDIATE")
    tries = []

    def unlock_after_first_error(execute, sql, params, many, context):
        try:
            return execute(sql, params, many, context)
        except OperationalError:
            tries.append(sql)
            another.execute("ROLLBACK")
            raise

    run = runner.Run(
        handlers.find("t"), mirror.choose("default"), "default", "w2", lambda topic: None, lambda: False, float("inf")
    )
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 50")
    try:
        with connection.execute_wrapper(unlock_after_first_error):
            run.executor.run_one(held[0])
    finally:
        another.close()
        connection.close()
    assert len(tries) == 1
    assert (calls, outcomes("a")) == ([1], ["finished"])


@pytest.mark.only_on("postgresql")
def test_a_connection_lost_in_a_handler_without_transaction_does_not_repeat_it(stage):
    """As when a pooler closes it during a long call: the handler has done its work, only the end is missing."""
    calls = []

    @stage.handler("t", atomic=False)
    def outside(job):
        calls.append(job.attempt)
        connection.connection.close()

    schedule("t", key="a", delay=0)
    stage.go()
    assert (calls, outcomes("a")) == ([1], ["finished"])


@pytest.mark.only_on("postgresql")
def test_a_batch_whose_connection_is_lost_is_not_called_again(stage):
    calls = []

    @stage.handler("t", atomic=False, batch=10)
    def outside(jobs):
        calls.append(len(jobs))
        connection.connection.close()

    schedule_group(stage)
    stage.run("t")
    assert (calls, outcomes("a"), outcomes("b")) == ([2], ["finished"], ["finished"])


def test_a_job_that_was_cancelled_during_its_first_try_is_not_begun_again(stage, monkeypatch):
    """Its cancellation has answered "cancelled". The conflict may come from the same rows."""
    calls = []

    @stage.handler("t")
    def inside(job):
        calls.append(job.attempt)
        raise conflict("40001")

    schedule("t", key="a", delay=0)
    real, answers = Executor.run_in_transaction, []

    def cancelled_before_the_second_try(self, attempt):
        try:
            return real(self, attempt)
        finally:
            answers.append(cancel("t", key="a", running="fence"))

    monkeypatch.setattr(Executor, "run_in_transaction", cancelled_before_the_second_try)
    stage.go()
    assert answers == ["cancelled"]
    assert (calls, outcomes("a")) == ([1], ["cancelled"])


@pytest.mark.parametrize("error", [OperationalError("server closed the connection unexpectedly"), conflict("40001")])
def test_a_claim_with_the_end_is_not_lost_with_an_error_after_the_commit(stage, monkeypatch, error):
    done = stage.recorder("t")
    schedule_group(stage)
    real, broken = Executor.hold_next, []

    def once_broken(self, completed):
        if not broken:
            broken.append(completed.claimed)
            raise error
        real(self, completed)

    monkeypatch.setattr(Executor, "hold_next", once_broken)
    monkeypatch.setattr(process_name, "_worker", "w")
    stage.run("t")
    assert (done, len(broken)) == (["a", "b"], 1)
    assert (outcomes("a"), outcomes("b")) == (["finished"], ["finished"])


def test_without_a_workers_name_no_claim_is_taken_for_a_lost_one(stage, monkeypatch):
    """Runs of gevent share a name: the claim could be that of another greenlet."""
    executor = runner.Run(
        stage.handler("t")(lambda job: None) and handlers.find("t"), mirror.choose("default"), "default", "w2",
        lambda topic: None, lambda: False, float("inf"),
    ).executor  # fmt: skip
    executor.offered = [1]
    monkeypatch.setattr(executor.candidates, "lost", lambda offered: 1 / 0)
    monkeypatch.setattr(process_name, "_worker", None)
    executor.find_lost_claim(OperationalError())
    assert executor.next is None
    monkeypatch.setattr(process_name, "_worker", "w")
    with pytest.raises(ZeroDivisionError):
        executor.find_lost_claim(OperationalError())
