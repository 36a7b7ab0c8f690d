"""A batcher: one thread that does the work of many concurrent requests in groups.

The thread takes whatever has arrived, does it as one group, answers each request, and looks again. So a single request
waits for nobody, and under load the groups grow by themselves. docs/decisions/0022-group-commit-over-http.md has the
rules and their reasons.
"""

import asyncio
import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

from django.db import InterfaceError, InternalError, OperationalError, connections

from ...db.retries import is_retryable, waited_too_long

logger = logging.getLogger("delaytasks")
MAX_GROUP = 200  # most items in a group; larger groups were measured to be slower
MAX_QUEUED_BYTES = 16 * 1024 * 1024  # total size of the requests that wait in one batcher
MAX_SHARE_BYTES = MAX_QUEUED_BYTES // 2  # for one caller, who must not fill the batcher for the others
CLOSE_SECONDS = 1.0  # idle time after which a batcher closes its database connection
CONNECTION_SECONDS = 60.0  # age at which a busy batcher replaces its database connection
CHECK_SECONDS = 0.1  # idle time after which a connection is checked before use
IDLE_SECONDS = 60.0  # idle time after which a batcher ends its thread


class QueueFull(Exception):
    """The batcher has no room for the request: those of this caller, or of all callers, exceed the limit of bytes."""


class FallBack(Exception):
    """The batcher did nothing for this item: pass the request to Django's view, which also explains refusals."""


class Item(NamedTuple):
    """One request in a batcher.

    work   argument of the batcher's function
    name   two items with the same name are never in one group; None: no such rule
    size   bytes of the request
    """

    work: Any
    name: Hashable
    size: int
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"


