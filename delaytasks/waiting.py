"""Where consumers wait for ready jobs: no thread, no database connection and no poll for each of them.

One thread in each process listens for all of them. promote_due.lua says "3:orders" in the moment
in which three jobs became ready, and as many of those who wait are woken, the longest waiting
first. Whoever is woken looks, and waits on if somebody else was quicker. Once in a guard tick
the thread also asks how much is ready, in case a message was lost; without Redis that is all.
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

from . import bells, conf, engine
from .exceptions import MirrorDown
from .mirror.index import Listener, Mirror
from .without_mirror import WithoutMirror

logger = logging.getLogger("delaytasks")
STAYS_SECONDS = 60.0  # the thread goes on listening this long when nobody waits: the next one is most likely near
WITHOUT_COUNT = 8  # how many are woken where all that is known is that something is ready
AGAIN_MS = 50  # and when it is looked at again


_numbers = itertools.count()


class Ticket:
    """One consumer's place in the queue for a topic: made and waited for in an event loop, woken from any thread."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.number = next(_numbers)  # in the order of coming
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()

    def wake(self) -> bool:
        """False if its event loop has ended: nobody waits there any more."""
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            return False
        return True

    async def woken(self, seconds: float) -> bool:
        """True as soon as it is woken, False after `seconds`."""
        try:
            async with asyncio.timeout(seconds):  # wait_for() of Python 3.11 may swallow a cancellation
                await self._woken.wait()
        except TimeoutError:
            return False
        self._woken.clear()
        return True


class WaitingRoom:
    """Those who wait for ready jobs of one database in this process."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._queues: dict[str, deque[Ticket]] = defaultdict(deque)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def join(self, topic: str) -> Ticket:
        """A place at the end of the topic's queue. Look for jobs after joining, not before, or one may be missed."""
        ticket = Ticket(topic)
        self.rejoin(ticket)
        return ticket

    def rejoin(self, ticket: Ticket) -> None:
        """Go on waiting after being woken, at the place that one had. Then look."""
        with self._lock:
            self._begin_to_listen()
            queue = self._queues[ticket.topic]
            place = next((i for i, other in enumerate(queue) if other.number > ticket.number), len(queue))
            queue.insert(place, ticket)

    def leave(self, ticket: Ticket) -> None:
        """Give the place up. A wake that came too late to be of use is passed on."""
        with self._lock:
            waits = ticket in self._queues.get(ticket.topic, ())
            if waits:
                self._queues[ticket.topic].remove(ticket)
                self._forget_if_empty(ticket.topic)
        if not waits:
            self.wake(ticket.topic, 1)

    def wake(self, topic: str, count: int) -> None:
        """Wake up to `count` of those who wait for the topic, the longest waiting first."""
        while count > 0 and (ticket := self._pop(topic)):
            count -= ticket.wake()

    def _pop(self, topic: str) -> Ticket | None:
        with self._lock:
            if topic not in self._queues:
                return None
            ticket = self._queues[topic].popleft()
            self._forget_if_empty(topic)
            return ticket

    def _forget_if_empty(self, topic: str) -> None:
        if not self._queues[topic]:
            del self._queues[topic]

    def _awaited(self) -> list[str]:
        with self._lock:
            return list(self._queues)

    def _begin_to_listen(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # a fork leaves it behind
            thread = threading.Thread(target=_Ears(self._using, self).listen, name="delaytasks-waiting", daemon=True)
            thread.start()
            self._thread = thread

    def _may_end(self) -> bool:
        """True, and the next who joins starts another thread, if nobody waits."""
        with self._lock:
            if not self._queues:
                self._thread = None
            return self._thread is None


class _Ears:
    """What the thread does: hears what became ready, looks by itself now and then, wakes."""

    def __init__(self, using: str, room: WaitingRoom) -> None:
        self._using, self._room = using, room
        self._heard: Mirror | None = None
        self._listener: Listener | None = None
        self._looked = 0.0
        self._wanted = time.monotonic()  # when somebody last waited

    def listen(self) -> None:
        rest_ms = 0
        while not self._leaves():
            try:
                for message in self._messages(rest_ms):
                    count, _, topic = message.partition(":")
                    self._room.wake(topic, int(count))
                rest_ms = self._look()
            except MirrorDown:
                rest_ms = 0  # it counts as down now: the database is looked at
            except (DatabaseError, InterfaceError) as error:
                logger.warning("waiting consumers: the database refused a look, trying again: %s", error)
                rest_ms = conf.get().guard_tick_ms
            except Exception:
                logger.exception("waiting consumers: a look failed, trying again")
                rest_ms = conf.get().guard_tick_ms
        if self._listener is not None:
            self._listener.close()

    def _leaves(self) -> bool:
        now = time.monotonic()
        if self._room._awaited():
            self._wanted = now
        return now - self._wanted > STAYS_SECONDS and self._room._may_end()

    def _messages(self, rest_ms: int) -> Sequence[str]:
        """What is said during the rest; without Redis nothing is."""
        found = engine.mirror_of(self._using)
        if found is None or found.down:
            time.sleep(rest_ms / 1000)
            return []
        if self._listener is None or found is not self._heard:
            self._heard, self._listener = found, found.listen_for_ready()
            self._looked = 0.0  # what became ready before we listened
            return self._listener.wait(0)
        return self._listener.wait(rest_ms)

    def _look(self) -> int:
        """Wake for what is ready, once in a guard tick; how many ms to rest."""
        tick_ms = conf.get().guard_tick_ms
        since_ms = int((time.monotonic() - self._looked) * 1000)
        found = engine.mirror_of(self._using)
        if found is None or found.down:
            return self._look_without_mirror(tick_ms)
        if since_ms < tick_ms:
            return tick_ms - since_ms
        for topic, count in found.ready_counts(self._open()).items():
            self._room.wake(topic, count)
        self._looked = time.monotonic()
        return tick_ms

    def _look_without_mirror(self, tick_ms: int) -> int:
        awaited = self._open()
        if not awaited:
            return tick_ms
        try:
            promotion = WithoutMirror(self._using).promote_due(0, awaited)
            rest_ms = tick_ms if promotion.next_ms is None else promotion.next_ms - engine.now_ms(self._using)
        finally:
            connections[self._using].close()
        for topic in promotion.topics:
            self._room.wake(topic, WITHOUT_COUNT)
        return AGAIN_MS if promotion.topics else max(AGAIN_MS, min(rest_ms, tick_ms))

    def _open(self) -> list[str]:
        """The awaited topics that are not paused: of those nothing is given out, so nobody is to look."""
        try:
            return [topic for topic in self._room._awaited() if not bells.terms(self._using, topic).paused]
        finally:
            connections[self._using].close()


@functools.cache
def room(using: str) -> WaitingRoom:
    """The waiting room of this process for a database."""
    return WaitingRoom(using)
