"""Both implementations of the due-job index have the same methods, and their writes never raise."""

import inspect
import re
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from delaytasks import mirror as mirrors
from delaytasks.conf import Settings
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror.base import GONE, CallResult, DueIndex, Entry, Promotion, Reservation, Settlement
from delaytasks.mirror.database import DatabaseIndex
from delaytasks.mirror.redis import client as client_module
from delaytasks.mirror.redis.index import Mirror
from tests.support.servers import free_port, wait_until

NOW = 1_893_456_000_000
METHODS = sorted(
    name for name, member in vars(DueIndex).items() if inspect.isfunction(member) and not name.startswith("_")
)

WRITES: dict[str, tuple[list[Any], Any]] = {
    "add": ([[Entry(1, "order.close", NOW)]], 0),
    "settle": ([[Settlement(1, "order.close", NOW, GONE)]], 0),
    "postpone": ([[Settlement(1, "order.close", NOW, NOW + 1)]], None),
    "count": (["promoted"], None),
    "free_slot": (["order.close", "token"], None),
}
READS: dict[str, list[Any]] = {
    "promote_due": [NOW, ["order.close"]],
    "reserve": ["order.close", 10, NOW, NOW],
    "ready_counts": [["order.close"]],
    "take_slot": ["order.close", "token", NOW, NOW + 1, 8],
    "is_superseded": ["order.close", NOW],
    "slot_tokens": ["order.close"],
    "call_runner": ["order.close", "runners", NOW, 8],
    "wait_for_ready": ["runners", "token", NOW, 100],
}


@pytest.fixture
def unreachable() -> Mirror:
    return Mirror(Settings(redis_url=f"redis://127.0.0.1:{free_port()}"))


def test_each_method_is_a_write_or_a_read() -> None:
    assert sorted(WRITES | READS) == METHODS
    assert len(METHODS) == 13


@pytest.mark.parametrize("index", [Mirror, DatabaseIndex])
@pytest.mark.parametrize("method", METHODS)
def test_an_implementation_has_the_arguments_of_the_interface(index: type, method: str) -> None:
    def arguments(owner: type) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(owner, method)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert arguments(index) == arguments(DueIndex)


@pytest.mark.parametrize("method", sorted(WRITES))
def test_a_write_to_a_mirror_that_is_down_does_not_raise(unreachable: Mirror, method: str) -> None:
    args, answer = WRITES[method]
    for _ in range(2):  # the first call fails, the second is refused
        assert getattr(unreachable, method)(*args) == answer
    assert unreachable.down


@pytest.mark.parametrize("method", ["add", "settle"])
def test_a_failed_write_is_logged_with_what_repairs_it(unreachable: Mirror, method: str, caplog) -> None:
    getattr(unreachable, method)(*WRITES[method][0])
    assert f"{method} was not written, the sweep will repair it" in caplog.text


@pytest.mark.parametrize("method", sorted(READS))
def test_a_read_from_a_mirror_that_is_down_raises(unreachable: Mirror, method: str) -> None:
    for _ in range(2):
        with pytest.raises(MirrorDown):
            getattr(unreachable, method)(*READS[method])


def test_a_read_that_fails_is_repeated_with_the_database_even_while_the_mirror_counts_as_up(
    unreachable: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirrors, "connect", lambda using: unreachable)

    def ask(index: DueIndex) -> DueIndex:
        if index is unreachable:
            raise MirrorDown("The call outlasted the pause that another thread's failure began.")
        return index

    assert isinstance(mirrors.read("default", ask), DatabaseIndex)


@pytest.mark.parametrize("method", ["add", "settle"])
def test_writing_nothing_calls_nobody(unreachable: Mirror, method: str) -> None:
    assert getattr(unreachable, method)([]) == 0
    assert not unreachable.down


def test_the_results_of_call_runner_are_the_numbers_that_its_script_returns() -> None:
    header = re.search(r"^-- RETURN\s+(.*)$", client_module.script_source("call_runner"), re.MULTILINE)
    assert header is not None
    assert re.findall(r"(\d) ", header[1] + " ") == [str(int(call)) for call in CallResult]
    assert re.search(r"0 woken, 1 send a message, 2 all slots are taken, 3 a message was sent a moment ago", header[1])


def test_gone_is_not_a_time() -> None:
    assert GONE < 0


def test_a_promotion_has_topics_the_next_due_time_and_whether_it_was_full() -> None:
    assert Promotion({"a"}, None, full=True)._fields == ("topics", "next_ms", "full")


# The mirror: many entries, several buckets


def test_more_entries_than_one_call_takes_are_written_in_several(mirror: Mirror) -> None:
    count = 4 * 1000 + 10  # over a thousand in each of four buckets
    assert mirror.add(Entry(job, "order.close", NOW + job) for job in range(count)) == count
    assert mirror.due_count() == count
    assert mirror.settle(Settlement(job, "order.close", NOW + job, GONE) for job in range(count)) == count
    assert mirror.due_count() == 0


