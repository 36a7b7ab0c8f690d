"""Handlers that are coroutine functions: awaited, in the transaction of their jobs, and held to their TTR."""

import asyncio
import functools
import signal
import time

import pytest
from asgiref.sync import AsyncToSync, async_to_sync, sync_to_async
from django.db import connection

from delaytasks import Retry, Snooze, acancel, aschedule, schedule
from delaytasks.exceptions import LeaseLost, TTRExceeded
from delaytasks.models import Job, Topic
from delaytasks.states import State
from delaytasks.worker import coroutines, isolation, ttr

from ..support.stage import Boom, effect, effects, outcomes, state_of

FOREVER_SECONDS = 20


@pytest.fixture
def enforced(ttr_state):
    """Switch the TTR's interrupt on, as in a Celery worker, without the watchdog."""
    ttr.enforce(watchdog=False, grace_seconds=1, before_interrupt=isolation.cancel_queries)
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def end_ttr():
    """Let the TTR of the running handler end now. A short one could end before the handler begins on a busy machine."""
    ttr._deadline = time.monotonic()
    ttr._set_timer(0)


def test_the_job_of_an_async_handler_is_finished_after_its_body_has_run(stage):
    @stage.handler("t")
    async def handle(job):
        await asyncio.sleep(0)
        await Topic.objects.acreate(name=f"effect-{job.body['n']}")

    schedule("t", key="a", delay=0, body={"n": 7})
    stage.go()
    assert (state_of("a"), effects()) == ("finished", ["effect-7"])


def test_effects_of_an_atomic_async_handler_are_in_the_transaction_of_its_finish(stage):
    seen = []

    @stage.handler("t", max_attempts=1)
    async def fail(job):
        seen.append(await sync_to_async(lambda: connection.in_atomic_block)())
        await Topic.objects.acreate(name="effect-1")
        await aschedule("t", key="next", delay=60)
        raise Boom("after the effect")

    schedule("t", key="a", delay=0)
    stage.go()
    assert seen == [True]
    assert (state_of("a"), effects()) == ("dead", [])
    assert "Boom: after the effect" in Job.objects.get().error


@pytest.mark.parametrize("atomic", [True, False])
def test_an_async_handler_may_snooze_or_retry(stage, db_clock, atomic):
    @stage.handler("t", atomic=atomic)
    async def ask(job):
        if job.attempt == 1:
            return Snooze(5)
        raise Retry("closed", delay=7)

    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    stage.go()
    assert outcomes("a") == ["snoozed", "failed"]
    assert Job.objects.get().due_ms == db_clock.now_ms + 7_000


def test_an_async_handler_finishes_its_job_in_a_transaction_of_its_own(stage):
    in_transaction = []

    @stage.handler("t", atomic=False)
    async def handle(job):
        in_transaction.append(await sync_to_async(lambda: connection.in_atomic_block)())
        async with job.afinishing():
            await Topic.objects.acreate(name="effect-1")

    schedule("t", key="a", delay=0)
    stage.go()
    assert (in_transaction, state_of("a"), effects()) == ([False], "finished", ["effect-1"])


def test_an_error_inside_afinishing_rolls_back_and_fails_the_attempt(stage):
    @stage.handler("t", atomic=False, max_attempts=1)
    async def handle(job):
        async with job.afinishing():
            await Topic.objects.acreate(name="effect-1")
            raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), effects()) == ("dead", [])


def test_an_async_handler_schedules_its_own_key_again(stage, db_clock):
    @stage.handler("t")
    async def again(job):
        await aschedule("t", key=job.key, delay=60)

    schedule("t", key="a", delay=0)
    stage.go()
    assert list(Job.objects.filter(key="a").values_list("state", flat=True).order_by("id")) == [
        State.FINISHED,
        State.DELAYED,
    ]
    assert outcomes("a") == ["finished"]


