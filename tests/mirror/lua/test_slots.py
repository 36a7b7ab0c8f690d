"""take_slot.lua and call_runner.lua: a topic's run slots are leases, and one message is sent at a time."""

import pytest

from delaytasks.mirror.base import CallResult
from tests.mirror.lua.bucket import NOW, TOPIC, Bucket
from tests.support.servers import wait_until

LEASE = 30_000
UNTIL = NOW + LEASE


# take_slot


def test_no_more_slots_are_taken_than_the_topic_has(bucket: Bucket) -> None:
    assert [bucket.take_slot(token, limit=2) for token in "abc"] == [1, 1, 0]
    assert bucket.slots() == {"a": UNTIL, "b": UNTIL}


def test_a_slot_expires(bucket: Bucket) -> None:
    bucket.take_slot("killed", until=UNTIL)
    assert bucket.take_slot("next", now=UNTIL - 1) == 0
    assert bucket.take_slot("next", now=UNTIL, until=UNTIL + LEASE) == 1
    assert bucket.slots() == {"next": UNTIL + LEASE}


def test_the_holder_renews_its_slot_though_all_are_taken(bucket: Bucket) -> None:
    bucket.take_slot("a")
    assert bucket.take_slot("a", now=NOW + 1, until=UNTIL + 1) == 1
    assert bucket.slots() == {"a": UNTIL + 1}


def test_an_expired_slot_that_another_runner_took_cannot_be_renewed(bucket: Bucket) -> None:
    bucket.take_slot("slow", until=UNTIL)
    bucket.take_slot("other", now=UNTIL, until=UNTIL + LEASE)
    assert bucket.take_slot("slow", now=UNTIL + 1, until=UNTIL + LEASE) == 0


def test_holders_keep_their_slots_when_staff_lower_the_limit(bucket: Bucket) -> None:
    for token in "abc":
        bucket.take_slot(token, limit=3)
    assert bucket.take_slot("a", until=UNTIL + 1, limit=1) == 1
    assert bucket.take_slot("d", limit=1) == 0


def test_a_topic_without_slots_never_runs(bucket: Bucket) -> None:
    assert bucket.take_slot("a", limit=0) == 0
    assert bucket.call_runner(limit=0) == CallResult.BUSY


# call_runner


def test_a_waiting_runner_is_woken_for_the_topic_and_no_message_is_sent(bucket: Bucket) -> None:
    bucket.wait_for_ready("a", NOW + 200)
    assert bucket.call_runner() == CallResult.WOKEN
    assert bucket.woken("a") == [TOPIC]
    assert not bucket.client.exists(bucket.keys.pending_message(TOPIC))


def test_no_runner_is_woken_for_a_topic_whose_slots_are_all_taken(bucket: Bucket) -> None:
    bucket.take_slot("b")
    bucket.wait_for_ready("a", NOW + 200)
    assert bucket.call_runner() == CallResult.BUSY
    assert bucket.woken("a") == []
    assert bucket.call_runner(limit=2) == CallResult.WOKEN, "it still waits, and now the topic has a slot"


def test_a_runner_is_woken_once_and_the_one_that_waits_longest_first(bucket: Bucket) -> None:
    bucket.wait_for_ready("short", NOW + 10)
    bucket.wait_for_ready("long", NOW + 200)
    assert bucket.call_runner() == CallResult.WOKEN
    assert (bucket.woken("long"), bucket.woken("short")) == ([TOPIC], [])
    assert [bucket.call_runner(), bucket.call_runner()] == [CallResult.WOKEN, CallResult.SEND]
    assert bucket.woken("short") == [TOPIC]


def test_a_runner_whose_wait_has_ended_is_not_woken(bucket: Bucket) -> None:
    bucket.wait_for_ready("gone", NOW)
    assert bucket.call_runner() == CallResult.SEND
    assert bucket.woken("gone") == []


def test_a_wake_that_no_runner_reads_expires(bucket: Bucket) -> None:
    bucket.wait_for_ready("a", NOW + 200)
    bucket.call_runner()
    assert 0 < bucket.client.pttl(bucket.keys.wake_prefix + "a") <= 60_000


