"""The kit in async code: handlers that are coroutine functions, and tests that are."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection

from delaytasks import RunningJob, Snooze, acancel, aschedule, schedule
from delaytasks.exceptions import LeaseLost
from delaytasks.models import Topic
from delaytasks.testing import Timeouts, minutes, running_job
from tests.support.stage import effect, effects

Register = Callable[..., Any]


@pytest.mark.parametrize("kind", ["atomic", "not atomic"])
def test_an_async_handler_runs_in_the_tests_own_transaction(timeouts: Timeouts, register: Register, kind: str) -> None:
    async def handle(job: RunningJob) -> None:
        assert await sync_to_async(lambda: connection.in_atomic_block)()
        await Topic.objects.acreate(name="effect of the handler")
        await aschedule("t", "next", delay=minutes(5))

    register("t", handle, atomic=kind == "atomic")
    schedule("t", "first", delay=minutes(30))
    assert timeouts.advance(minutes=30).outcomes == {"finished": 1}
    assert effects() == ["effect of the handler"]
    timeouts.assert_scheduled("t", "next")


def test_the_effects_of_an_async_handler_that_fails_are_rolled_back(timeouts: Timeouts, register: Register) -> None:
    async def handle(job: RunningJob) -> None:
        await Topic.objects.acreate(name="effect that is lost")
        raise ValueError("no")

    register("t", handle, max_attempts=1)
    schedule("t", "a", delay=0)
    assert timeouts.run_due().outcomes == {"dead": 1}
    assert effects() == []


def test_an_async_handler_snoozes_touches_and_finishes(timeouts: Timeouts, register: Register) -> None:
    async def handle(job: RunningJob) -> Snooze | None:
        if job.body["snooze"] and timeouts.now == job.created_at:
            return Snooze(minutes(1))
        await job.atouch()
        async with job.afinishing():
            await Topic.objects.acreate(name=f"effect of {job.key}")
        return None

    register("t", handle, atomic=False)
    schedule("t", "a", delay=0, body={"snooze": True})
    schedule("t", "b", delay=0, body={"snooze": False})
    assert timeouts.run_due().outcomes == {"snoozed": 1, "finished": 1}
    assert timeouts.advance(minutes=1).outcomes == {"finished": 1}
    assert effects() == ["effect of a", "effect of b"]


@pytest.mark.parametrize("finishing", [False, True])
def test_a_process_dies_after_an_async_handler_has_run(timeouts: Timeouts, register: Register, finishing: bool) -> None:
    attempts: list[int] = []

    async def handle(job: RunningJob) -> None:
        async with job.afinishing() if finishing else nullcontext():
            await Topic.objects.acreate(name=f"effect {job.attempt}")
            attempts.append(job.attempt)

    register("t", handle, atomic=not finishing)
    timeouts.die_in("t", before="commit")
    schedule("t", "a", delay=0)
    assert timeouts.run_due().outcomes == {"died": 1}
    timeouts.advance(hours=1)
    assert (attempts, effects()) == ([1, 2], ["effect 2"])


def test_an_async_test_awaits_the_kit(timeouts: Timeouts, ran: list[str]) -> None:
    async def test() -> None:
        await aschedule("t", "order:1", delay=minutes(30))
        await aschedule("t", "order:2", delay=minutes(30))
        assert await acancel("t", "order:2") == "cancelled"
        runs = await sync_to_async(timeouts.advance)(minutes=30)
        assert runs.outcomes == {"finished": 1}

    async_to_sync(test)()
    assert ran == ["order:1"]


def test_a_plain_job_has_the_asynchronous_forms(db: None) -> None:
    job = running_job("t", ttr=10)

    async def handle() -> None:
        await job.atouch()
        with pytest.raises(ValueError, match="no"):
            async with job.afinishing():
                await sync_to_async(effect)("effect lost")
                raise ValueError("no")
        async with job.afinishing():
            await sync_to_async(effect)("effect kept")
        with pytest.raises(LeaseLost):
            await job.atouch()

    async_to_sync(handle)()
    assert (job.touched, job.ended, effects()) == (1, True, ["effect kept"])
