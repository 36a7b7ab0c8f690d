"""promote_due.lua: what is due becomes ready, oldest first, one batch; nothing is early and nothing blocks."""

import pytest

from tests.lua.bench import GRACE, NOW, OTHER, TOPIC, At, Bench

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
            At("due", NOW + GRACE), NOW + GRACE, At("ready", NOW + GRACE), [1, -1, 0, TOPIC], id="reserved-by-the-dead"
        ),
    ],
)
def test_what_is_due_becomes_ready_and_not_a_millisecond_before(
    bench: Bench, before: At | None, now: int, after: At | None, answer: list
) -> None:
    bench.put(1, before)
    assert bench.promote(now) == answer
    assert bench.where(1) == after


def test_the_answer_names_each_topic_that_got_ready_jobs_once_and_the_next_due_time(bench: Bench) -> None:
    for job, topic in [(1, TOPIC), (2, OTHER), (3, TOPIC)]:
        bench.put(job, At("due", NOW), topic)
    bench.put(4, At("due", LATER), "seat.free")
    moved, head, aside, *topics = bench.promote()
    assert (moved, head, aside, sorted(topics)) == (3, LATER, 0, [TOPIC, OTHER])


def test_a_topic_that_is_unknown_here_becomes_ready_too_and_is_left_to_others(bench: Bench) -> None:
    bench.put(1, At("due", NOW), OTHER)
    assert bench.promote(known=[TOPIC]) == [1, -1, 0, OTHER]
    assert bench.where(1, OTHER) == At("ready", NOW)


def test_the_known_topics_are_matched_with_their_keys_whatever_their_order(bench: Bench) -> None:
    names = ["a", "b", "c"]
    for job, topic in enumerate(names):
        bench.put(job, At("due", NOW), topic)
    bench.promote(known=["c", "a", "b"])
    assert [bench.where(job, topic) for job, topic in enumerate(names)] == [At("ready", NOW)] * 3


def test_who_looks_is_told_of_known_topics_with_ready_jobs_from_before_each_once(bench: Bench) -> None:
    bench.put(1, At("ready", NOW))
    bench.put(2, At("due", NOW))
    bench.put(3, At("ready", NOW), OTHER)
    bench.put(4, At("ready", NOW), "seat.free")
    assert sorted(bench.promote(known=[TOPIC, OTHER, "empty"], look=True)[3:]) == [TOPIC, OTHER]
    assert bench.promote(known=[TOPIC, OTHER, "empty"]) == [0, -1, 0]


def test_the_topics_that_ever_had_a_ready_job_are_remembered_for_the_audit(bench: Bench) -> None:
    bench.put(1, At("due", NOW), OTHER)
    bench.put(2, At("due", LATER))
    bench.promote()
    assert bench.client.smembers(bench.keys.topics(0)) == {OTHER}


def test_the_promoted_are_counted(bench: Bench) -> None:
    bench.add_all((job, NOW) for job in range(3))
    bench.promote()
    bench.promote()
    assert bench.counters() == {"promoted": 3}


# The batch


def test_a_batch_takes_the_oldest_and_leaves_the_rest_for_the_next(bench: Bench) -> None:
    bench.add_all((job, NOW - job) for job in range(5))
    assert bench.promote(batch=2) == [2, NOW - 2, 0, TOPIC]
    assert sorted(bench.ready().values()) == [NOW - 4, NOW - 3]


@pytest.mark.parametrize(("jobs", "full"), [(1, False), (2, True), (3, True)])
def test_a_pass_is_full_when_its_batch_was(bench: Bench, jobs: int, full: bool) -> None:
    bench.add_all((job, NOW) for job in range(jobs))
    assert bench.promotion(batch=2).full is full


def test_a_batch_of_three_thousand_the_most_that_the_setting_allows_fits_onto_the_stack(bench: Bench) -> None:
    for start in range(0, 4000, 1000):
        bench.add_all((job, NOW) for job in range(start, start + 1000))
    assert bench.promote(batch=3000)[0] == 3000
    assert (len(bench.due()), len(bench.ready())) == (1000, 3000)


def test_the_same_moment_for_many_jobs_moves_exactly_the_members_that_were_found(bench: Bench) -> None:
    bench.add_all((job, NOW) for job in range(20))
    for ready in (3, 6, 9, 12, 15, 18, 20):
        bench.promote(batch=3)
        assert len(bench.ready()) == ready
        assert all(bench.where(job) for job in range(20)), "nobody was lost on the way"


# What belongs to nobody


ODD = {
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


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_member_that_can_be_no_job_is_set_aside_and_blocks_nobody(bench: Bench, odd: str) -> None:
    bench.client.zadd(bench.due_key, {odd: NOW - 10})
    bench.put(1, At("due", NOW))
    assert bench.promote(batch=2) == [2, -1, 1, TOPIC]
    assert bench.where(1) == At("ready", NOW)
    assert bench.client.zrange(bench.keys.aside(0), 0, -1) == [odd]
    assert bench.counters() == {"promoted": 2, "set_aside": 1}
    assert bench.promote() == [0, -1, 0], "it does not come back"


def test_a_flood_of_members_without_a_topic_keeps_the_last_thousand_and_lets_the_jobs_through(bench: Bench) -> None:
    bench.client.zadd(bench.due_key, {f"odd {n}": NOW - 3000 + n for n in range(2500)})
    bench.put(1, At("due", NOW))
    assert [bench.promotion(batch=1000).full for _ in range(3)] == [True, True, False]
    aside = bench.client.zrange(bench.keys.aside(0), 0, -1)
    assert (len(aside), aside[0], aside[-1]) == (1000, "odd 1500", "odd 2499")
    assert bench.where(1) == At("ready", NOW)
    assert bench.counters()["set_aside"] == 2500


def test_promoting_tells_no_mover_since_no_head_becomes_earlier(bench, heard) -> None:
    bench.put(1, At("due", NOW))
    bench.put(2, At("due", LATER))
    bench.promote()
    assert heard() == []


# Those who wait


def test_each_topic_that_got_ready_jobs_is_told_with_how_many(bench: Bench) -> None:
    heard = bench.client.pubsub(ignore_subscribe_messages=True)
    heard.subscribe(bench.keys.ready_channel)
    heard.get_message(timeout=1)  # the confirmation, ignored
    bench.add_all((job, NOW) for job in range(3))
    bench.put(7, At("due", NOW), OTHER)
    bench.put(8, At("due", LATER), OTHER)
    bench.promote(known=[TOPIC])
    told = {heard.get_message(timeout=1)["data"] for _ in range(2)}
    assert told == {f"3:{TOPIC}", f"1:{OTHER}"}
    bench.promote(known=[TOPIC])
    assert heard.get_message(timeout=0.05) is None
    heard.close()
