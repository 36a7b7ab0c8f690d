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
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from contextlib import suppress

from django.db import DatabaseError, InterfaceError, connections

from .. import conf, databases, mirror, topics
from ..exceptions import MirrorDown
from ..mirror.database import DatabaseIndex
from ..mirror.redis.index import Listener, Mirror

logger = logging.getLogger("delaytasks")
IDLE_SECONDS = 60.0  # the thread ends after this time without waiting consumers
WAKE_COUNT = 8  # consumers to wake when the number of ready jobs is unknown
MIN_POLL_MS = 50  # shortest rest between two polls of the database
BUSY_SECONDS = 0.02  # messages that follow one another within this time are gathered
GATHERED = 0.5  # messages are gathered for this part of AHEAD_MS, by which jobs become ready before they are due


_numbers = itertools.count()


class Waiter:
    """A waiting consumer of a topic, created and awaited in an event loop, and woken from any thread."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = next(_numbers)  # order of arrival
        self.loop = asyncio.get_running_loop()
        self._is_woken = False
        self._waiting: asyncio.Future[None] | None = None

    def set_woken(self) -> None:
        """Wake the consumer. Must be called in its event loop."""
        self._is_woken = True
        self._end_wait()

    async def wait_for_wake(self, seconds: float) -> bool:
        """Wait until the consumer is woken. Return False if it was not woken within `seconds`."""
        if not self._is_woken:
            self._waiting = self.loop.create_future()
            timer = self.loop.call_later(max(0.0, seconds), self._end_wait)  # a third of the cost of asyncio.timeout()
            try:
                await self._waiting
            finally:
                timer.cancel()
        was_woken, self._is_woken = self._is_woken, False
        return was_woken

    def _end_wait(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)


def _wake(waiters: Sequence[Waiter]) -> int:
    """Wake these consumers, with one call for each event loop. Return the number of those whose loop is running."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Waiter]] = defaultdict(list)
    for waiter in waiters:
        by_loop[waiter.loop].append(waiter)
    woken = 0
    for loop, of_loop in by_loop.items():
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_set_woken, of_loop)
            woken += len(of_loop)
    return woken


def _set_woken(waiters: Sequence[Waiter]) -> None:
    for waiter in waiters:
        waiter.set_woken()


class WaitingConsumers:
    """Waiting consumers of one database in this process, queued by topic."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._queues: dict[str, deque[Waiter]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def join(self, topic: str) -> Waiter:
        """Add a consumer at the end of the topic's queue. Then the caller must try to reserve: see rejoin()."""
        waiter = Waiter(topic)
        self.rejoin(waiter)
        return waiter

    def rejoin(self, waiter: Waiter) -> None:
        """Put a woken consumer back at its former place in the queue.

        Then the caller must try to reserve: a job that became ready earlier does not wake the consumer.
        """
        with self._lock:
            self._ensure_thread()
            queue = self._queues[waiter.topic]
            if not queue or queue[-1].number < waiter.number:
                return queue.append(waiter)
            queue.insert(next(i for i, other in enumerate(queue) if other.number > waiter.number), waiter)

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
        while count > 0 and (waiters := self._pop(topic, count)):
            count -= _wake(waiters)

    def _pop(self, topic: str, count: int) -> list[Waiter]:
        with self._lock:
            if topic not in self._queues:
                return []
            queue = self._queues[topic]
            waiters = [queue.popleft() for _ in range(min(count, len(queue)))]
            self._drop_if_empty(topic)
            return waiters

    def _drop_if_empty(self, topic: str) -> None:
        if not self._queues[topic]:
            del self._queues[topic]

    def waiting_topics(self) -> list[str]:
        with self._lock:
            return list(self._queues)

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            thread = threading.Thread(
                target=_ListenLoop(self._using, self).listen, name="delaytasks-waiting", daemon=True
            )
            thread.start()
            self._thread = thread

    def stop_if_idle(self) -> bool:
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
        self._woken_at = 0.0  # when the last message came
        self._last_waited_at = time.monotonic()  # when a consumer last waited

    def listen(self) -> None:
        rest_ms = 0
        while not self._should_stop():
            try:
                self._wake(self._messages(rest_ms))
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

    def _wake(self, messages: Sequence[str]) -> None:
        """Wake as many consumers as these messages say. If messages come often, sleep to gather several.

        A thread that wakes up a thousand times a second would take the GIL from the event loop a thousand times.
        """
        counts: Counter[str] = Counter()
        for message in messages:
            count, _, topic = message.partition(":")
            counts[topic] += int(count)
        for topic, number in counts.items():
            self._consumers.wake(topic, number)
        if counts:
            last, self._woken_at = self._woken_at, time.monotonic()
            if self._woken_at - last < BUSY_SECONDS:
                time.sleep(conf.get().ahead_ms / 1000 * GATHERED)

    def _should_stop(self) -> bool:
        now = time.monotonic()
        if self._consumers.waiting_topics():
            self._last_waited_at = now
        return now - self._last_waited_at > IDLE_SECONDS and self._consumers.stop_if_idle()

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
            waiting = self._consumers.waiting_topics()
            return [topic for topic in waiting if not topics.topic_settings(self._using, topic).paused]
        finally:
            connections[self._using].close()


@functools.cache
def waiting_consumers(using: str) -> WaitingConsumers:
    """Return the waiting consumers of a database in this process."""
    return WaitingConsumers(using)
