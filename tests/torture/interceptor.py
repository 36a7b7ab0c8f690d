"""Intercept all messages between senders and workers on the queue of a real broker."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

QUEUE = "celery"
NEXT_PRIORITY = "celery\x06\x163"  # kombu's list for the next priority, which only workers consume
# Redis serves the client that has waited longest. Workers reconnect every second; these have waited longer.
READERS = 50

Deliver = Callable[[float], list[float]]  # arrival time -> delivery time of each copy; by time.monotonic()


class Interceptor:
    """Delivers each message at the times that `deliver` returns; the rest when it ends."""

    def __init__(self, url: str, deliver: Deliver) -> None:
        self._url, self._deliver = url, deliver
        self._held: list[tuple[float, bytes]] = []
        self.taken = 0

    async def run(self, over: threading.Event) -> None:
        async with Redis.from_url(self._url) as redis:
            readers = [asyncio.create_task(self._take(redis)) for _ in range(READERS)]
            while not over.is_set():
                await self._pass_on(redis, until=time.monotonic())
                await asyncio.sleep(0.02)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            await self._pass_on(redis, until=float("inf"))

    async def _take(self, redis: Any) -> None:
        while True:
            found = await redis.brpop([QUEUE], timeout=0)
            self.taken += 1
            self._held += [(at, found[1]) for at in self._deliver(time.monotonic())]

    async def _pass_on(self, redis: Any, *, until: float) -> None:
        due = [message for at, message in self._held if at <= until]
        self._held = [(at, message) for at, message in self._held if at > until]
        for message in due:
            with contextlib.suppress(RedisError):  # the message is lost, like the others
                await redis.lpush(NEXT_PRIORITY, message)


@contextlib.contextmanager
def intercepted(url: str, deliver: Deliver) -> Iterator[Interceptor]:
    """Send all messages of the broker at `url` through an Interceptor inside the block."""
    interceptor, over = Interceptor(url, deliver), threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(interceptor.run(over)), name="interceptor", daemon=True)
    thread.start()
    try:
        yield interceptor
    finally:
        over.set()
        thread.join()