def test_only_the_first_call_sends_a_message(bucket: Bucket) -> None:
    assert [bucket.call_runner() for _ in range(3)] == [CallResult.SEND, CallResult.SENT, CallResult.SENT]


def test_without_a_runner_a_message_is_sent_again_after_the_timeout(bucket: Bucket) -> None:
    assert bucket.call_runner(timeout=40) == CallResult.SEND
    wait_until(lambda: bucket.call_runner(timeout=60_000) == CallResult.SEND, seconds=5, what="a second message")
    assert 80 < bucket.client.pttl(bucket.keys.pending_message(TOPIC)) <= 120_000


def test_a_message_that_nobody_answers_is_sent_again_later_and_later(bucket: Bucket) -> None:
    sent = [
        ms for ms in range(0, 4001, 50) if bucket.call_runner(NOW + ms, timeout=1000, resend=100) == CallResult.SEND
    ]
    assert sent == [0, 100, 300, 700, 1500, 2500, 3500]


def test_the_message_of_an_older_worker_is_waited_for(bucket: Bucket) -> None:
    bucket.client.set(bucket.keys.pending_message(TOPIC), 1, px=60_000)
    assert bucket.call_runner(NOW + 30_000, timeout=1000, resend=100) == CallResult.SENT


def test_after_a_runner_took_a_slot_a_message_may_be_sent_again(bucket: Bucket) -> None:
    bucket.call_runner(limit=2)
    bucket.take_slot("a", limit=2)
    assert bucket.call_runner(limit=2) == CallResult.SEND


def test_a_runner_that_no_message_has_started_leaves_the_message_unanswered(bucket: Bucket) -> None:
    bucket.call_runner(limit=2)
    bucket.take_slot("woken", limit=2, message="")
    assert bucket.call_runner(limit=2) == CallResult.SENT


def test_only_the_answer_to_the_last_message_lets_the_next_one_be_sent_at_once(bucket: Bucket) -> None:
    assert bucket.call_runner(NOW, limit=3, resend=100) == CallResult.SEND
    assert bucket.call_runner(NOW + 100, limit=3, resend=100) == CallResult.SEND
    bucket.take_slot("a", limit=3, message=NOW + 1)  # the first one, which was sent a moment after it was asked for
    assert bucket.call_runner(NOW + 101, limit=3, resend=100) == CallResult.SENT
    bucket.take_slot("b", limit=3, message=NOW + 102)
    assert bucket.call_runner(NOW + 103, limit=3, resend=100) == CallResult.SEND


def test_after_a_runner_renewed_its_slot_no_message_is_sent_again(bucket: Bucket) -> None:
    bucket.take_slot("a", limit=2)
    bucket.call_runner(limit=2)
    bucket.take_slot("a", limit=2)
    assert bucket.call_runner(limit=2) == CallResult.SENT


def test_a_runner_that_finds_no_free_slot_clears_the_pending_message(bucket: Bucket) -> None:
    bucket.take_slot("a", limit=2)
    bucket.call_runner(limit=2)
    bucket.take_slot("b", limit=2)
    bucket.client.set(bucket.keys.pending_message(TOPIC), 1)
    assert bucket.take_slot("late", limit=2) == 0
    assert not bucket.client.exists(bucket.keys.pending_message(TOPIC))


def test_no_message_is_sent_while_all_slots_are_taken(bucket: Bucket) -> None:
    bucket.take_slot("a", limit=2)
    bucket.take_slot("b", limit=2)
    assert bucket.call_runner(limit=2) == CallResult.BUSY
    assert not bucket.client.exists(bucket.keys.pending_message(TOPIC)), "no message is pending"


def test_a_killed_workers_slot_expires_with_its_lease(bucket: Bucket) -> None:
    bucket.take_slot("killed", until=UNTIL)
    assert bucket.call_runner(UNTIL - 1) == CallResult.BUSY
    assert bucket.call_runner(UNTIL) == CallResult.SEND
    assert bucket.slots() == {}


@pytest.mark.parametrize("limit", [1, 3])
def test_one_free_slot_is_enough_to_send_a_message(bucket: Bucket, limit: int) -> None:
    for token in "abc"[: limit - 1]:
        bucket.take_slot(token, limit=limit)
    assert bucket.call_runner(limit=limit) == CallResult.SEND
