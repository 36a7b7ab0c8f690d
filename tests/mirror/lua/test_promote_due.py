"""promote_due.lua: due jobs become ready, oldest first, one batch; none is early and none blocks the others."""

import pytest

from tests.mirror.lua.bucket import GRACE, NOW, OTHER, TOPIC, At, Bucket

LATER = NOW + 60_000


@pytest.mark.parametrize(
    ("before", "now", "after", "answer"),
    [
        pytest.param(None, NOW, None, [0, -1, 0], id="nowhere"),
        pytest.param(At("due", NOW), NOW, At("ready", NOW), [1, -1, 0, TOPIC], id="due-now"),
        pytest.param(At("due", NOW - 9), NOW, At("ready", NOW - 9), [1, -1, 0, TOPIC], id="due-before"),
        pytest.param(At("due", NOW + 1), NOW, At("due", NOW + 1), [0, NOW + 1, 0], id="due-in-a-millisecond"),
        pytest.param(At("ready", NOW), NOW, At("ready", NOW), [0, -1, 0], id="ready"),
        pytest.param(
            At("due", NOW + GRACE), NOW + GRACE - 1, At("due", NOW + GRACE), [0, NOW + GRACE, 0], id="reserved-in-grace"
        ),
        pytest.param(
            At("due", NOW + GRACE),
            NOW + GRACE,
            At("ready", NOW + GRACE),
            [1, -1, 0, TOPIC],
            id="reserved-by-a-dead-worker",
        ),
    ],
)
def test_a_job_becomes_ready_when_it_is_due_and_not_a_millisecond_before(
    bucket: Bucket, before: At | None, now: int, after: At | None, answer: list
) -> None:
    bucket.put(1, before)
    assert bucket.promote(now) == answer
    assert bucket.where(1) == after


def test_the_answer_has_the_next_due_time_and_each_topic_with_new_ready_jobs_once(bucket: Bucket) -> None:
    for job, topic in [(1, TOPIC), (2, OTHER), (3, TOPIC)]:
        bucket.put(job, At("due", NOW), topic)
    bucket.put(4, At("due", LATER), "seat.free")
    moved, next_due, set_aside, *topics = bucket.promote()
    assert (moved, next_due, set_aside, sorted(topics)) == (3, LATER, 0, [TOPIC, OTHER])


def test_jobs_of_an_unknown_topic_become_ready_too(bucket: Bucket) -> None:
    bucket.put(1, At("due", NOW), OTHER)
    assert bucket.promote(known=[TOPIC]) == [1, -1, 0, OTHER]
    assert bucket.where(1, OTHER) == At("ready", NOW)


def test_known_topics_may_be_given_in_any_order(bucket: Bucket) -> None:
    names = ["a", "b", "c"]
    for job, topic in enumerate(names):
        bucket.put(job, At("due", NOW), topic)
    bucket.promote(known=["c", "a", "b"])
    assert [bucket.where(job, topic) for job, topic in enumerate(names)] == [At("ready", NOW)] * 3


def test_on_request_the_answer_also_names_known_topics_that_had_ready_jobs_each_once(bucket: Bucket) -> None:
    bucket.put(1, At("ready", NOW))
    bucket.put(2, At("due", NOW))
    bucket.put(3, At("ready", NOW), OTHER)
    bucket.put(4, At("ready", NOW), "seat.free")
    assert sorted(bucket.promote(known=[TOPIC, OTHER, "empty"], list_ready=True)[3:]) == [TOPIC, OTHER]
    assert bucket.promote(known=[TOPIC, OTHER, "empty"]) == [0, -1, 0]


def test_topics_that_ever_had_a_ready_job_are_stored(bucket: Bucket) -> None:
    bucket.put(1, At("due", NOW), OTHER)
    bucket.put(2, At("due", LATER))
    bucket.promote()
    assert bucket.client.smembers(bucket.keys.topics(0)) == {OTHER}


def test_promoted_jobs_are_counted(bucket: Bucket) -> None:
    bucket.add_all((job, NOW) for job in range(3))
    bucket.promote()
    bucket.promote()
    assert bucket.counters() == {"promoted": 3}


# The batch


