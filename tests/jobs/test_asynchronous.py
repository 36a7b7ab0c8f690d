"""The public verbs as coroutine functions."""

import asyncio
import inspect

import pytest
from asgiref.sync import async_to_sync

import delaytasks
from delaytasks import (
    acancel,
    acancel_many,
    areschedule,
    aretry_dead,
    arun_now,
    aschedule,
    aschedule_many,
    cancel,
    schedule,
    schedule_many,
)
from delaytasks.exceptions import BadInput, KeyIsLive, NotLive, UnknownTopic
from delaytasks.jobs.handles import Handle
from delaytasks.models import Job
from delaytasks.service_levels import ServiceLevel
from delaytasks.states import State

from ..support.stage import Boom, state_of

VERBS = ("schedule", "schedule_many", "cancel", "cancel_many", "reschedule", "run_now", "retry_dead")
HANDLE_VERBS = ("schedule", "cancel", "reschedule", "run_now")
SLA_VERBS = ("status", "statuses", "remaining", "history")


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_has_an_asynchronous_form_with_the_same_signature(name):
    verb, form = getattr(delaytasks, name), getattr(delaytasks, f"a{name}")
    assert inspect.iscoroutinefunction(form)
    assert inspect.signature(form) == inspect.signature(verb)
    assert form.__name__ == f"a{name}"
    assert f"{name}()" in form.__doc__


def test_every_verb_that_is_exported_has_an_asynchronous_form():
    """Those without one open no transaction, or are declarations."""
    others = {"forward", "handler", "jobs_of", "levels", "poll", "recurring", "sla", "timeout"}
    verbs = {name for name in delaytasks.__all__ if name.islower() and f"a{name}" in delaytasks.__all__}
    functions = {name for name in delaytasks.__all__ if name[0].islower()}
    assert functions - others == verbs | {f"a{name}" for name in verbs}
    assert verbs == set(VERBS)


@pytest.mark.parametrize(
    ("owner", "name"), [*((Handle, name) for name in HANDLE_VERBS), *((ServiceLevel, name) for name in SLA_VERBS)]
)
def test_each_verb_of_a_handle_has_an_asynchronous_form_with_the_same_signature(owner, name):
    verb, form = getattr(owner, name), getattr(owner, f"a{name}")
    assert inspect.iscoroutinefunction(form)
    assert inspect.signature(form) == inspect.signature(verb)
    assert form.__qualname__ == f"{owner.__name__}.a{name}"
    assert f"{name}()" in form.__doc__


def test_an_async_view_uses_the_verbs_of_a_handle(stage):
    stage.recorder("t")
    handle = Handle("t", lambda job: None)

    async def view():
        job = await handle.aschedule("a", delay=60, body={"n": 1})
        later = await handle.areschedule("a", delay=120)
        now = await handle.arun_now("a", by="ann")
        with pytest.raises(KeyIsLive):
            await handle.aschedule("a", delay=1)
        return job, later, now, await handle.acancel("a", reason="paid"), await handle.acancel("unknown")

    job, later, now, cancelled, unknown = async_to_sync(view)()
    assert (job.is_new, job.topic, job.body) == (True, "t", {"n": 1})
    assert job.due_at < later.due_at > now.due_at
    assert (cancelled, unknown) == ("cancelled", "unknown")


def test_acancel_many_cancels_all_that_match(stage):
    stage.recorder("t")
    schedule_many({"topic": "t", "key": f"{'ab'[n % 2]}{n}", "delay": 60} for n in range(6))
    assert async_to_sync(acancel_many)(topic="t", key_prefix="a", by="ann") == (3, 0, 0)
    assert {job.key[0] for job in Job.objects.live()} == {"b"}
    with pytest.raises(BadInput):
        async_to_sync(acancel_many)()


def test_an_async_view_schedules_moves_and_cancels(stage):
    stage.recorder("t")

    async def view():
        job = await aschedule("t", key="a", delay=60, body={"n": 1})
        later = await areschedule("t", "a", delay=120)
        now = await arun_now("t", key="a")
        return job, later, now, await acancel("t", "a"), await acancel("t", "unknown")

    job, later, now, cancelled, unknown = async_to_sync(view)()
    assert (job.is_new, job.body) == (True, {"n": 1})
    assert job.due_at < later.due_at > now.due_at
    assert (cancelled, unknown) == ("cancelled", "unknown")


def test_aschedule_many_reads_a_generator(stage):
    stage.recorder("t")
    result = async_to_sync(aschedule_many)(({"topic": "t", "key": f"k{n}", "delay": 1} for n in range(3)), by="ann")
    assert result.created == 3
    assert Job.objects.count() == 3


def test_aretry_dead_revives_a_dead_job(stage):
    @stage.handler("t", max_attempts=1)
    def fail(job):
        raise Boom

    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"
    job = async_to_sync(aretry_dead)("t", "a")
    assert (job.state, job.failures) == (State.DELAYED, 0)


def test_the_exceptions_are_those_of_the_verbs(stage):
    stage.recorder("t")

    async def twice():
        await aschedule("t", key="a", delay=1)
        with pytest.raises(KeyIsLive):
            await aschedule("t", key="a", delay=1)
        with pytest.raises(NotLive):
            await areschedule("t", "b", delay=1)
        with pytest.raises(UnknownTopic):
            await aschedule("nobody", key="a", delay=1)

    async_to_sync(twice)()


def test_verbs_at_the_same_time_do_not_disturb_each_other(stage):
    stage.recorder("t")

    async def many():
        return await asyncio.gather(*(aschedule("t", key=f"k{n}", delay=1) for n in range(20)))

    assert len({job.pk for job in async_to_sync(many)()}) == 20


def test_the_synchronous_verbs_are_refused_in_an_event_loop(stage):
    """Django refuses them, so nobody blocks an event loop by mistake."""
    from django.core.exceptions import SynchronousOnlyOperation

    stage.recorder("t")

    async def view():
        for call in (
            lambda: schedule("t", key="a", delay=1),
            lambda: cancel("t", "a"),
            lambda: schedule_many([{"topic": "t", "key": "a", "delay": 1}]),
        ):
            with pytest.raises(SynchronousOnlyOperation):
                call()

    asyncio.run(view())
