"""Handlers that misbehave: their job ends as promised, their neighbours run, and nothing of theirs is left behind."""

import asyncio
import contextlib
import logging
import os
import sqlite3
import sys
import time

import pytest
from django.db import DatabaseError, connection, transaction

from delaytasks import schedule, ttr
from delaytasks.exceptions import TTRExceeded
from delaytasks.interrupted import drop_connections, forget_broken
from delaytasks.models import Job, JobEvent, Topic

from .conftest import Boom, effect, effects, outcomes, state_of


@pytest.fixture(autouse=True)
def _sound_connection():
    """A test that fails may leave what no test after it could use."""
    yield
    if connection.in_atomic_block or not connection.get_autocommit():
        connection.close()
        connection.in_atomic_block, connection.connection = False, None


class Panic(BaseException):
    """As extension modules raise them, past every `except Exception`."""


def run_beside_a_neighbour(stage) -> list[str]:
    """One job of topic t and one of u; the keys of u that ran."""
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
def test_a_transaction_that_a_handler_outside_one_leaves_open_is_rolled_back_and_its_job_fails(stage, leave_open):
    @stage.handler("t", atomic=False, max_attempts=1)
    def leave(job):
        leave_open()
        effect("effect-t")

    assert run_beside_a_neighbour(stage) == ["b"]
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "finished", [])
    assert "left a transaction open" in Job.objects.get(key="a").error
    assert not connection.in_atomic_block
    assert connection.get_autocommit()


def test_a_block_that_a_handler_leaves_inside_its_transaction_does_not_swallow_what_comes_after(stage):
    @stage.handler("t", max_attempts=1)
    def leave(job):
        effect("effect-t")
        enter_a_block()

    assert run_beside_a_neighbour(stage) == ["b"]
    connection.close()  # what was not committed is gone now
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "finished", [])
    assert "left a transaction open" in Job.objects.get(key="a").error


def test_a_finish_inside_a_transaction_that_nobody_commits_goes_where_its_effect_goes(stage):
    @stage.handler("t", atomic=False)
    def leave(job):
        transaction.set_autocommit(False)
        with job.finishing():
            effect("effect-t")

    schedule("t", key="a", delay=0)
    stage.go()
    committed = connection.vendor == "sqlite"  # there the outermost savepoint is a transaction of its own
    assert (outcomes("a"), effects()) == ((["finished"], ["effect-t"]) if committed else (["failed"], []))


# -- children -----------------------------------------------------------------------------------


