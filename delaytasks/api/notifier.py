"""Wake waiting consumers when jobs become ready, without a thread, connection or poll per consumer.

One thread per process listens for all consumers. promote_due.lua publishes "3:orders" when three jobs become ready,
and the three consumers that waited longest are woken. A woken consumer tries to reserve, and waits again if
others have taken the jobs. Once per guard tick the thread also counts the ready jobs, in case a message was lost.
Without Redis, it polls the database instead.
"""

import asyncio
import functools
import itertools
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence

from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, mirror, topics
from ..exceptions import MirrorDown
from ..mirror.database import DatabaseIndex
from ..mirror.redis.index import Listener, Mirror

logger = logging.getLogger("delaytasks")
IDLE_SECONDS = 60.0  # the thread ends after this time without waiting consumers
WAKE_COUNT = 8  # consumers to wake when the number of ready jobs is unknown
MIN_POLL_MS = 50  # shortest rest between two polls of the database


_numbers = itertools.count()


class Waiter:
    """A waiting consumer of a topic, created and awaited in an event loop, and woken from any thread."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = next(_numbers)  # order of arrival
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> bool:
        """Wake the consumer. Return False if its event loop has ended."""
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return False
        return True

    async def wait_for_wake(self, seconds: float) -> bool:
        """Wait until the consumer is woken. Return False if it was not woken within `seconds`."""
        try:
            async with asyncio.timeout(seconds):  # asyncio.wait_for() of Python 3.11 can swallow a cancellation
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class WaitingConsumers:
    """Waiting consumers of one database in this process, queued by topic."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._queues: dict[str, deque[Waiter]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def join(self, topic: str) -> Waiter:
        """Add a consumer at the end of the topic's queue. The caller tries to reserve afterwards: see rejoin()."""
        waiter = Waiter(topic)
        self.rejoin(waiter)
        return waiter

    def rejoin(self, waiter: Waiter) -> None:
        """Put a woken consumer back at its former place in the queue.

        The caller tries to reserve afterwards: a job that became ready before would not wake the consumer.
        """
        with self._lock:
            self._ensure_thread()
            queue = self._queues[waiter.topic]
            place = next((i for i, other in enumerate(queue) if other.number > waiter.number), len(queue))
            queue.insert(place, waiter)

    def leave(self, waiter: Waiter) -> None:
        """Remove a consumer. If it is no longer in the queue, because it was woken, wake the next one instead."""
        with self._lock:
            is_waiting = waiter in self._queues.get(waiter.topic, ())
            if is_waiting:
                self._queues[waiter.topic].remove(waiter)
                self._drop_if_empty(waiter.topic)
        if not is_waiting:
            self.wake(waiter.topic, 1)

    def wake(self, topic: str, count: int) -> None:
        """Wake up to `count` consumers of the topic, the longest waiting first."""
        while count > 0 and (waiter := self._pop(topic)):
            count -= waiter.wake()

    def _pop(self, topic: str) -> Waiter | None:
        with self._lock:
            if topic not in self._queues:
                return None
            waiter = self._queues[topic].popleft()
            self._drop_if_empty(topic)
            return waiter

    def _drop_if_empty(self, topic: str) -> None:
        if not self._queues[topic]:
            del self._queues[topic]

    def _waiting_topics(self) -> list[str]:
        with self._lock:
            return list(self._queues)

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            thread = threading.Thread(
                target=_ListenLoop(self._using, self).listen, name="delaytasks-waiting", daemon=True
            )
            thread.start()
            self._thread = thread

    def _stop_if_idle(self) -> bool:
        """Return True if no consumer waits: the thread must end, and the next join() starts a new one."""
        with self._lock:
            if not self._queues:
                self._thread = None
            return self._thread is None


class _ListenLoop:
    """The listening thread: receives messages, polls once per guard tick, and wakes consumers."""

    def __init__(self, using: str, consumers: WaitingConsumers) -> None:
        self._using, self._consumers = using, consumers
        self._mirror: Mirror | None = None
        self._listener: Listener | None = None
        self._polled_at = 0.0
        self._last_waited_at = time.monotonic()  # when a consumer last waited

    def listen(self) -> None:
        rest_ms = 0
        while not self._should_stop():
            try:
                for message in self._messages(rest_ms):
                    count, _, topic = message.partition(":")
                    self._consumers.wake(topic, int(count))
                rest_ms = self._poll()
            except MirrorDown:
                rest_ms = 0  # the mirror is marked as down now: poll the database
            except (DatabaseError, InterfaceError) as error:
                logger.warning("Notifier: polling the database failed, retrying: %s", error)
                rest_ms = conf.get().guard_tick_ms
            except Exception:
                logger.exception("Notifier: polling failed, retrying")
                rest_ms = conf.get().guard_tick_ms
        if self._listener is not None:
            self._listener.close()

    def _should_stop(self) -> bool:
        now = time.monotonic()
        if self._consumers._waiting_topics():
            self._last_waited_at = now
        return now - self._last_waited_at > IDLE_SECONDS and self._consumers._stop_if_idle()

    def _messages(self, rest_ms: int) -> Sequence[str]:
        """Wait up to `rest_ms` for messages and return them, or an empty list if there are none or Redis is down."""
        index = mirror.connect(self._using)
        if index is None or index.down:
            time.sleep(rest_ms / 1000)
            return []
        if self._listener is None or index is not self._mirror:
            self._mirror, self._listener = index, index.listen_for_ready()
            self._polled_at = 0.0  # poll at once: jobs may have become ready before the subscription
            return self._listener.wait(0)
        return self._listener.wait(rest_ms)

    def _poll(self) -> int:
        """Wake the consumers of topics with ready jobs, once per guard tick. Return the ms until the next poll."""
        tick_ms = conf.get().guard_tick_ms
        since_ms = int((time.monotonic() - self._polled_at) * 1000)
        index = mirror.connect(self._using)
        if index is None or index.down:
            return self._poll_database(tick_ms)
        if since_ms < tick_ms:
            return tick_ms - since_ms
        for topic, count in index.ready_counts(self._unpaused_topics()).items():
            self._consumers.wake(topic, count)
        self._polled_at = time.monotonic()
        return tick_ms

    def _poll_database(self, tick_ms: int) -> int:
        names = self._unpaused_topics()
        if not names:
            return tick_ms
        try:
            promotion = DatabaseIndex(self._using).promote_due(0, names)
            rest_ms = tick_ms if promotion.next_ms is None else promotion.next_ms - databases.now_ms(self._using)
        finally:
            connections[self._using].close()
        for topic in promotion.topics:
            self._consumers.wake(topic, WAKE_COUNT)
        return MIN_POLL_MS if promotion.topics else max(MIN_POLL_MS, min(rest_ms, tick_ms))

    def _unpaused_topics(self) -> list[str]:
        """Return the topics with waiting consumers, except paused topics, whose jobs are not given out."""
        try:
            waiting = self._consumers._waiting_topics()
            return [topic for topic in waiting if not topics.topic_settings(self._using, topic).paused]
        finally:
            connections[self._using].close()


@functools.cache
def waiting_consumers(using: str) -> WaitingConsumers:
    """Return the waiting consumers of a database in this process."""
    return WaitingConsumers(using)
