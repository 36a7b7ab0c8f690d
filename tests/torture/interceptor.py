"""Takes every message between whoever rings and the workers, on the real queue of a real broker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

QUEUE = "celery"
PAST_US = "celery\x06\x163"  # kombu's list for the next priority: workers take from it, and we do not
# Redis serves who has waited longest. A worker asks anew every second; so many of us have waited for longer.
HANDS = 50

Deliver = Callable[[float], list[float]]  # when it came -> when to deliver it, for each copy; by time.monotonic()


class Interceptor:
    """While it runs, each message is delivered as `deliver` says. What it holds at the end is delivered then."""

    def __init__(self, url: str, deliver: Deliver) -> None:
        self._url, self._deliver = url, deliver
        self._held: list[tuple[float, bytes]] = []
        self.taken = 0

    async def run(self, over: threading.Event) -> None:
        async with Redis.from_url(self._url) as redis:
            hands = [asyncio.create_task(self._take(redis)) for _ in range(HANDS)]
            while not over.is_set():
                await self._pass_on(redis, until=time.monotonic())
                await asyncio.sleep(0.02)
            for hand in hands:
                hand.cancel()
            await asyncio.gather(*hands, return_exceptions=True)
            await self._pass_on(redis, until=float("inf"))

    async def _take(self, redis: Any) -> None:
        while True:
            found = await redis.brpop([QUEUE], timeout=0)
            self.taken += 1
            self._held += [(at, found[1]) for at in self._deliver(time.monotonic())]

    async def _pass_on(self, redis: Any, *, until: float) -> None:
        ripe = [message for at, message in self._held if at <= until]
        self._held = [(at, message) for at, message in self._held if at > until]
        for message in ripe:
            with contextlib.suppress(RedisError):  # lost as well, then
                await redis.lpush(PAST_US, message)


@contextlib.contextmanager
def intercepted(url: str, deliver: Deliver) -> Iterator[Interceptor]:
    """Inside the block all messages of the broker at `url` go through an Interceptor."""
    interceptor, over = Interceptor(url, deliver), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(interceptor.run(over)), name="interceptor", daemon=True)
    thread.start()
    try:
        yield interceptor
    finally:
        over.set()
        thread.join()
