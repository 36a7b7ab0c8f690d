"""Both places answer the same questions, and telling them never hurts."""

import inspect
import re
from dataclasses import replace
from typing import Any

import pytest

from delaytasks.conf import Settings
from delaytasks.exceptions import MirrorDown
from delaytasks.mirror import scripts
from delaytasks.mirror.index import Mirror
from delaytasks.places import GONE, Call, Entry, Handful, Places, Promotion, Settlement
from delaytasks.without_mirror import WithoutMirror
from tests.servers import free_port

NOW = 1_893_456_000_000
VERBS = sorted(name for name, verb in vars(Places).items() if inspect.isfunction(verb) and not name.startswith("_"))

TELLING: dict[str, tuple[list[Any], Any]] = {
    "add": ([[Entry(1, "order.close", NOW)]], 0),
    "settle": ([[Settlement(1, "order.close", NOW, GONE)]], 0),
    "count": (["promoted"], None),
    "free_slot": (["order.close", "token"], None),
}
ASKING: dict[str, list[Any]] = {
    "promote_due": [NOW, ["order.close"]],
    "reserve": ["order.close", 10, NOW, NOW],
    "ready_counts": [["order.close"]],
    "take_slot": ["order.close", "token", NOW, NOW + 1, 8],
    "call_runner": ["order.close", "crew", NOW, 8],
    "linger": ["crew", "token", NOW, 100],
}


@pytest.fixture
def unreachable() -> Mirror:
    return Mirror(Settings(redis_url=f"redis://127.0.0.1:{free_port()}"))


def test_every_verb_either_tells_or_asks() -> None:
    assert sorted(TELLING | ASKING) == VERBS
    assert len(VERBS) == 10


@pytest.mark.parametrize("place", [Mirror, WithoutMirror])
@pytest.mark.parametrize("verb", VERBS)
def test_a_place_takes_each_verb_with_the_same_arguments(place: type, verb: str) -> None:
    def arguments(owner: type) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(owner, verb)).parameters.values()
        return [(p.name, p.kind, p.default) for p in parameters]

    assert arguments(place) == arguments(Places)


@pytest.mark.parametrize("verb", sorted(TELLING))
def test_telling_a_mirror_that_is_down_does_no_harm(unreachable: Mirror, verb: str) -> None:
    args, answer = TELLING[verb]
    for _ in range(2):  # once it fails, once it is left alone
        assert getattr(unreachable, verb)(*args) == answer
    assert unreachable.down


@pytest.mark.parametrize("verb", ["add", "settle"])
def test_what_could_not_be_told_is_logged_with_what_repairs_it(unreachable: Mirror, verb: str, caplog) -> None:
    getattr(unreachable, verb)(*TELLING[verb][0])
    assert f"{verb} not told, the sweep will repair it" in caplog.text


@pytest.mark.parametrize("verb", sorted(ASKING))
def test_asking_a_mirror_that_is_down_says_so(unreachable: Mirror, verb: str) -> None:
    for _ in range(2):
        with pytest.raises(MirrorDown):
            getattr(unreachable, verb)(*ASKING[verb])


@pytest.mark.parametrize("verb", ["add", "settle"])
def test_telling_of_nothing_asks_nobody(unreachable: Mirror, verb: str) -> None:
    assert getattr(unreachable, verb)([]) == 0
    assert not unreachable.down


def test_the_answers_of_call_runner_are_the_numbers_that_its_script_returns() -> None:
    said = re.search(r"^-- RETURN\s+(.*)$", scripts.source("call_runner"), re.MULTILINE)
    assert said is not None
    assert re.findall(r"(\d) ", said[1] + " ") == [str(int(call)) for call in Call]
    assert re.search(r"0 woken, 1 ring a bell, 2 all slots are taken, 3 rung a moment ago", said[1])


def test_gone_is_no_time() -> None:
    assert GONE < 0


def test_a_promotion_names_topics_the_next_due_time_and_whether_there_is_more() -> None:
    assert Promotion({"a"}, None, full=True)._fields == ("topics", "next_ms", "full")


# The mirror's own side: many entries, several buckets


def test_more_entries_than_one_call_takes_are_told_in_several(mirror: Mirror) -> None:
    count = 4 * 1000 + 10  # over a thousand in each of four buckets
    assert mirror.add(Entry(job, "order.close", NOW + job) for job in range(count)) == count
    assert mirror.due_count() == count
    assert mirror.settle(Settlement(job, "order.close", NOW + job, GONE) for job in range(count)) == count
    assert mirror.due_count() == 0


def test_what_is_reserved_from_several_buckets_never_exceeds_what_was_asked_for(mirror: Mirror) -> None:
    mirror.add(Entry(job, "order.close", NOW - job) for job in range(40))
    mirror.promote_due(NOW, ["order.close"])
    found = [mirror.reserve("order.close", 7, NOW, NOW + 5000).ids for _ in range(7)]
    assert [len(ids) for ids in found] == [7, 7, 7, 7, 7, 5, 0]
    assert sorted(job for ids in found for job in ids) == list(range(40))


@pytest.mark.parametrize("count", [0, -1])
def test_who_reserves_none_gets_none(mirror: Mirror, count: int) -> None:
    mirror.add([Entry(1, "order.close", NOW)])
    mirror.promote_due(NOW, ["order.close"])
    assert mirror.reserve("order.close", count, NOW, NOW + 5000).ids == []
    assert mirror.ready_counts(["order.close"]) == {"order.close": 1}


def test_what_is_due_in_a_moment_is_handed_out_with_the_time_for_which_to_wait(
    mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "settings", replace(mirror.settings, ahead_ms=3))
    mirror.add([Entry(1, "a", NOW + 2), Entry(2, "a", NOW + 3), Entry(3, "a", NOW + 4)])
    assert mirror.promote_due(NOW, ["a"]) == Promotion({"a"}, NOW + 1, full=False)
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Handful([1], NOW + 2), "not those that are due even later"
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Handful([2], NOW + 3)
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Handful([], NOW)


def test_what_is_due_is_not_kept_waiting_by_what_will_be(mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror, "settings", replace(mirror.settings, ahead_ms=3))
    mirror.add([Entry(1, "a", NOW + 2), Entry(2, "a", NOW), Entry(3, "a", NOW - 1)])
    mirror.promote_due(NOW, ["a"])
    assert mirror.reserve("a", 9, NOW, NOW + 5000) == Handful([3, 2], NOW)


def test_the_promotion_of_several_buckets_is_one_answer(mirror: Mirror) -> None:
    mirror.add([Entry(0, "a", NOW), Entry(1, "b", NOW), Entry(2, "a", NOW + 9), Entry(3, "b", NOW + 5)])
    assert mirror.promote_due(NOW, ["a"]) == Promotion({"a", "b"}, NOW + 5, full=False)
    assert mirror.promote_due(NOW + 9, ["a"]) == Promotion({"a", "b"}, None, full=False)


def test_what_is_set_aside_leaves_a_log_line_and_a_metric(mirror: Mirror, redis_server, caplog) -> None:
    with redis_server.client() as client:
        client.zadd(mirror.keys.due(0), {"nonsense": NOW - 1})
        mirror.add([Entry(4, "order.close", NOW)])
        assert mirror.promote_due(NOW, []).topics == {"order.close"}
    assert "1 entries without a topic were set aside" in caplog.text
    assert mirror.counters()["set_aside"] == 1