def test_a_batch_moves_the_oldest_jobs_first(bucket: Bucket) -> None:
    bucket.add_all((job, NOW - job) for job in range(5))
    assert bucket.promote(batch=2) == [2, NOW - 2, 0, TOPIC]
    assert sorted(bucket.ready().values()) == [NOW - 4, NOW - 3]


@pytest.mark.parametrize(("jobs", "full"), [(1, False), (2, True), (3, True)])
def test_a_promotion_is_full_when_its_batch_was(bucket: Bucket, jobs: int, full: bool) -> None:
    bucket.add_all((job, NOW) for job in range(jobs))
    assert bucket.promotion(batch=2).full is full


def test_the_largest_batch_that_the_setting_allows_fits_on_the_lua_stack(bucket: Bucket) -> None:
    for start in range(0, 4000, 1000):
        bucket.add_all((job, NOW) for job in range(start, start + 1000))
    assert bucket.promote(batch=3000)[0] == 3000
    assert (len(bucket.due()), len(bucket.ready())) == (1000, 3000)


def test_of_many_jobs_with_one_due_time_none_is_lost_between_batches(bucket: Bucket) -> None:
    bucket.add_all((job, NOW) for job in range(20))
    for ready in (3, 6, 9, 12, 15, 18, 20):
        bucket.promote(batch=3)
        assert len(bucket.ready()) == ready
        assert all(bucket.where(job) for job in range(20)), "no job was lost"


# Malformed members


MALFORMED = {
    "empty": "",
    "no-colon": "7",
    "no-topic": "7:",
    "no-number": "seven:order.close",
    "no-id": ":order.close",
    "negative": "-7:order.close",
    "blank-before": " 7:order.close",
    "beyond-any-id": f"{2**63}:order.close",
    "5000-digits": "9" * 5000 + ":order.close",
}


@pytest.mark.parametrize("member", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_member_is_set_aside_and_blocks_no_job(bucket: Bucket, member: str) -> None:
    bucket.client.zadd(bucket.due_key, {member: NOW - 10})
    bucket.put(1, At("due", NOW))
    assert bucket.promote(batch=2) == [2, -1, 1, TOPIC]
    assert bucket.where(1) == At("ready", NOW)
    assert bucket.client.zrange(bucket.keys.set_aside(0), 0, -1) == [member]
    assert bucket.counters() == {"promoted": 2, "set_aside": 1}
    assert bucket.promote() == [0, -1, 0], "it does not come back"


def test_of_many_malformed_members_the_last_thousand_are_kept_and_no_job_is_blocked(bucket: Bucket) -> None:
    bucket.client.zadd(bucket.due_key, {f"odd {n}": NOW - 3000 + n for n in range(2500)})
    bucket.put(1, At("due", NOW))
    assert [bucket.promotion(batch=1000).full for _ in range(3)] == [True, True, False]
    set_aside = bucket.client.zrange(bucket.keys.set_aside(0), 0, -1)
    assert (len(set_aside), set_aside[0], set_aside[-1]) == (1000, "odd 1500", "odd 2499")
    assert bucket.where(1) == At("ready", NOW)
    assert bucket.counters()["set_aside"] == 2500


def test_promoting_notifies_no_mover(bucket, published) -> None:
    bucket.put(1, At("due", NOW))
    bucket.put(2, At("due", LATER))
    bucket.promote()
    assert published() == []


# Notifications


def test_each_topic_with_new_ready_jobs_is_published_with_their_number(bucket: Bucket) -> None:
    pubsub = bucket.client.pubsub(ignore_subscribe_messages=True)
    pubsub.subscribe(bucket.keys.ready_channel)
    pubsub.get_message(timeout=1)  # the subscription's confirmation
    bucket.add_all((job, NOW) for job in range(3))
    bucket.put(7, At("due", NOW), OTHER)
    bucket.put(8, At("due", LATER), OTHER)
    bucket.promote(known=[TOPIC])
    messages = {pubsub.get_message(timeout=1)["data"] for _ in range(2)}
    assert messages == {f"3:{TOPIC}", f"1:{OTHER}"}
    bucket.promote(known=[TOPIC])
    assert pubsub.get_message(timeout=0.05) is None
    pubsub.close()
