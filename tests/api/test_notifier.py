"""Waiting consumers are woken by a message when a job becomes ready; a lost message costs a guard tick."""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest
from django.db import connections

from delaytasks import conf, databases, handlers, mirror, schedule, topics
from delaytasks.api import notifier
from delaytasks.api.notifier import WaitingConsumers
from delaytasks.models import Topic
from delaytasks.worker.mover import Mover

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.on_both]
TOPIC, OTHER = "mail.send", "sms.send"
NEVER_MS = 60_000  # a guard tick that no test lives to see


@pytest.fixture
def room(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[WaitingConsumers]:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {TOPIC: {}, OTHER: {}}}
    monkeypatch.setattr(notifier, "IDLE_SECONDS", 0.0)
    made = WaitingConsumers("default")
    yield made
    settings.DELAYTASKS = {**settings.DELAYTASKS, "GUARD_TICK_MS": 1}
    thread = made._thread
    if thread is not None:
        found = mirror.connect("default")
        if found is not None:  # it may be in the middle of a long rest
            found._redis.ask(lambda c: c.publish(found.keys.ready_channel, "0:end"))
        thread.join(10)
        assert not thread.is_alive()


def tick(settings: Any, ms: int) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "GUARD_TICK_MS": ms}


def schedule_and_promote(*keys: str) -> None:
    """Schedule jobs due now, and run a mover without handlers until they are ready."""
    for key in keys:
        schedule(TOPIC, key=key, delay=0)
    places, using = mirror.choose("default"), "default"
    mover = Mover(lambda: places, lambda: databases.now_ms(using), handlers.handled, lambda topic: None, 1)
    while places.ready_counts([TOPIC]).get(TOPIC, 0) < len(keys):
        mover.move_due()


def in_thread(action: Callable[[], object]) -> Coroutine[Any, Any, None]:
    """Run the action in a thread with its own database connection."""

    def act() -> None:
        try:
            action()
        finally:
            connections.close_all()

    return asyncio.to_thread(act)