def test_an_async_batch_handler_gets_its_jobs_together(stage):
    seen = []

    @stage.handler("t", batch=10)
    async def handle(jobs):
        seen.extend(sorted(job.key for job in jobs))
        return {jobs[0].id: Snooze(60)}

    for key in "abc":
        schedule("t", key=key, delay=0)
    stage.go()
    assert sorted(seen) == ["a", "b", "c"]
    assert outcomes(seen[0]) == ["snoozed"]


@pytest.mark.parametrize("wrap", [functools.partial, lambda f: lambda job: f(job)], ids=["partial", "lambda"])
def test_a_coroutine_is_awaited_however_its_function_is_wrapped(stage, wrap):
    async def handle(job):
        await Topic.objects.acreate(name="effect-1")

    stage.handler("t")(wrap(handle))
    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), effects()) == ("finished", ["effect-1"])


def test_an_async_on_dead_is_awaited_in_the_transaction_that_buries_the_job(stage):
    async def on_dead(job):
        await Topic.objects.acreate(name=f"effect-{job.key}")

    @stage.handler("t", max_attempts=1, on_dead=on_dead)
    async def fail(job):
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), effects()) == ("dead", ["effect-a"])


def test_a_task_that_an_async_handler_leaves_behind_is_cancelled_before_the_finish(stage):
    cancelled = []

    async def work():
        try:
            await asyncio.sleep(FOREVER_SECONDS)
        finally:
            cancelled.append(await Topic.objects.acount() > 0)

    @stage.handler("t")
    async def handle(job):
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        assert not task.done()

    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), cancelled) == ("finished", [True])


def test_a_handler_that_runs_below_an_event_loop_has_a_loop_of_its_own(stage):
    """As in an async test that runs a worker: the tasks of the loop around it go on."""
    loops = []

    @stage.handler("t")
    async def handle(job):
        loops.append(asyncio.get_running_loop())

    async def around():
        other = asyncio.create_task(asyncio.sleep(0.01, "went on"))
        await sync_to_async(stage.go)()
        loops.append(asyncio.get_running_loop())
        return await other

    schedule("t", key="a", delay=0)
    assert async_to_sync(around)() == "went on"
    assert loops[0] is not loops[1]
    assert state_of("a") == "finished"


# -- TTR ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("atomic", [True, False])
def test_an_async_handler_that_exceeds_its_ttr_is_cancelled_and_cleans_up(stage, enforced, db_clock, atomic):
    cleaned = []
    # A repeated interrupt would cancel the clean-up, too.
    ttr.enforce(watchdog=False, grace_seconds=FOREVER_SECONDS / 4, before_interrupt=isolation.cancel_queries)

    @stage.handler("t", ttr=30, max_attempts=1, atomic=atomic)
    async def hang(job):
        db_clock.advance(seconds=60)  # the lease ends with the TTR
        end_ttr()
        try:
            await asyncio.sleep(FOREVER_SECONDS)
        finally:
            cleaned.append(await Topic.objects.acount())

    schedule("t", key="a", delay=0)
    began = time.monotonic()
    stage.go()
    assert time.monotonic() - began < FOREVER_SECONDS / 2
    assert len(cleaned) == 1
    assert (state_of("a"), outcomes("a")) == ("dead", ["dead"])


def test_a_synchronous_part_of_an_async_handler_is_interrupted_at_the_ttr(stage, enforced, db_clock):
    def sleep():
        end_ttr()
        time.sleep(FOREVER_SECONDS)

    @stage.handler("t", ttr=30, max_attempts=1)
    async def hang(job):
        db_clock.advance(seconds=60)  # the lease ends with the TTR
        await sync_to_async(sleep)()

    schedule("t", key="a", delay=0)
    began = time.monotonic()
    stage.go()
    assert time.monotonic() - began < FOREVER_SECONDS / 2
    assert state_of("a") == "dead"


