"""Consumers that wait are woken in the moment in which a job becomes ready, by a message; a lost one costs a tick."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from django.db import connections

from delaytasks import bells, conf, engine, schedule, topics, waiting
from delaytasks.models import Topic
from delaytasks.mover import Mover
from delaytasks.waiting import WaitingRoom

TOPIC, OTHER = "mail.send", "sms.send"
NEVER_MS = 600_000  # a guard tick that no test lives to see


@pytest.fixture
def room(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingRoom]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}, OTHER: {}}}
    monkeypatch.setattr(waiting, "STAYS_SECONDS", 0.0)
    made = WaitingRoom("default")
    yield made
    settings.DELAYTASKS = {**settings.DELAYTASKS, "GUARD_TICK_MS": 1}
    thread = made._thread
    if thread is not None:
        found = engine.mirror_of("default")
        if found is not None:  # it may be in the middle of a long rest
            found._line.ask(lambda c: c.publish(found.keys.ready_channel, "0:end"))
        thread.join(10)
        assert not thread.is_alive()


def tick(settings: Any, ms: int) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "GUARD_TICK_MS": ms}


def schedule_and_promote(*keys: str) -> None:
    """Jobs that are due now, and a mover, for which every topic is somebody else's, until they are ready."""
    for key in keys:
        schedule(TOPIC, key=key, delay=0)
    places, using = engine.places("default"), "default"
    mover = Mover(lambda: places, lambda: engine.now_ms(using), topics.handled, lambda topic: None, 1)
    while places.ready_counts([TOPIC]).get(TOPIC, 0) < len(keys):
        mover.move_due()


def meanwhile(action: Callable[[], object]) -> Coroutine[Any, Any, None]:
    """Run it in a thread of its own, with a database connection of its own."""

    def act() -> None:
        try:
            action()
        finally:
            connections.close_all()

    return asyncio.to_thread(act)


def listened_to() -> bool:
    found = engine.mirror_of("default")
    assert found is not None
    return found._line.ask(lambda c: c.pubsub_numsub(found.keys.ready_channel))[0][1] == 1


async def until(done: Callable[[], bool]) -> None:
    over = time.monotonic() + 10
    while not done():
        assert time.monotonic() < over
        await asyncio.sleep(0.005)


def test_a_job_that_becomes_ready_wakes_who_waits_without_any_tick(
    with_redis: Any, settings: Any, room: WaitingRoom
) -> None:
    tick(settings, NEVER_MS)

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        await until(listened_to)
        await meanwhile(lambda: schedule_and_promote("a"))
        woken = await ticket.woken(10)
        room.leave(ticket)
        return woken

    assert asyncio.run(scene())


def test_what_became_ready_before_it_listened_wakes_too(with_redis: Any, settings: Any, room: WaitingRoom) -> None:
    tick(settings, NEVER_MS)
    schedule_and_promote("a")

    async def scene() -> bool:
        return await room.join(TOPIC).woken(10)

    assert asyncio.run(scene())


def test_a_lost_message_costs_a_tick(with_redis: Any, settings: Any, room: WaitingRoom) -> None:
    tick(settings, 20)
    found = engine.mirror_of("default")
    assert found is not None

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        await until(listened_to)
        found._line.ask(lambda c: c.zadd(found.keys.ready(0, TOPIC), {f"4:{TOPIC}": 1}))
        return await ticket.woken(10)

    assert asyncio.run(scene())


def test_as_many_are_woken_as_there_are_jobs_the_longest_waiting_first(
    with_redis: Any, settings: Any, room: WaitingRoom
) -> None:
    tick(settings, NEVER_MS)

    async def scene() -> list[bool]:
        tickets = [room.join(TOPIC) for _ in range(5)]
        other = room.join(OTHER)
        await until(listened_to)
        await meanwhile(lambda: schedule_and_promote("a", "b", "c"))
        first = [await ticket.woken(10) for ticket in tickets[:3]]
        rest = [await ticket.woken(0.05) for ticket in (*tickets[3:], other)]
        for ticket in (*tickets, other):
            room.leave(ticket)
        return first + rest

    assert asyncio.run(scene()) == [True] * 3 + [False] * 3


