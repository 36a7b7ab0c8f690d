"""A handler is repeated only after a retryable database error and only if the transaction is the engine's."""

import sqlite3

import pytest
from django.db import OperationalError, connection

from delaytasks import handlers, mirror, schedule
from delaytasks.worker import runner

from ..support.stage import outcomes


def test_a_handler_without_atomic_is_not_repeated_after_a_serialization_failure(stage):
    calls = []

    class Serialization(Exception):
        sqlstate = "40001"

    @stage.handler("t", atomic=False)
    def outside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise OperationalError("could not serialize") from Serialization()

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1]
    assert outcomes("a") == ["failed"]


def test_an_atomic_handler_is_repeated_once_after_a_deadlock(stage):
    calls = []

    class Serialization(Exception):
        sqlstate = "40P01"

    @stage.handler("t")
    def inside(job):
        calls.append(job.attempt)
        if len(calls) == 1:
            raise OperationalError("deadlock detected") from Serialization()

    schedule("t", key="a", delay=0)
    stage.go()
    assert calls == [1, 1]
    assert outcomes("a") == ["finished"]


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
