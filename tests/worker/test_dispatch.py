"""When the message for a topic is sent, and when a waiting runner takes its jobs without one."""

import contextlib

import pytest
from django.db import OperationalError, connection

from delaytasks import databases, mirror, schedule, topics
from delaytasks.mirror.base import RESEND_MS
from delaytasks.mirror.redis.index import Mirror
from delaytasks.worker import dispatch, runner, sender

on_the_mirror = pytest.mark.parametrize("due_index", ["mirror"], indirect=True)


@on_the_mirror
def test_a_runner_goes_on_with_another_topic_of_its_queue_without_a_message(stage, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 5}
    keys, others = stage.recorder("t"), stage.recorder("u")
    elsewhere = stage.recorder("v", queue="slow")
    for topic in ("t", "u", "v"):
        schedule(topic, key=topic, delay=0)
    stage.mover.move_due()
    stage.dispatched.clear()
    stage.run("t")
    assert (keys, others, elsewhere) == (["t"], ["u"], []), "a topic of another queue is for other workers"


@on_the_mirror
def test_a_waiting_runner_is_woken_for_a_ready_job_of_its_runner_group(stage, db_clock):
    found = mirror.connect()
    stage.recorder("t"), stage.recorder("u")
    waiting = found.keys.waiting_runners(dispatch.runner_group("default", "t"))
    found._redis.client.zadd(waiting, {"token": db_clock.now_ms + 1000})
    schedule("u", key="a", delay=0)
    stage.mover.move_due()
    assert stage.dispatched == [], "no message: the waiting runner was woken"
    assert found.wait_for_ready(dispatch.runner_group("default", "t"), "token", db_clock.now_ms, 500) == "u"


def test_messages_do_not_pile_up_while_no_worker_answers(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    for _ in range(50):
        stage.mover.move_due()
        db_clock.advance(ms=50)
    assert 1 <= len(stage.dispatched) <= 6, "later and later, not one a pass"


@on_the_mirror
@pytest.mark.only_on("postgresql")
def test_a_broken_connection_loses_one_message_and_not_the_following_ones(stage, caplog):
    stage.recorder("a")
    stage.recorder("b")
    schedule("a", key="1", delay=0)
    schedule("b", key="1", delay=0)
    topics.clear_cache()
    databases.now_ms("default")
    with contextlib.suppress(OperationalError), connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")
    stage.mover.move_due()
    assert "topic a could not be dispatched" in caplog.text
    assert stage.dispatched == ["b"]


def message(topic: str) -> dispatch.Message:
    return dispatch.Message(None, "default", topic, None)


@on_the_mirror
def test_a_message_that_nobody_answers_in_time_is_sent_again(stage, db_clock):
    stage.recorder("t", concurrency=2)
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    assert not dispatch.is_unanswered(message("t")), "it was sent a moment ago"
    db_clock.advance(ms=RESEND_MS)
    assert dispatch.is_unanswered(message("t"))
    assert not dispatch.is_unanswered(message("t")), "it has just been sent again"
    db_clock.advance(ms=2 * RESEND_MS)
    assert dispatch.is_unanswered(message("t"))


@on_the_mirror
def test_a_message_is_not_sent_again_if_a_runner_came_or_nothing_is_ready(stage, db_clock):
    found = mirror.connect()
    stage.recorder("t", concurrency=2)
    stage.recorder("u", concurrency=1)
    for topic in ("t", "u"):
        schedule(topic, key=topic, delay=0)
    stage.mover.move_due()
    db_clock.advance(ms=RESEND_MS)
    found.take_slot("t", "woken", db_clock.now_ms, db_clock.now_ms + 60_000, 3)
    assert found.has_unanswered_message("t"), "the message is still in the queue"
    found.take_slot("t", "runner", db_clock.now_ms, db_clock.now_ms + 60_000, 3, message_ms=db_clock.now_ms)
    assert not dispatch.is_unanswered(message("t")), "a runner came"
    found._redis.client.zadd(found.keys.slots("u"), {"runner": db_clock.now_ms + 60_000})
    assert not dispatch.is_unanswered(message("u")), "no run slot is free"
    found.free_slot("u", "runner")
    found.reserve("u", 1, db_clock.now_ms, db_clock.now_ms + 60_000)
    assert not dispatch.is_unanswered(message("u")), "nothing is ready"


def test_without_a_mirror_only_the_mover_sends_a_message_again(stage, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "REDIS_URL": None}
    assert not dispatch.is_unanswered(message("t"))


@on_the_mirror
def test_the_first_run_of_a_runner_answers_its_message_and_runs_for_which_it_was_woken_do_not(stage, monkeypatch):
    stage.recorder("t"), stage.recorder("u")
    further, answered = iter(["t", "u", None]), []
    monkeypatch.setattr(runner.RunnerGroup, "next_topic", lambda self, after: next(further))
    take_slot = Mirror.take_slot

    def record(self, topic, *args, message_ms=None):
        answered.append((topic, message_ms))
        return take_slot(self, topic, *args, message_ms=message_ms)

    monkeypatch.setattr(Mirror, "take_slot", record)
    stage.run("t")
    assert answered == [("t", sender.UNKNOWN_MS), ("t", None), ("u", None)]


@on_the_mirror
def test_a_message_that_could_not_be_sent_is_sent_at_the_next_tick(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    db_clock.advance(ms=1)
    stage.dispatcher.dispatch("t")
    assert stage.dispatched == ["t"]
    dispatch.forget(message("t"))
    stage.dispatcher.dispatch("t")
    assert stage.dispatched == ["t", "t"]


@on_the_mirror
def test_a_clock_that_was_set_back_a_little_leaves_no_message_unanswered(stage, db_clock):
    found = mirror.connect()
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    found.take_slot("t", "a", db_clock.now_ms, db_clock.now_ms + 60_000, 3, message_ms=db_clock.now_ms - 5)
    assert not found.has_unanswered_message("t")


@on_the_mirror
@pytest.mark.parametrize(("age_ms", "seconds"), [(2_000, 10.0), (2_001, 0.2)])
def test_the_runner_of_an_old_message_ends_soon_if_a_later_one_is_in_the_queue(
    stage, db_clock, monkeypatch, age_ms, seconds
):
    """Otherwise each of them would keep a process for RUN_BUDGET_SECONDS, before the project's own tasks."""
    keys, budgets = stage.recorder("t"), []
    run = runner.Run.run

    def record(self):
        budgets.append(self.end)
        run(self)

    monkeypatch.setattr(runner.Run, "run", record)
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    sent_ms = db_clock.now_ms
    db_clock.advance(ms=age_ms)
    stage.dispatcher.dispatch("t")
    assert stage.dispatched == ["t", "t"]
    assert stage.run("t", message_ms=sent_ms) == 1
    assert (keys, budgets) == (["a"], [seconds])
    assert mirror.connect().has_unanswered_message("t")
    stage.run("t", message_ms=db_clock.now_ms)
    assert not mirror.connect().has_unanswered_message("t")


def test_an_old_message_starts_a_runner_if_it_is_the_last_one(stage, db_clock):
    stage.recorder("t")
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    sent_ms = db_clock.now_ms
    db_clock.advance(seconds=50)
    assert stage.run("t", message_ms=sent_ms) == 1
