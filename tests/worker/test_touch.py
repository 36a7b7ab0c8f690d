"""touch() inside a transaction: the worker's main process records it, and the job's row is not written."""

import logging
import os
import threading

import pytest
from django.db import OperationalError, connection, connections, transaction

from delaytasks import schedule
from delaytasks.celery.heartbeat import TouchThread
from delaytasks.clock import from_ms
from delaytasks.db import lookups, transitions
from delaytasks.exceptions import LeaseLost
from delaytasks.maintenance import liveness, sweep
from delaytasks.models import Job, Touch
from delaytasks.states import State

from ..support.stage import outcomes

pytestmark = pytest.mark.on_both


@pytest.fixture
def main_process():
    """The thread of a worker's main process that stores touches; the test calls its step()."""
    thread = TouchThread("default", liveness.open_touches()["default"])
    yield thread
    liveness.close_touches()


@pytest.fixture
def held(stage):
    stage.handler("t", ttr=10)(lambda job: None)
    schedule("t", "a", delay=0)
    [held] = stage.take("t")
    return held


def test_a_touch_in_a_transaction_keeps_the_job_and_does_not_write_its_row(stage, db_clock, held, main_process):
    db_clock.advance(seconds=8)
    before = Job.objects.values().get()
    with transaction.atomic():
        held.touch()
        assert held.deadline == from_ms(db_clock.now_ms + 10_000)
        assert Job.objects.values().get() == before
    main_process.step(60)
    assert Job.objects.values().get() == before

    db_clock.advance(seconds=9)  # the lease in the row has ended
    assert sweep.take_back_expired("default") == 0
    assert lookups.get_snapshots("default", [held.id])[0].lease_ms == db_clock.now_ms + 1000
    assert not lookups.has_ready("default", "t")
    stage.guard()
    assert stage.take("t") == []
    db_clock.advance(seconds=1)
    assert sweep.take_back_expired("default") == 1
    assert outcomes("a") == ["expired"]


def test_an_attempt_that_was_touched_holds_its_job(stage, db_clock, held, main_process):
    """So the next firing of a schedule does not begin beside it."""
    with transaction.atomic():
        held.touch()
    main_process.step(60)
    Job.objects.update(lease_until=from_ms(db_clock.now_ms + 1_000))
    db_clock.advance(seconds=9)
    assert transitions.find_attempt("default", held.id).held_by(held.attempt)
    db_clock.advance(seconds=1)
    assert not transitions.find_attempt("default", held.id).held_by(held.attempt)


def test_the_last_touch_counts_and_those_of_another_attempt_do_not(stage, db_clock, held, main_process):
    with transaction.atomic():
        held.touch()
        db_clock.advance(seconds=5)
        held.touch()
    main_process.step(60)
    assert Touch.objects.get().lease_until == from_ms(db_clock.now_ms + 10_000)
    db_clock.advance(seconds=10)
    assert sweep.take_back_expired("default") == 1
    [second] = stage.take("t")
    Touch.objects.update(lease_until=from_ms(db_clock.now_ms + 3_600_000))  # of attempt 1
    db_clock.advance(seconds=11)
    assert sweep.take_back_expired("default") == 1
    assert second.attempt == 2


def test_a_touch_in_a_transaction_is_refused_if_the_job_was_taken_back(db_clock, held, main_process):
    db_clock.advance(seconds=11)
    sweep.take_back_expired("default")
    with pytest.raises(LeaseLost), transaction.atomic():
        held.touch()
    assert main_process._pipe.read(0) == []


def test_outside_a_transaction_the_row_is_written(db_clock, held, main_process):
    db_clock.advance(seconds=8)
    held.touch()
    assert Job.objects.get().lease_until == held.deadline == from_ms(db_clock.now_ms + 10_000)
    assert main_process._pipe.read(0) == []


def test_without_a_main_process_the_row_is_written_in_the_transaction(db_clock, held):
    assert not liveness.touches
    db_clock.advance(seconds=8)
    with transaction.atomic():
        held.touch()
        assert Job.objects.get().lease_until == held.deadline
    db_clock.advance(seconds=9)
    assert sweep.take_back_expired("default") == 0


def test_touches_are_stored_after_an_outage_of_the_database(db_clock, held, main_process, monkeypatch):
    def fail(*_):
        raise OperationalError("gone")

    with transaction.atomic():
        held.touch()
    with monkeypatch.context() as patch:
        patch.setattr(liveness, "store_touches", fail)
        main_process.step(60)
    assert not Touch.objects.exists()
    main_process.step(0)
    assert Touch.objects.get().job_id == held.id
    assert main_process._waiting == {}


def test_old_touches_are_deleted(db_clock, held, main_process):
    with transaction.atomic():
        held.touch()
    main_process.step(60)
    db_clock.advance(seconds=69)
    liveness.delete_old_touches("default")
    assert Touch.objects.exists()
    db_clock.advance(seconds=2)
    liveness.delete_old_touches("default")
    assert not Touch.objects.exists()


def test_a_full_pipe_does_not_stop_the_handler(caplog):
    pipe = liveness.TouchPipe()
    try:
        with caplog.at_level(logging.WARNING, "delaytasks"):
            for number in range(10_000):
                pipe.write(liveness.Touched(number, 1, 1_893_456_000_000))
                if caplog.records:
                    break
        assert "does not listen" in caplog.text
        read = [touched.job_id for _ in range(5) for touched in pipe.read(0)]
        assert read == list(range(number))
    finally:
        pipe.close()


def test_a_forked_process_tells_its_main_process():
    pipe = liveness.TouchPipe()
    try:
        child = os.fork()
        if not child:
            pipe.write(liveness.Touched(7, 2, 3))
            os._exit(0)
        os.waitpid(child, 0)
        assert pipe.read(60) == [liveness.Touched(7, 2, 3)]
    finally:
        pipe.close()


@pytest.mark.only_on("postgresql")
def test_a_handler_that_touches_under_repeatable_read_can_end_its_job(stage, held, main_process):
    """Written by anybody, the job's row could not be ended by this transaction."""
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        assert Job.objects.get().state == State.RESERVED
        held.touch()
        store_elsewhere(main_process)
        held.finish()
    assert Job.objects.get().state == State.FINISHED
    assert Touch.objects.exists()


def test_touches_of_other_databases_do_not_wait_for_a_silent_one(stage, held, main_process, monkeypatch, settings):
    """Each has a pipe and a thread of its own. The second database is silent until the end of the test."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", "silent"]}
    released, stored = threading.Event(), threading.Event()

    def store(using, touched):
        if using == "default":
            stored.set()
        else:
            released.wait(60)

    monkeypatch.setattr(liveness, "store_touches", store)
    pipes = liveness.open_touches()
    threads = [TouchThread(using, pipe) for using, pipe in pipes.items()]
    try:
        for using in ("silent", "default"):
            pipes[using].write(liveness.Touched(held.id, 1, 1_893_456_000_000))
        steps = [threading.Thread(target=each.step, args=(60,)) for each in reversed(threads)]
        for step in steps:
            step.start()
        assert stored.wait(20)
    finally:
        released.set()
        for step in steps:
            step.join()
        liveness.close_touches()


def store_elsewhere(main_process: TouchThread) -> None:
    def step() -> None:
        try:
            main_process.step(60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