def test_who_leaves_after_being_woken_passes_it_on(room: WaitingRoom, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> bool:
        first, second = room.join(TOPIC), room.join(TOPIC)
        room.wake(TOPIC, 1)
        room.leave(first)
        woken = await second.woken(10)
        room.leave(second)
        return woken

    assert asyncio.run(scene())


def test_who_found_nothing_waits_on_at_the_head(room: WaitingRoom, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> list[bool]:
        first, second = room.join(TOPIC), room.join(TOPIC)
        room.wake(TOPIC, 1)
        assert await first.woken(10)
        room.rejoin(first)
        room.wake(TOPIC, 1)
        woken = [await first.woken(10), await second.woken(0.05)]
        room.leave(first), room.leave(second)
        return woken

    assert asyncio.run(scene()) == [True, False]


def test_an_event_loop_that_has_ended_takes_no_wake_from_others(room: WaitingRoom, settings: Any) -> None:
    tick(settings, 1)

    async def join() -> Any:
        return room.join(TOPIC)

    gone = asyncio.run(join())

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        room.wake(TOPIC, 1)
        woken = await ticket.woken(10)
        room.leave(ticket)
        return woken

    assert asyncio.run(scene())
    assert not gone.wake()


def test_without_redis_the_database_is_looked_at(settings: Any, room: WaitingRoom, transactional_db: None) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None, "GUARD_TICK_MS": 50}

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        await meanwhile(lambda: schedule(TOPIC, key="a", delay=0.2))
        return await ticket.woken(10)

    began = time.monotonic()
    assert asyncio.run(scene())
    assert time.monotonic() - began >= 0.2


def test_one_thread_listens_for_all_and_ends_when_nobody_waits(room: WaitingRoom, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> int:
        before = set(threading.enumerate())  # another test's may still listen: it stays for a minute
        tickets = [room.join(topic) for topic in (TOPIC, OTHER) for _ in range(50)]
        listening = sum(thread.name == "delaytasks-waiting" for thread in set(threading.enumerate()) - before)
        for ticket in tickets:
            room.leave(ticket)
        await until(lambda: room._thread is None)
        return listening

    assert asyncio.run(scene()) == 1
    assert conf.get().redis_url is None


def test_who_is_cancelled_in_the_moment_of_being_woken_is_gone(room: WaitingRoom, settings: Any) -> None:
    """A disconnect and a wake in the same step of the loop: the disconnect must not be swallowed."""
    tick(settings, 1)

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        waits = asyncio.ensure_future(ticket.woken(10))
        await asyncio.sleep(0.01)
        ticket._woken.set()
        waits.cancel()
        try:
            await waits
        except asyncio.CancelledError:
            room.leave(ticket)
            return True
        return False

    assert asyncio.run(scene())


def test_who_was_woken_in_vain_keeps_the_place_before_those_who_came_later(room: WaitingRoom, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> list[bool]:
        tickets = [room.join(TOPIC) for _ in range(3)]
        room.wake(TOPIC, 3)
        for ticket in tickets:
            assert await ticket.woken(10)
            room.rejoin(ticket)
        room.wake(TOPIC, 1)
        woken = [await ticket.woken(0.05) for ticket in tickets]
        for ticket in tickets:
            room.leave(ticket)
        return woken

    assert asyncio.run(scene()) == [True, False, False]


def test_nobody_is_woken_for_a_topic_that_is_paused(with_redis: Any, settings: Any, room: WaitingRoom) -> None:
    tick(settings, 20)
    schedule_and_promote("a")
    Topic.objects.update_or_create(name=TOPIC, defaults={"paused": True})
    bells.forget_terms()

    async def scene() -> bool:
        ticket = room.join(TOPIC)
        await until(listened_to)
        woken = await ticket.woken(0.3)
        room.leave(ticket)
        return woken

    assert not asyncio.run(scene())
    bells.forget_terms()


def test_a_thread_that_cannot_be_started_now_is_started_by_the_next(
    room: WaitingRoom, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick(settings, 1)

    async def scene() -> bool:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
            with pytest.raises(RuntimeError):
                room.join(TOPIC)
        assert room._awaited() == []
        ticket = room.join(TOPIC)
        listens = room._thread is not None and room._thread.is_alive()
        room.leave(ticket)
        return listens

    assert asyncio.run(scene())