def fork() -> bool:
    """True in the child. The parent waits for its end, so that both say what they say in the same order each time."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid == 0


def returns():
    pass


def raises():
    raise Boom("in the child")


def leaves():
    sys.exit(7)


def works():
    effect("effect-child")


def closes():
    connection.close()


def works_in_a_block():
    with transaction.atomic():
        effect("effect-child")


@pytest.mark.parametrize("child_does", [returns, raises, leaves, works, closes, works_in_a_block])
@pytest.mark.parametrize("atomic", [True, False])
def test_a_child_that_a_handler_forks_ends_with_the_handler_and_says_nothing_over_its_connection(
    stage, child_does, atomic
):
    @stage.handler("t", atomic=atomic, max_attempts=1)
    def forks(job):
        if fork():
            child_does()
        elif atomic:
            effect("effect-parent")

    pid = os.getpid()
    assert run_beside_a_neighbour(stage) == ["b"]
    assert os.getpid() == pid
    assert (outcomes("a"), outcomes("b")) == (["finished"], ["finished"])
    assert effects() == (["effect-parent"] if atomic else ["effect-child"] if "works" in child_does.__name__ else [])


# -- exceptions and results of any kind ---------------------------------------------------------


@pytest.mark.parametrize("raised", [KeyboardInterrupt, GeneratorExit, Panic])
@pytest.mark.parametrize("terms", [{}, {"one_commit": True}, {"atomic": False}], ids=str)
def test_what_ends_the_process_is_written_down_as_the_jobs_failure_first(stage, raised, terms):
    @stage.handler("t", max_attempts=1, **terms)
    def fail(job):
        if job.key == "a":
            raise raised("all of it")

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    with pytest.raises(raised):
        stage.go()
    assert (state_of("a"), Job.objects.get(key="a").error) == ("dead", f"{_name(raised)}: all of it")
    stage.rung.append("t")
    stage.go()
    assert state_of("b") == "finished"


def _name(kind: type) -> str:
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class Unspeakable(Exception):
    def __str__(self):
        raise Boom

    __repr__ = __str__


@pytest.mark.parametrize("terms", [{}, {"one_commit": True}, {"batch": 2}], ids=str)
def test_an_exception_that_cannot_be_printed_is_named(stage, terms):
    @stage.handler("t", max_attempts=1, **terms)
    def fail(job):
        raise Unspeakable

    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b")) == ("dead", "dead")
    assert "Unspeakable" in Job.objects.get(key="a").error


def test_the_error_of_a_job_names_its_kind_however_long_the_message_is(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom("x" * 10_000_000)

    schedule("t", key="a", delay=0)
    stage.go()
    assert "Boom: xxx" in Job.objects.get().error
    assert len(JobEvent.objects.get().error) < 5_000


@pytest.mark.filterwarnings("error")
def test_a_handler_whose_body_never_ran_has_not_finished(stage):
    """A generator or a coroutine is called and does nothing: to call that finished would lose the job."""

    @stage.handler("t", max_attempts=1)
    def lazily(job):
        yield effect("effect-t")

    @stage.handler("u", max_attempts=1)
    async def later(job):
        effect("effect-u")

    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b"), effects()) == ("dead", "dead", [])
    assert "generator" in Job.objects.get(key="a").error
    assert "coroutine" in Job.objects.get(key="b").error


def test_a_result_that_cannot_be_printed_is_finished_like_other_nonsense(stage, caplog):
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


def test_an_on_commit_callback_that_never_returns_is_interrupted_at_the_ttr(stage, monkeypatch):
    for name in ("_enforced", "_watched", "_grace_seconds", "_before_interrupt", "_armed", "_stays", "_watched_until"):
        monkeypatch.setattr(ttr, name, getattr(ttr, name))
    ttr.enforce(watchdog=False, grace_seconds=1)

    @stage.handler("t", ttr=0.2)
    def hang(job):
        effect("effect-t")
        transaction.on_commit(lambda: time.sleep(20))

    began = time.monotonic()
    assert run_beside_a_neighbour(stage) == ["b"]
    assert time.monotonic() - began < 10
    assert (outcomes("a"), effects()) == (["finished"], ["effect-t"])


@pytest.mark.parametrize("raised", [SystemExit, asyncio.CancelledError, KeyboardInterrupt])
def test_whatever_on_dead_raises_the_job_is_dead_all_the_same(stage, raised):
    def bury(job):
        raise raised

    @stage.handler("t", max_attempts=1, on_dead=bury)
    def fail(job):
        raise Boom

    assert run_beside_a_neighbour(stage) == ["b"]
    assert state_of("a") == "dead"


def close_it(job):
    connection.close()


def leave_a_block(job):
    enter_a_block()


def overrun(job):
    raise TTRExceeded


@pytest.mark.parametrize("bury", [close_it, leave_a_block, overrun])
def test_an_on_dead_that_breaks_the_transaction_does_not_keep_the_job_from_dying(stage, bury):
    @stage.handler("t", max_attempts=1, on_dead=bury)
    def fail(job):
        raise Boom

    assert run_beside_a_neighbour(stage) == ["b"]
    connection.close()
    assert (state_of("a"), outcomes("a")) == ("dead", ["dead"])


def test_an_on_dead_that_breaks_the_transaction_keeps_no_other_lease_from_ending(stage, db_clock):
    buried = []

    def bury(job):
        if job.key == "a":
            connection.close()
        buried.append(job.key)

    stage.handler("t", ttr=5, max_attempts=1, on_dead=bury)(lambda job: None)
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.take("t")
    db_clock.advance(seconds=60)
    stage.guard()
    stage.go()
    connection.close()
    assert (state_of("a"), state_of("b")) == ("dead", "dead")
    assert "b" in buried


@pytest.mark.only_on("sqlite")
def test_a_dropped_connection_lets_go_of_the_write_lock_even_if_a_traceback_keeps_its_cursor(stage):
    Topic.objects.bulk_create(Topic(name=f"t{n}") for n in range(3))
    path = connection.settings_dict["NAME"]
    kept = None
    with contextlib.suppress(DatabaseError), transaction.atomic():
        Topic.objects.create(name="written")
        kept = connection.connection.execute("SELECT name FROM delaytasks_topic")
        next(kept)  # and not to its end
        drop_connections()
    forget_broken()
    with contextlib.closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("ROLLBACK")
    assert kept is not None
    assert not Topic.objects.filter(name="written").exists()