class Batcher:
    """Run submitted items in groups on one thread.

    do_group   function of a list of `work`; returns an answer for each: a value, or an exception for the caller to
               raise. If it raises, it must have done nothing
    undo       function of a `work` and its answer, called in a thread if the request was cancelled before it got the
               answer; None: such an answer is dropped
    part_of    function of a `work`: of the items that arrive together, those with the same result are a group; None:
               all of them are. A group is answered before the next one is done
    """

    def __init__(
        self,
        name: str,
        do_group: Callable[[list[Any]], Sequence[Any]],
        undo: Callable[[Any, Any], None] | None = None,
        part_of: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self._name, self._do_group, self._undo = name, do_group, undo
        self._part_of = part_of or (lambda _: None)
        self._queues: dict[str, deque[Item]] = {}  # by share, in the order of their next turns
        self._bytes = 0
        self._share_bytes: Counter[str] = Counter()  # size of the queued items by share
        self._arrived = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connected_until = self._used_at = 0.0

    async def submit(self, work: Any, *, share: str, name: Hashable = None, size: int = 0) -> Any:
        """Queue an item and wait for its answer. Raises QueueFull, FallBack, or the exception that is the answer.

        share   identity of the caller: each caller has a queue, and the batcher takes one item of each queue in turn
        """
        loop = asyncio.get_running_loop()
        item = Item(work, name, size, loop, loop.create_future())
        with self._arrived:
            if self._bytes + size > MAX_QUEUED_BYTES or self._share_bytes[share] + size > MAX_SHARE_BYTES:
                raise QueueFull
            self._bytes += size
            self._share_bytes[share] += size
            self._queues.setdefault(share, deque()).append(item)
            self._ensure_thread()
            self._arrived.notify()
        try:
            return await item.future
        except asyncio.CancelledError:
            if not item.future.cancelled():  # there is an answer, which is not delivered
                _undo_in_thread(self._undo, [(item, item.future.exception() or item.future.result())])
            raise

    def _ensure_thread(self) -> None:
        if self._thread is None or not self._thread.is_alive():  # threads do not survive a fork
            self._thread = threading.Thread(target=self._run, name=f"delaytasks-{self._name}", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        try:
            while items := self._next_items():
                for group in self._groups(items):
                    _resolve(group, self._answers(group), self._undo)
        finally:
            connections.close_all()

    def _next_items(self) -> list[Item]:
        """Wait for items and return them. An empty list means that the thread must end."""
        with self._arrived:
            while self._wait():
                if items := self._take():
                    return items
            self._thread = None
            return []

    def _groups(self, items: Sequence[Item]) -> Iterable[list[Item]]:
        groups: defaultdict[Hashable, list[Item]] = defaultdict(list)
        for item in items:
            groups[self._part_of(item.work)].append(item)
        return groups.values()

    def _wait(self) -> bool:
        """Wait until there are items. Return False after IDLE_SECONDS without any."""
        if not self._arrived.wait_for(lambda: self._queues, CHECK_SECONDS):
            _return_pooled(connections.all(initialized_only=True))
            if not self._arrived.wait_for(lambda: self._queues, CLOSE_SECONDS):
                connections.close_all()
                self._arrived.wait_for(lambda: self._queues, IDLE_SECONDS)
        return bool(self._queues)

    def _take(self) -> list[Item]:
        """Take up to MAX_GROUP items, one of each share in turn, and no two with the same name."""
        group: list[Item] = []
        names: set[Hashable] = set()
        turns = deque(self._queues)
        while turns and len(group) < MAX_GROUP:
            share = turns.popleft()
            queue = self._queues[share]
            if queue[0].name is not None and queue[0].name in names:
                continue  # the item waits for the next group, and the later items of its caller, too
            item = queue.popleft()
            self._bytes -= item.size
            self._share_bytes[share] -= item.size
            names.add(item.name)
            if queue:
                self._queues[share] = self._queues.pop(share)  # to the end: the other callers are first next time
                turns.append(share)
            else:
                del self._queues[share], self._share_bytes[share]
            if not item.future.cancelled():  # drop a cancelled item: its client is gone
                group.append(item)
        return group

    def _answers(self, group: Sequence[Item]) -> Sequence[Any]:
        """Do a group. If it fails, do its items one by one, so that one bad item fails no other."""
        try:
            return self._do([item.work for item in group])
        except (OperationalError, InterfaceError) as error:
            if not (is_retryable(error) or waited_too_long(error)):
                return [error] * len(group)  # the database is down: one by one, all items would fail, too
            return [FallBack()] if len(group) == 1 else self._one_by_one(group)
        except Exception as error:
            if len(group) == 1:
                logger.debug("%s: left to Django's view: %r", self._name, error)
                return [FallBack()]
            return self._one_by_one(group)

    def _one_by_one(self, group: Sequence[Item]) -> list[Any]:
        return [answer for item in group for answer in self._answers([item])]

    def _do(self, works: list[Any]) -> Sequence[Any]:
        self._check_connections()
        try:
            answers = self._do_group(works)
        except InternalError:  # for example, the server is a read-only standby now
            self._connected_until = 0.0
            raise
        finally:
            _return_pooled(filter(_is_scarce, connections.all(initialized_only=True)))
            self._used_at = time.monotonic()
        assert len(answers) == len(works)
        return answers

    def _check_connections(self) -> None:
        """Close connections that are broken, or as old as CONNECTION_SECONDS.

        CONN_MAX_AGE does not apply: with 0, Django's default, each group would connect again.
        """
        now = time.monotonic()
        if now >= self._connected_until:
            connections.close_all()
            self._connected_until = now + CONNECTION_SECONDS
        for connection in connections.all(initialized_only=True):
            connection.close_at = None
            connection.close_if_unusable_or_obsolete()
            idle = connection.connection is not None and now - self._used_at > CHECK_SECONDS
            if idle and not connection.is_usable():
                connection.close()


def _return_pooled(using: Iterable[Any]) -> None:
    """Return the pooled connections to their pools. Connections without a pool stay open."""
    for connection in using:
        if getattr(connection, "pool", None):
            connection.close()


def _is_scarce(connection: Any) -> bool:
    """Return whether the connection's pool has no other connection for the views.

    Otherwise the batcher keeps it: after each return to the pool, the pool checks it, which costs a round trip.
    """
    pool = getattr(connection, "pool", None)
    if not pool:
        return False
    stats = pool.get_stats()
    is_spent = stats["pool_size"] >= stats["pool_max"] and not stats["pool_available"]
    return bool(is_spent or stats.get("requests_waiting"))


Answered = Sequence[tuple[Item, Any]]  # items with their answers
Undo = Callable[[Any, Any], None] | None


def _resolve(group: Sequence[Item], answers: Sequence[Any], undo: Undo) -> None:
    """Answer the items, with one call for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Item, Any]]] = {}
    for item, answer in zip(group, answers, strict=True):
        by_loop.setdefault(item.loop, []).append((item, answer))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_set_results, pairs, undo)
        except RuntimeError:  # the loop has ended, and with it the requests
            _undo_all(undo, pairs)


def _set_results(pairs: Answered, undo: Undo) -> None:
    cancelled = []
    for item, answer in pairs:
        if item.future.done():
            cancelled.append((item, answer))
        elif isinstance(answer, Exception):
            item.future.set_exception(answer)
        else:
            item.future.set_result(answer)
    if cancelled:
        _undo_in_thread(undo, cancelled)


def _undo_in_thread(undo: Undo, pairs: Answered) -> None:
    try:
        asyncio.get_running_loop().run_in_executor(None, _undo_all, undo, pairs)
    except RuntimeError:  # the loop is about to end, and has no threads any more
        _undo_all(undo, pairs)


def _undo_all(undo: Undo, pairs: Answered) -> None:
    for item, answer in pairs:
        if undo is not None and not isinstance(answer, Exception):
            undo(item.work, answer)
