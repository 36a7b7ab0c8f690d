"""Batchers: concurrent requests become groups, and no request harms another."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import DataError, InternalError, OperationalError, connections
from django.db.backends.signals import connection_created

from delaytasks.api.batching import batchers
from delaytasks.api.batching.batchers import Batcher, FallBack, QueueFull


class Recorder:
    """A batcher's function that waits for `go` and records its groups. It answers an item with the item."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.go = threading.Event()
        self.groups: list[list[Any]] = []
        self.bad: dict[Any, Exception] = {}

    def __call__(self, works: list[Any]) -> Sequence[Any]:
        self.begun.set()
        self.go.wait(10)
        self.groups.append(works)
        for work in works:
            if work in self.bad:
                raise self.bad[work]
        return works


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


def submit_all(recorder: Recorder, items: list[tuple[Any, str, Any]], size: int = 1) -> list[Any]:
    """Submit ("first", ...) alone, then the items (work, share, name) while it is being done. Return the answers."""

    async def run() -> list[Any]:
        batcher = Batcher("test", recorder)
        first = asyncio.ensure_future(batcher.submit("first", share="x"))
        await asyncio.to_thread(recorder.begun.wait, 10)
        rest = [asyncio.ensure_future(batcher.submit(w, share=s, name=n, size=size)) for w, s, n in items]
        await asyncio.sleep(0)
        recorder.go.set()
        return list(await asyncio.gather(first, *rest, return_exceptions=True))

    return asyncio.run(run())[1:]


def test_requests_that_arrive_during_a_group_are_the_next_group(recorder: Recorder) -> None:
    answers = submit_all(recorder, [(n, "a", None) for n in range(5)])
    assert recorder.groups == [["first"], [0, 1, 2, 3, 4]]
    assert answers == [0, 1, 2, 3, 4]


class WatchedCondition(threading.Condition):
    """The condition of a batcher. `delayed` are the time-outs of waits that began although a request was there."""

    def __init__(self, batcher: Batcher) -> None:
        super().__init__()
        self._batcher = batcher
        self.delayed: list[float | None] = []

    def wait(self, timeout: float | None = None) -> bool:
        if self._batcher._queues:
            self.delayed.append(timeout)
        return super().wait(timeout)


