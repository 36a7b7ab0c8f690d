"""take_slot.lua and call_runner.lua: a topic's run slots are leases, and a bell is rung once."""

import pytest

from delaytasks.places import Call
from tests.lua.bench import NOW, TOPIC, Bench
from tests.servers import wait_until

LEASE = 30_000
UNTIL = NOW + LEASE


# take_slot


def test_as_many_slots_are_given_as_the_topic_has(bench: Bench) -> None:
    assert [bench.take_slot(token, limit=2) for token in "abc"] == [1, 1, 0]
    assert bench.slots() == {"a": UNTIL, "b": UNTIL}


def test_a_slot_is_a_lease_and_ends_by_itself(bench: Bench) -> None:
    bench.take_slot("killed", until=UNTIL)
    assert bench.take_slot("next", now=UNTIL - 1) == 0
    assert bench.take_slot("next", now=UNTIL, until=UNTIL + LEASE) == 1
    assert bench.slots() == {"next": UNTIL + LEASE}


def test_its_holder_renews_a_slot_though_all_are_taken(bench: Bench) -> None:
    bench.take_slot("a")
    assert bench.take_slot("a", now=NOW + 1, until=UNTIL + 1) == 1
    assert bench.slots() == {"a": UNTIL + 1}


def test_who_comes_back_after_its_lease_finds_the_slot_given_to_another(bench: Bench) -> None:
    bench.take_slot("slow", until=UNTIL)
    bench.take_slot("other", now=UNTIL, until=UNTIL + LEASE)
    assert bench.take_slot("slow", now=UNTIL + 1, until=UNTIL + LEASE) == 0


def test_holders_keep_their_slots_when_staff_lower_the_number(bench: Bench) -> None:
    for token in "abc":
        bench.take_slot(token, limit=3)
    assert bench.take_slot("a", until=UNTIL + 1, limit=1) == 1
    assert bench.take_slot("d", limit=1) == 0


def test_a_topic_with_no_slots_runs_nowhere(bench: Bench) -> None:
    assert bench.take_slot("a", limit=0) == 0
    assert bench.call_runner(limit=0) == Call.BUSY


# call_runner


def test_somebody_who_lingers_is_woken_for_the_topic_and_no_bell_is_rung(bench: Bench) -> None:
    bench.linger("a", NOW + 200)
    assert bench.call_runner() == Call.WOKEN
    assert bench.woken("a") == [TOPIC]
    assert not bench.client.exists(bench.keys.bell(TOPIC))


def test_nobody_is_woken_for_a_topic_whose_slots_are_all_taken(bench: Bench) -> None:
    bench.take_slot("b")
    bench.linger("a", NOW + 200)
    assert bench.call_runner() == Call.BUSY
    assert bench.woken("a") == []
    assert bench.call_runner(limit=2) == Call.WOKEN, "it still lingers, for a topic that has a slot"


def test_a_lingerer_is_woken_once_and_the_one_that_stays_longest_first(bench: Bench) -> None:
    bench.linger("leaves soon", NOW + 10)
    bench.linger("stays", NOW + 200)
    assert bench.call_runner() == Call.WOKEN
    assert (bench.woken("stays"), bench.woken("leaves soon")) == ([TOPIC], [])
    assert [bench.call_runner(), bench.call_runner()] == [Call.WOKEN, Call.RING]
    assert bench.woken("leaves soon") == [TOPIC]


def test_who_lingered_until_now_has_left(bench: Bench) -> None:
    bench.linger("gone", NOW)
    assert bench.call_runner() == Call.RING
    assert bench.woken("gone") == []


def test_a_wake_that_nobody_takes_does_not_stay_for_ever(bench: Bench) -> None:
    bench.linger("a", NOW + 200)
    bench.call_runner()
    assert 0 < bench.client.pttl(bench.keys.wake_prefix + "a") <= 60_000


def test_a_bell_is_rung_once_however_often_it_is_asked_for(bench: Bench) -> None:
    assert [bench.call_runner() for _ in range(3)] == [Call.RING, Call.RUNG, Call.RUNG]


def test_a_bell_that_nobody_answers_is_rung_again_when_patience_is_over(bench: Bench) -> None:
    assert bench.call_runner(patience=40) == Call.RING
    wait_until(lambda: bench.call_runner(patience=60_000) == Call.RING, seconds=5, what="the bell to be rung again")
    assert 40 < bench.client.pttl(bench.keys.bell(TOPIC)) <= 60_000


def test_a_bell_is_answered_by_whoever_takes_a_slot(bench: Bench) -> None:
    bench.call_runner(limit=2)
    bench.take_slot("a", limit=2)
    assert bench.call_runner(limit=2) == Call.RING


def test_a_bell_is_not_answered_by_who_only_renews_its_slot(bench: Bench) -> None:
    bench.take_slot("a", limit=2)
    bench.call_runner(limit=2)
    bench.take_slot("a", limit=2)
    assert bench.call_runner(limit=2) == Call.RUNG


def test_a_bell_is_answered_too_by_who_finds_no_slot_and_goes_home(bench: Bench) -> None:
    bench.take_slot("a", limit=2)
    bench.call_runner(limit=2)
    bench.take_slot("b", limit=2)
    bench.client.set(bench.keys.bell(TOPIC), 1)
    assert bench.take_slot("late", limit=2) == 0
    assert not bench.client.exists(bench.keys.bell(TOPIC))


def test_no_bell_is_rung_while_all_slots_are_taken(bench: Bench) -> None:
    bench.take_slot("a", limit=2)
    bench.take_slot("b", limit=2)
    assert bench.call_runner(limit=2) == Call.BUSY
    assert not bench.client.exists(bench.keys.bell(TOPIC)), "a bell that was not rung keeps no other from ringing"


def test_a_killed_workers_slot_is_dropped_when_its_lease_is_over(bench: Bench) -> None:
    bench.take_slot("killed", until=UNTIL)
    assert bench.call_runner(UNTIL - 1) == Call.BUSY
    assert bench.call_runner(UNTIL) == Call.RING
    assert bench.slots() == {}


@pytest.mark.parametrize("limit", [1, 3])
def test_a_free_slot_is_enough_to_ring(bench: Bench, limit: int) -> None:
    for token in "abc"[: limit - 1]:
        bench.take_slot(token, limit=limit)
    assert bench.call_runner(limit=limit) == Call.RING