@pytest.fixture
def is_listening(room: WaitingConsumers, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Return a function: is the thread subscribed, and has it counted the jobs that were ready before?"""
    polled, poll = threading.Event(), notifier._ListenLoop._poll

    def poll_and_tell(loop: Any) -> int:
        rest_ms = poll(loop)
        polled.set()
        return rest_ms

    monkeypatch.setattr(notifier._ListenLoop, "_poll", poll_and_tell)
    return polled.is_set


async def until(done: Callable[[], bool]) -> None:
    over = time.monotonic() + 10
    while not done():
        assert time.monotonic() < over
        await asyncio.sleep(0.005)


def test_ready_job_wakes_a_waiting_consumer_without_a_tick(
    with_redis: Any, settings: Any, room: WaitingConsumers, is_listening: Callable[[], bool]
) -> None:
    tick(settings, NEVER_MS)

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        await until(is_listening)
        await in_thread(lambda: schedule_and_promote("a"))
        woken = await waiter.wait_for_wake(10)
        room.leave(waiter)
        return woken

    assert asyncio.run(scene())


def test_job_that_was_ready_before_the_subscription_wakes_too(
    with_redis: Any, settings: Any, room: WaitingConsumers
) -> None:
    tick(settings, NEVER_MS)
    schedule_and_promote("a")

    async def scene() -> bool:
        return await room.join(TOPIC).wait_for_wake(10)

    assert asyncio.run(scene())


def test_lost_message_delays_the_wake_by_a_tick(
    with_redis: Any, settings: Any, room: WaitingConsumers, is_listening: Callable[[], bool]
) -> None:
    tick(settings, 20)
    found = mirror.connect("default")
    assert found is not None

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        await until(is_listening)
        found._redis.ask(lambda c: c.zadd(found.keys.ready(0, TOPIC), {f"4:{TOPIC}": 1}))
        return await waiter.wait_for_wake(10)

    assert asyncio.run(scene())


def test_as_many_consumers_are_woken_as_jobs_are_ready_longest_waiting_first(
    with_redis: Any, settings: Any, room: WaitingConsumers, is_listening: Callable[[], bool]
) -> None:
    tick(settings, NEVER_MS)

    async def scene() -> list[bool]:
        tickets = [room.join(TOPIC) for _ in range(5)]
        other = room.join(OTHER)
        await until(is_listening)
        await in_thread(lambda: schedule_and_promote("a", "b", "c"))
        first = [await waiter.wait_for_wake(10) for waiter in tickets[:3]]
        rest = [await waiter.wait_for_wake(0.05) for waiter in (*tickets[3:], other)]
        for waiter in (*tickets, other):
            room.leave(waiter)
        return first + rest

    assert asyncio.run(scene()) == [True] * 3 + [False] * 3


def test_consumer_that_leaves_after_its_wake_wakes_the_next(room: WaitingConsumers, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> bool:
        first, second = room.join(TOPIC), room.join(TOPIC)
        room.wake(TOPIC, 1)
        room.leave(first)
        woken = await second.wait_for_wake(10)
        room.leave(second)
        return woken

    assert asyncio.run(scene())


def test_consumer_that_found_no_job_waits_again_at_the_head(room: WaitingConsumers, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> list[bool]:
        first, second = room.join(TOPIC), room.join(TOPIC)
        room.wake(TOPIC, 1)
        assert await first.wait_for_wake(10)
        room.rejoin(first)
        room.wake(TOPIC, 1)
        woken = [await first.wait_for_wake(10), await second.wait_for_wake(0.05)]
        room.leave(first), room.leave(second)
        return woken

    assert asyncio.run(scene()) == [True, False]


def test_ended_event_loop_does_not_consume_a_wake(room: WaitingConsumers, settings: Any) -> None:
    tick(settings, 1)

    async def join() -> Any:
        return room.join(TOPIC)

    gone = asyncio.run(join())

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        room.wake(TOPIC, 1)
        woken = await waiter.wait_for_wake(10)
        room.leave(waiter)
        return woken

    assert asyncio.run(scene())
    assert notifier._wake([gone]) == 0


def test_without_redis_the_database_is_polled(settings: Any, room: WaitingConsumers, transactional_db: None) -> None:
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None, "GUARD_TICK_MS": 50}

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        await in_thread(lambda: schedule(TOPIC, key="a", delay=0.2))
        return await waiter.wait_for_wake(10)

    began = time.monotonic()
    assert asyncio.run(scene())
    assert time.monotonic() - began >= 0.2


def test_one_thread_listens_for_all_consumers_and_ends_when_idle(room: WaitingConsumers, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> int:
        before = set(threading.enumerate())  # another test's may still listen: it stays for a minute
        tickets = [room.join(topic) for topic in (TOPIC, OTHER) for _ in range(50)]
        listening = sum(thread.name == "delaytasks-waiting" for thread in set(threading.enumerate()) - before)
        for waiter in tickets:
            room.leave(waiter)
        await until(lambda: room._thread is None)
        return listening

    assert asyncio.run(scene()) == 1
    assert conf.get().redis_url is None


def test_consumer_cancelled_while_being_woken_is_removed(room: WaitingConsumers, settings: Any) -> None:
    """If a disconnect and a wake happen in the same step of the loop, the disconnect must not be lost."""
    tick(settings, 1)

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        waits = asyncio.ensure_future(waiter.wait_for_wake(10))
        await asyncio.sleep(0.01)
        waiter.set_woken()
        waits.cancel()
        try:
            await waits
        except asyncio.CancelledError:
            room.leave(waiter)
            return True
        return False

    assert asyncio.run(scene())


def test_consumer_woken_in_vain_stays_ahead_of_later_ones(room: WaitingConsumers, settings: Any) -> None:
    tick(settings, 1)

    async def scene() -> list[bool]:
        tickets = [room.join(TOPIC) for _ in range(3)]
        room.wake(TOPIC, 3)
        for waiter in tickets:
            assert await waiter.wait_for_wake(10)
            room.rejoin(waiter)
        room.wake(TOPIC, 1)
        woken = [await waiter.wait_for_wake(0.05) for waiter in tickets]
        for waiter in tickets:
            room.leave(waiter)
        return woken

    assert asyncio.run(scene()) == [True, False, False]


def test_paused_topic_wakes_no_consumer(
    with_redis: Any, settings: Any, room: WaitingConsumers, is_listening: Callable[[], bool]
) -> None:
    tick(settings, 20)
    schedule_and_promote("a")
    Topic.objects.update_or_create(name=TOPIC, defaults={"paused": True})
    topics.clear_cache()

    async def scene() -> bool:
        waiter = room.join(TOPIC)
        await until(is_listening)
        woken = await waiter.wait_for_wake(0.3)
        room.leave(waiter)
        return woken

    assert not asyncio.run(scene())


def test_thread_that_failed_to_start_is_started_by_the_next_consumer(
    room: WaitingConsumers, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick(settings, 1)

    async def scene() -> bool:
        with monkeypatch.context() as full:
            full.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("no thread")))
            with pytest.raises(RuntimeError):
                room.join(TOPIC)
        assert room.waiting_topics() == []
        waiter = room.join(TOPIC)
        listens = room._thread is not None and room._thread.is_alive()
        room.leave(waiter)
        return listens

    assert asyncio.run(scene())