def test_a_reservation_from_several_buckets_never_exceeds_the_count(mirror: Mirror) -> None:
    mirror.add(Entry(job, "order.close", NOW - job) for job in range(40))
    mirror.promote_due(NOW, ["order.close"])
    reserved = [mirror.reserve("order.close", 7, NOW, NOW + 5000).ids for _ in range(7)]
    assert [len(ids) for ids in reserved] == [7, 7, 7, 7, 7, 5, 0]
    assert sorted(job for ids in reserved for job in ids) == list(range(40))


def test_jobs_of_several_buckets_are_reserved_in_the_order_of_their_due_times_and_ids(mirror: Mirror) -> None:
    mirror.add(Entry(job, "order.close", NOW - 10 + job // 6) for job in range(1, 13))
    mirror.promote_due(NOW, ["order.close"])
    assert mirror.reserve("order.close", 20, NOW, NOW + 5000).ids == list(range(1, 13))


@pytest.mark.parametrize("count", [0, -1])
def test_a_count_of_zero_or_less_reserves_nothing(mirror: Mirror, count: int) -> None:
    mirror.add([Entry(1, "order.close", NOW)])
    mirror.promote_due(NOW, ["order.close"])
    assert mirror.reserve("order.close", count, NOW, NOW + 5000).ids == []
    assert mirror.ready_counts(["order.close"]) == {"order.close": 1}


def test_jobs_due_within_ahead_ms_are_reserved_with_the_time_to_wait_for(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "settings", replace(mirror.settings, ahead_ms=3))
    mirror.add([Entry(1, "a", NOW + 2), Entry(2, "a", NOW + 3), Entry(3, "a", NOW + 4)])
    assert mirror.promote_due(NOW, ["a"]) == Promotion({"a"}, NOW + 1, full=False)
    not_those_due_later = Reservation([1], NOW + 2, True, {1: NOW + 2})
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == not_those_due_later
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Reservation([2], NOW + 3, False, {2: NOW + 3})
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Reservation([], NOW)


def test_due_jobs_do_not_wait_for_jobs_that_are_due_later(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "settings", replace(mirror.settings, ahead_ms=3))
    mirror.add([Entry(1, "a", NOW + 2), Entry(2, "a", NOW), Entry(3, "a", NOW - 1)])
    mirror.promote_due(NOW, ["a"])
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Reservation([3, 2], NOW, True, {3: NOW - 1, 2: NOW})


def test_a_pass_between_two_ticks_sends_no_topics_to_redis(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    call_scripts = client_module.call_scripts

    def record(client: Any, name: str, calls: list[Any]) -> Any:
        sent.extend(calls if name == "promote_due" else ())
        return call_scripts(client, name, calls)

    monkeypatch.setattr(client_module, "call_scripts", record)
    topics = [f"topic.{n}" for n in range(100)]
    mirror.add([Entry(1, topics[7], NOW)])
    assert mirror.promote_due(NOW, topics).topics == {topics[7]}
    assert {len(keys) for keys, _ in sent} == {4}
    assert mirror.promote_due(NOW, topics, list_ready=True).topics == {topics[7]}


def test_only_the_movers_of_the_same_database_are_woken(mirror: Mirror) -> None:
    other = Mirror(mirror.settings, "other")
    with closing(mirror.listen()) as ours, closing(other.listen()) as theirs:
        for each in (ours, theirs):
            each.wait(1)  # subscribes
        other.add([Entry(1, "a", NOW)])
        wait_until(lambda: theirs.wait(100), seconds=10, what="the message")
        assert [ours.wait(10) for _ in range(3)] == [[], [], []]


def test_the_promotions_of_several_buckets_are_merged(mirror: Mirror) -> None:
    mirror.add([Entry(0, "a", NOW), Entry(1, "b", NOW), Entry(2, "a", NOW + 9), Entry(3, "b", NOW + 5)])
    assert mirror.promote_due(NOW, ["a"]) == Promotion({"a", "b"}, NOW + 5, full=False)
    assert mirror.promote_due(NOW + 9, ["a"]) == Promotion({"a", "b"}, None, full=False)


def test_a_malformed_entry_is_logged_and_counted(mirror: Mirror, redis_server, caplog) -> None:
    with redis_server.client() as client:
        client.zadd(mirror.keys.due(0), {"nonsense": NOW - 1})
        mirror.add([Entry(4, "order.close", NOW)])
        assert mirror.promote_due(NOW, []).topics == {"order.close"}
    assert "1 malformed entries were set aside" in caplog.text
    assert mirror.counters()["set_aside"] == 1