def test_an_async_handler_that_swallows_its_cancellation_is_cancelled_again(stage, enforced, db_clock):
    swallowed = []

    @stage.handler("t", ttr=30, max_attempts=1)
    async def hang(job):
        db_clock.advance(seconds=60)  # the lease ends with the TTR
        end_ttr()
        while len(swallowed) < 2:
            try:
                await asyncio.sleep(FOREVER_SECONDS)
            except asyncio.CancelledError:
                swallowed.append(1)
        effect_of_a_late_handler = Topic(name="effect-1")
        await effect_of_a_late_handler.asave()

    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), effects(), len(swallowed)) == ("dead", [], 2)


def test_atouch_moves_the_deadline_and_the_interrupt(stage, enforced):
    deadlines = []

    @stage.handler("t", ttr=3)
    async def handle(job):
        for _ in range(3):
            await asyncio.sleep(1.1)
            await job.atouch()
            deadlines.append(job.deadline)

    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), len(deadlines)) == ("finished", 3)


def test_atouch_of_a_lost_job_raises(stage):
    refused = []

    @stage.handler("t", atomic=False)
    async def handle(job):
        await Job.objects.filter(pk=job.id).aupdate(attempt=job.attempt + 1)
        try:
            await job.atouch()
        except LeaseLost as error:
            refused.append(error)

    schedule("t", key="a", delay=0)
    stage.go()
    assert len(refused) == 1


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # where the interrupt comes before its first step
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # where it comes inside a __del__
def test_an_interrupt_before_the_event_loop_runs_ends_the_attempt(stage, enforced, db_clock):
    @stage.handler("t", ttr=0.001, max_attempts=1)
    async def handle(job):
        await asyncio.sleep(FOREVER_SECONDS)

    for n in range(20):
        schedule("t", key=f"k{n}", delay=0)
        stage.go()
        db_clock.advance(seconds=1)
        stage.take("t")  # the lease has ended: its job is taken back, and is dead
    assert set(Job.objects.values_list("state", flat=True)) == {State.DEAD}


def test_a_synchronous_effect_in_the_event_loop_is_refused_by_django(stage):
    @stage.handler("t", max_attempts=1)
    async def handle(job):
        effect("effect-1")

    schedule("t", key="a", delay=0)
    stage.go()
    assert "SynchronousOnlyOperation" in Job.objects.get().error


def test_cancelling_another_job_is_part_of_the_handlers_transaction(stage, db_clock):
    @stage.handler("t", max_attempts=1)
    async def handle(job):
        assert await acancel("t", "other") == "cancelled"
        raise Boom

    schedule("t", key="a", delay=0)
    schedule("t", key="other", delay=60)
    stage.go()
    assert state_of("other") == "delayed"


def test_a_lock_that_an_interrupt_leaves_behind_does_not_hang_the_next_coroutine(monkeypatch):
    lock = AsyncToSync.executors._lock

    def interrupted(*args, **kwargs):
        lock.acquire()  # and the interrupt comes before the `try` that releases it
        raise TTRExceeded

    async def handle():
        return await sync_to_async(lambda: "done")()

    with monkeypatch.context() as patch, pytest.raises(TTRExceeded):
        patch.setattr(coroutines, "async_to_sync", lambda main, force_new_loop: interrupted)
        coroutines.await_result(handle())
    assert not lock._is_owned()
    assert coroutines.await_result(handle()) == "done"


def test_an_interrupt_before_the_coroutine_leaves_no_thread_for_synchronous_parts_behind(monkeypatch):
    """Otherwise a request that the same context starts later would wait for this thread forever."""

    def interrupted():
        raise TTRExceeded

    async def handle():
        pass

    with monkeypatch.context() as patch, pytest.raises(TTRExceeded):
        patch.setattr("asgiref.sync.contextvars.copy_context", interrupted)  # asgiref has named the thread just before
        coroutines.await_result(handle())
    assert getattr(AsyncToSync.executors, "current", None) is None