def test_single_request_waits_for_nobody(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """No timer is set between a request and its group, on the event loop or in the thread, and no clock advances."""
    recorder.go.set()
    batcher, delays = Batcher("test", recorder), list[str]()
    batcher._arrived = watched = WatchedCondition(batcher)
    for name in ("CHECK_SECONDS", "CLOSE_SECONDS", "IDLE_SECONDS"):  # idle times: a request ends them
        monkeypatch.setattr(batchers, name, 3600.0)
    stopped = time.monotonic()

    async def asyncio_sleep(*_: Any) -> None:
        delays.append("asyncio.sleep")

    async def run() -> None:
        loop: Any = asyncio.get_running_loop()
        for name in ("call_later", "call_at"):
            monkeypatch.setattr(loop, name, lambda *_, name=name: delays.append(name))
        for number in range(3):
            assert await batcher.submit(number, share="a") == number

    with monkeypatch.context() as patch:
        patch.setattr(batchers.time, "monotonic", lambda: stopped)
        patch.setattr(batchers.time, "sleep", lambda _: delays.append("sleep"))
        patch.setattr(asyncio, "sleep", asyncio_sleep)
        caller = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
        caller.start()
        caller.join(30)
        assert (caller.is_alive(), delays, watched.delayed) == (False, [], [])
    assert recorder.groups == [[0], [1], [2]]


def test_same_name_is_in_a_group_only_once_and_stays_in_order(recorder: Recorder) -> None:
    answers = submit_all(recorder, [("a1", "a", "key"), ("a2", "a", "key"), ("b1", "b", "key"), ("c1", "c", "other")])
    assert recorder.groups[1:] == [["a1", "c1"], ["b1"], ["a2"]] or recorder.groups[1:] == [
        ["a1", "c1"],
        ["a2"],
        ["b1"],
    ]
    assert answers == ["a1", "a2", "b1", "c1"]


def test_callers_take_turns(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "MAX_GROUP", 4)
    submit_all(recorder, [*((f"a{n}", "a", None) for n in range(6)), ("b0", "b", None), ("c0", "c", None)])
    assert recorder.groups[1] == ["a0", "b0", "c0", "a1"]


def test_items_of_a_group_are_answered_before_the_next_group_is_done() -> None:
    arrived, answered, order = threading.Event(), threading.Event(), list[Any]()

    def do_group(works: list[str]) -> list[str]:
        arrived.wait(10)
        if works[0][0] == "b":
            assert answered.wait(10)
        order.append(works)
        return works

    async def run() -> None:
        batcher = Batcher("test", do_group, part_of=lambda work: work[0])
        first = asyncio.ensure_future(batcher.submit("x", share="x"))
        await asyncio.sleep(0)
        rest = [asyncio.ensure_future(batcher.submit(work, share="x")) for work in ("a1", "b1", "a2", "b2")]
        await asyncio.sleep(0)
        arrived.set()
        assert [await first, await rest[0], await rest[2]] == ["x", "a1", "a2"]
        answered.set()
        assert [await rest[1], await rest[3]] == ["b1", "b2"]

    asyncio.run(run())
    assert order == [["x"], ["a1", "a2"], ["b1", "b2"]]


def test_bad_item_hurts_no_other(recorder: Recorder) -> None:
    recorder.bad = {"bad": DataError("unsupported Unicode escape sequence")}
    answers = submit_all(recorder, [("good", "a", None), ("bad", "b", None), ("other", "c", None)])
    assert answers[0] == "good"
    assert answers[2] == "other"
    assert isinstance(answers[1], FallBack)


def test_lost_database_is_told_to_all_without_a_repetition(recorder: Recorder) -> None:
    recorder.bad = {"bad": OperationalError("server closed the connection")}
    answers = submit_all(recorder, [("good", "a", None), ("bad", "b", None)])
    assert [type(answer) for answer in answers] == [OperationalError, OperationalError]
    assert recorder.groups == [["first"], ["good", "bad"]]


def test_queue_is_bounded_in_bytes(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "MAX_QUEUED_BYTES", 25)
    answers = submit_all(recorder, [(n, "a", None) for n in range(3)], size=10)
    assert answers[:2] == [0, 1]
    assert isinstance(answers[2], QueueFull)


def test_no_caller_fills_the_queue_alone(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "MAX_QUEUED_BYTES", 60)
    monkeypatch.setattr(batchers, "MAX_SHARE_BYTES", 30)
    items = [(n, "greedy", None) for n in range(5)] + [("modest", "other", None)]
    answers = submit_all(recorder, items, size=10)
    assert [type(answer) for answer in answers[3:]] == [QueueFull, QueueFull, str]
    assert answers[:3] == [0, 1, 2]


def test_what_is_done_no_longer_counts_for_its_caller(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batchers, "MAX_SHARE_BYTES", 10)
    recorder.go.set()

    async def run() -> list[Any]:
        batcher = Batcher("test", recorder)
        return [await batcher.submit(n, share="a", size=10) for n in range(3)]

    assert asyncio.run(run()) == [0, 1, 2]


def test_request_whose_client_is_gone_is_not_begun(recorder: Recorder) -> None:
    async def run() -> None:
        batcher = Batcher("test", recorder)
        first = asyncio.ensure_future(batcher.submit("first", share="x"))
        await asyncio.to_thread(recorder.begun.wait, 10)
        gone, stays = (asyncio.ensure_future(batcher.submit(w, share="a")) for w in ("gone", "stays"))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        recorder.go.set()
        await asyncio.gather(first, stays)

    asyncio.run(run())
    assert recorder.groups == [["first"], ["stays"]]


@pytest.fixture
def opened() -> Iterator[list[Any]]:
    """The connections that the batcher "test" has opened."""
    found: list[Any] = []

    def note(connection: Any, **_: object) -> None:
        if threading.current_thread().name == "delaytasks-test":
            found.append(connection)

    connection_created.connect(note)
    yield found
    connection_created.disconnect(note)


def do_in_turn(do_group: Any, *works: Any) -> list[Any]:
    """Let a batcher do the works one after the other. Return the answers; an exception is the answer of what failed."""

    async def run() -> list[Any]:
        batcher = Batcher("test", do_group)
        return [(await asyncio.gather(batcher.submit(w, share="x"), return_exceptions=True))[0] for w in works]

    return asyncio.run(run())


def connect(works: list[Any]) -> Sequence[Any]:
    connections["default"].ensure_connection()
    return works


@pytest.mark.parametrize(("seconds", "connects"), [(60.0, 1), (0.0, 3)])
def test_groups_share_a_connection_for_some_time(
    seconds: float, connects: int, transactional_db: None, monkeypatch: pytest.MonkeyPatch, opened: list[Any]
) -> None:
    """Also with CONN_MAX_AGE = 0, Django's default."""
    monkeypatch.setattr(batchers, "CONNECTION_SECONDS", seconds)
    do_in_turn(connect, 1, 2, 3)
    assert len(opened) == connects


class FakePool:
    """The pool of a connection, as far as a batcher asks it."""

    def __init__(self, **stats: int) -> None:
        self._stats = {"pool_max": 10, "pool_size": 10, "pool_available": 3} | stats

    def get_stats(self) -> dict[str, int]:
        return self._stats


@pytest.mark.parametrize(
    ("pool", "is_kept"),
    [
        (FakePool(), True),
        (FakePool(pool_available=0), False),
        (FakePool(pool_size=4, pool_available=0), True),
        (FakePool(requests_waiting=1), False),
    ],
    ids=["others are free", "others are lent", "the pool may grow", "a view waits"],
)
def test_busy_lane_keeps_a_pooled_connection_unless_it_is_missing_in_the_pool(
    pool: FakePool, is_kept: bool, transactional_db: None, monkeypatch: pytest.MonkeyPatch, opened: list[Any]
) -> None:
    monkeypatch.setattr(batchers, "CHECK_SECONDS", 60.0)  # it stays busy
    monkeypatch.setattr(type(connections["default"]), "pool", pool, raising=False)
    kept: list[bool] = []

    def do_group(works: list[Any]) -> Sequence[Any]:
        kept.append(connections["default"].connection is not None)
        return connect(works)

    do_in_turn(do_group, 1, 2)
    assert (kept, len(opened)) == ([False, is_kept], 1 if is_kept else 2)


def test_idle_lane_returns_a_pooled_connection(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(connections["default"]), "pool", FakePool(), raising=False)
    batcher, connection = Batcher("test", connect), connections["default"]
    closed = threading.Event()
    monkeypatch.setattr(type(connection), "close", lambda self: closed.set())

    async def run() -> None:
        await batcher.submit(1, share="a")
        await asyncio.to_thread(closed.wait, 10)

    asyncio.run(run())
    assert closed.is_set()


@pytest.mark.parametrize(("idle_seconds", "connects"), [(0.0, 2), (60.0, 1)])
def test_an_idle_connection_is_checked_before_a_group_uses_it(
    idle_seconds: float, connects: int, transactional_db: None, monkeypatch: pytest.MonkeyPatch, opened: list[Any]
) -> None:
    monkeypatch.setattr(batchers, "CHECK_SECONDS", idle_seconds)
    monkeypatch.setattr(type(connections["default"]), "is_usable", lambda self: False)
    do_in_turn(connect, 1, 2)
    assert len(opened) == connects


def test_after_an_internal_error_a_group_connects_again(transactional_db: None, opened: list[Any]) -> None:
    """As after a switchover: the old server goes on as a read-only standby."""

    def do_group(works: list[Any]) -> Sequence[Any]:
        connect(works)
        if works == ["refused"]:
            raise InternalError("cannot execute INSERT in a read-only transaction")
        return works

    answers = do_in_turn(do_group, "first", "refused", "last")
    assert (answers[0], type(answers[1]), answers[2], len(opened)) == ("first", FallBack, "last", 2)
