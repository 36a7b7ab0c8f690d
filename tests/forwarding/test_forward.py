"""Topics whose jobs are forwarded: confirmed, held, probed, dead."""

import asyncio
import json
import subprocess
import sys
import threading
from datetime import timedelta
from unittest.mock import Mock

import pytest
from django.db import OperationalError, connection

from delaytasks import databases, handlers, reschedule, schedule
from delaytasks.checks import check_clashes
from delaytasks.forwarding import Amqp, BatchTarget, CeleryTask, Kafka, Rejected, TargetDown, Webhook, forward
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.outcomes import ErrorCode
from delaytasks.states import State
from delaytasks.worker import ttr

from ..support.stage import outcomes, state_of


class Target:
    """Delivers what `results` says, one for each call: None, or an error to raise. Then None for ever."""

    def __init__(self):
        self.messages, self.results = [], []

    def deliver(self, message, timeout_seconds):
        self.messages.append(message)
        assert 0 < timeout_seconds <= 60
        error = self.results.pop(0) if self.results else None
        if error is not None:
            raise error


@pytest.fixture
def target(stage):
    target = Target()
    stage.registered.append("t")
    forward("t", target)
    return target


def held():
    row = Topic.objects.filter(name="t").first() or Topic()
    return row.held_since is not None, row.held_why


def test_a_due_job_is_finished_by_the_confirmation(stage, target, db_clock):
    job = schedule("t", key="a", delay=5, body={"n": 1})
    stage.go()
    assert target.messages == []
    db_clock.advance(seconds=5)
    stage.go()
    (message,) = target.messages
    assert (message.id, message.topic, message.key, message.body) == (str(job.pk), "t", "a", {"n": 1})
    assert (message.due_at, message.format) == (job.due_at, "cloudevents")
    assert (state_of("a"), held()) == ("finished", (False, ""))


class AsyncTarget(Target):
    async def deliver(self, message, timeout_seconds):
        await asyncio.sleep(0)
        super().deliver(message, timeout_seconds)


class AsyncBatchTarget(AsyncTarget):
    max_batch = 2

    async def deliver_many(self, messages, timeout_seconds, report):
        for message in messages:
            await self.deliver(message, timeout_seconds)
            report(message, None)


class AsyncOnlyInBatches(BatchTarget):
    max_batch = 2

    async def deliver_many(self, messages, timeout_seconds, report):
        await asyncio.sleep(0)
        report(messages[0], Rejected("no"))


def test_one_message_is_sent_by_a_coroutine_that_takes_several():
    with pytest.raises(Rejected, match="no"):
        AsyncOnlyInBatches().deliver(Mock(), 1.0)


@pytest.mark.parametrize("target_class", [AsyncTarget, AsyncBatchTarget])
def test_the_methods_of_a_target_may_be_coroutines(stage, db_clock, target_class):
    target = target_class()
    stage.registered.append("t")
    forward("t", target)
    target.results = [TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    assert (state_of("a"), held()) == ("delayed", (True, "away"))
    db_clock.advance(seconds=5)
    stage.go()
    assert (state_of("a"), [message.key for message in target.messages]) == ("finished", ["a", "a"])


def test_every_attempt_has_the_same_message_id(stage, target, db_clock):
    target.results = [ValueError("passes"), ValueError("passes")]
    schedule("t", key="a", delay=0)
    for _ in range(3):
        stage.go()
        db_clock.advance(seconds=3600)
    assert len({message.id for message in target.messages}) == 1
    assert len(target.messages) == 3
    assert (outcomes("a"), held()) == (["failed", "failed", "finished"], (False, ""))


def test_a_target_that_is_away_holds_its_topic_and_charges_no_failure(stage, target, db_clock):
    target.results = [TargetDown("No connection")]
    schedule("t", key="a", delay=0)
    stage.go()
    assert held() == (True, "No connection")
    assert (state_of("a"), outcomes("a"), Job.objects.get().failures) == ("delayed", ["snoozed"], 0)


def test_a_held_topic_is_not_sent_to_until_the_probe_and_resumes_by_itself(stage, target, db_clock):
    target.results = [TargetDown("away"), TargetDown("still away")]
    schedule("t", key="a", delay=0)
    stage.go()
    for key in "bcd":
        schedule("t", key=key, delay=0)
    stage.go()
    assert len(target.messages) == 1
    db_clock.advance(seconds=5)
    stage.go()
    assert (len(target.messages), held()) == (2, (True, "still away"))
    db_clock.advance(seconds=6)
    stage.go()
    assert held() == (False, "")
    db_clock.advance(seconds=10)
    stage.go()
    assert [state_of(key) for key in "abcd"] == ["finished"] * 4
    assert set(Job.objects.values_list("failures", flat=True)) == {0}


def test_one_job_is_the_probe_and_the_others_wait_for_it(stage, target, db_clock):
    from delaytasks.forwarding import holds
    from delaytasks.forwarding.holds import Turn

    assert holds.turn("default", "t", 60_000) is Turn.ALL
    holds.hold("default", "t", "away", None)
    assert holds.turn("default", "t", 60_000) is Turn.NONE
    db_clock.advance(seconds=5)
    assert holds.turn("default", "t", 60_000) is Turn.PROBE
    assert holds.turn("default", "t", 60_000) is Turn.NONE
    db_clock.advance(seconds=59)
    assert holds.turn("default", "t", 60_000) is Turn.NONE
    db_clock.advance(seconds=1)  # the probe's process died
    assert holds.turn("default", "t", 3_600_000) is Turn.PROBE
    db_clock.advance(seconds=299)
    assert holds.turn("default", "t", 3_600_000) is Turn.NONE
    db_clock.advance(seconds=1)
    assert holds.turn("default", "t", 3_600_000) is Turn.PROBE, "also with a long TTR"


def test_the_jobs_of_a_held_topic_stay_ready_without_events_and_run_when_the_hold_ends(stage, target, db_clock):
    target.results = [TargetDown("away")] * 2
    schedule("t", key="a", delay=0)
    stage.go()
    due = {key: schedule("t", key=key, delay=0).due_at for key in "bc"}
    for _ in range(10):
        stage.go()
        db_clock.advance(seconds=1)
    assert [message.key for message in target.messages] == ["a", "b"]
    assert dict(Job.objects.exclude(key="a").values_list("key", "attempt")) == {"b": 1, "c": 1}
    assert Job.objects.get(key="c").due_at == due["c"]
    assert not JobEvent.objects.filter(job__key="c").exists()
    stage.go()
    assert [state_of(key) for key in "abc"] == ["finished"] * 3


def test_a_run_that_began_before_the_hold_leaves_its_jobs_ready(stage, target, db_clock):
    """Another process has begun the hold, and this one has not read the topic's row since."""
    from delaytasks import topics

    job = schedule("t", key="a", delay=0)
    topics.topic_settings("default", "t")
    until = databases.now("default") + timedelta(seconds=30)
    Topic.objects.create(name="t", held_since=databases.now("default"), held_why="away", held_until=until)
    stage.go()
    job.refresh_from_db()
    assert (target.messages, job.state, job.attempt, outcomes("a")) == ([], State.DELAYED, 1, [])
    assert job.due_at <= databases.now("default")
    db_clock.advance(seconds=30)
    stage.go()
    assert (state_of("a"), held()) == ("finished", (False, ""))


def test_the_others_wait_for_as_long_as_the_target_has_asked(stage, target, db_clock):
    target.results = [TargetDown("busy", retry_seconds=600)]
    schedule("t", key="a", delay=0)
    stage.go()
    schedule("t", key="b", delay=0)
    db_clock.advance(seconds=599)
    stage.go()
    assert len(target.messages) == 1
    db_clock.advance(seconds=1)
    stage.go()
    assert [message.key for message in target.messages] == ["a", "b", "a"]


def test_a_hold_does_not_delay_a_handler_that_replaces_the_target(stage, target, db_clock):
    """For example because the target has gone for good. Nobody would send a probe, either."""
    target.results = [TargetDown("gone", retry_seconds=3600)]
    schedule("t", key="a", delay=0)
    stage.go()
    handlers.unregister("t")
    ran = stage.recorder("t")
    schedule("t", key="b", delay=0)
    stage.go()
    assert ran == ["b"]


def test_after_a_probe_that_failed_the_next_one_is_sent_at_the_usual_interval(stage, target, db_clock):
    target.results = [TargetDown("away"), ValueError("status 500")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    stage.go()
    assert (outcomes("a"), held()) == (["snoozed", "failed"], (True, "away"))
    schedule("t", key="b", delay=0)
    stage.go()
    assert outcomes("b") == []
    db_clock.advance(seconds=5)
    stage.go()
    assert (outcomes("b"), held()) == (["finished"], (False, ""))


def test_a_probe_that_failed_does_not_hold_a_topic_that_was_released_meanwhile(stage, target, db_clock):
    from delaytasks.forwarding import holds

    def release_and_fail(message, timeout_seconds):
        holds.release("default", "t")
        raise ValueError("status 500")

    target.results = [TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    target.deliver = release_and_fail
    stage.go()
    assert (outcomes("a"), held()) == (["snoozed", "failed"], (False, ""))
    assert Topic.objects.get(name="t").held_until is None


def test_the_job_of_a_batch_whose_ttr_is_over_is_named(stage, target, db_clock):
    schedule("t", key="first", delay=0)
    schedule("t", key="second", delay=0, ttr=30)
    attempts = stage.take("t")
    db_clock.advance(seconds=30)
    with pytest.raises(TimeoutError, match=r"second.* was over before it was sent"):
        handlers.find("t").function(attempts)


def test_a_confirmed_probe_is_finished_also_if_the_database_fails_to_end_the_hold(stage, target, db_clock, monkeypatch):
    from delaytasks.forwarding import holds

    def conflict(*_):
        raise OperationalError("could not serialize access due to concurrent update")

    target.results = [TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    monkeypatch.setattr(holds, "release", conflict)
    stage.go()
    assert outcomes("a") == ["snoozed", "finished"]


@pytest.fixture
def lose_connection():
    """End the test's session with PostgreSQL from another one: its next statement fails."""

    def lose():
        raw = connection.connection
        with raw.connect(raw.info.dsn, password=raw.info.password) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [raw.info.backend_pid])

    return lose


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("attempt", [1, 2])
def test_a_target_that_is_away_holds_its_topic_although_the_database_was_away_too(
    stage, target, db_clock, lose_connection, attempt
):
    def deliver(message, timeout_seconds):
        lose_connection()
        raise TargetDown("away")

    schedule("t", key="a", delay=0)
    Job.objects.update(attempt=attempt - 1)
    target.deliver = deliver
    stage.go()
    assert (outcomes("a"), held()) == (["snoozed"], (True, "away"))


@pytest.mark.only_on("postgresql")
def test_a_confirmed_probe_ends_the_hold_although_the_database_was_away(stage, target, db_clock, lose_connection):
    target.results = [TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    target.deliver = lambda message, timeout_seconds: lose_connection()
    stage.go()
    assert (outcomes("a"), held()) == (["snoozed", "finished"], (False, ""))


def test_the_longer_a_topic_is_held_the_rarer_are_its_probes(stage, db_clock):
    from delaytasks.forwarding import holds

    waits = []
    for _ in range(12):
        waits.append(holds.hold("default", "t", "away", None))
        db_clock.advance(seconds=waits[-1])
    assert waits[:4] == [5, 5, 10, 20]
    assert waits[-1] == 300
    assert sum(waits) < 3600


def test_a_job_that_is_refused_again_while_others_are_confirmed_fails_and_holds_nothing(stage, target, db_clock):
    def deliver(message, timeout_seconds):
        target.messages.append(message)
        if message.key == "bad":
            raise TargetDown("The receiver answered 404.")

    target.deliver = deliver
    schedule("t", key="bad", delay=0)
    stage.go()
    holds = []
    for number in range(60):
        schedule("t", key=f"good:{number}", delay=0)
        db_clock.advance(seconds=3)
        stage.go()
        holds.append(held()[0])
    assert holds == [True] + [False] * 59, "held until another job is confirmed, and then never"
    assert outcomes("bad")[:5] == ["snoozed", *["failed"] * 4]
    assert "answered 404" in Job.objects.get(key="bad").error
    assert Job.objects.filter(key__startswith="good", state=State.FINISHED).count() == 60
    Job.objects.filter(key="bad").update(failures=19, attempt=30)
    db_clock.advance(seconds=3600)
    stage.go()
    assert (state_of("bad"), held()) == ("dead", (False, ""))


def test_a_job_that_is_refused_again_because_the_target_is_away_again_fails_once_and_the_next_one_holds(
    stage, target, db_clock
):
    target.results = [TargetDown("away"), None, TargetDown("away"), TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=4)
    schedule("t", key="b", delay=0)
    db_clock.advance(seconds=1)
    stage.go()
    schedule("t", key="c", delay=0)
    stage.go()
    assert [message.key for message in target.messages] == ["a", "b", "a", "c"]
    assert (outcomes("a"), outcomes("c"), held()) == (["snoozed", "failed"], ["snoozed"], (True, "away"))


def test_a_target_that_asks_to_wait_holds_its_topic_for_each_job(stage, target, db_clock):
    target.results = [TargetDown("busy", retry_seconds=5), None, TargetDown("busy", retry_seconds=5)]
    schedule("t", key="a", delay=0)
    stage.go()
    schedule("t", key="b", delay=0)
    db_clock.advance(seconds=5)
    stage.go()
    assert [message.key for message in target.messages] == ["a", "b", "a"]
    assert (outcomes("a"), held()) == (["snoozed", "snoozed"], (True, "busy"))


def test_a_message_tells_the_first_due_time_of_its_job_in_each_attempt(stage, target, db_clock):
    target.results = [TargetDown("away"), TargetDown("away"), ValueError("passes")]
    due_at = schedule("t", key="a", delay=0).due_at
    for _ in range(4):
        stage.go()
        db_clock.advance(seconds=300)
    assert outcomes("a") == ["snoozed", "snoozed", "failed", "finished"]
    assert [message.due_at for message in target.messages] == [due_at] * 4


def test_a_message_tells_the_due_time_to_which_its_job_was_moved_after_a_hold(stage, target, db_clock):
    target.results = [TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    moved = databases.now("default") + timedelta(hours=1)
    reschedule("t", "a", due_at=moved)
    db_clock.advance(seconds=3600)
    stage.go()
    assert target.messages[1].due_at == moved


def test_a_job_that_expires_while_its_topic_is_held_is_not_sent(stage, target, db_clock):
    target.results = [TargetDown("away", retry_seconds=600)]
    schedule("t", key="a", delay=0, expires=600)
    stage.go()
    schedule("t", key="b", delay=0, expires=600)
    db_clock.advance(seconds=601)
    schedule("t", key="c", delay=0, expires=600)
    stage.go()
    assert [message.key for message in target.messages] == ["a", "c"]
    assert (outcomes("a"), outcomes("b"), outcomes("c")) == (["snoozed", "skipped"], ["skipped"], ["finished"])
    errors = Job.objects.filter(key__in="ab").values_list("error", flat=True)
    assert list(errors) == [ErrorCode.TOO_LATE] * 2, "as the engine records each job that has expired"
    assert held() == (False, "")


def test_a_target_that_names_a_time_is_probed_then(stage, target, db_clock):
    target.results = [TargetDown("busy", retry_seconds=120)]
    schedule("t", key="a", delay=0)
    stage.go()
    assert Job.objects.get().due_ms == db_clock.now_ms + 120_000
    db_clock.advance(seconds=119)
    stage.go()
    assert len(target.messages) == 1
    db_clock.advance(seconds=1)
    stage.go()
    assert state_of("a") == "finished"


def test_the_time_since_when_a_topic_is_held_stays(stage, target, db_clock):
    target.results = [TargetDown("away"), TargetDown("away")]
    schedule("t", key="a", delay=0)
    stage.go()
    since = Topic.objects.get(name="t").held_since
    db_clock.advance(seconds=5)
    stage.go()
    assert Topic.objects.get(name="t").held_since == since


def test_a_job_whose_content_is_refused_is_dead_at_once_and_others_go_on(stage, target):
    target.results = [Rejected("answered 422: no such order")]
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert sorted([state_of("a"), state_of("b")]) == ["dead", "finished"]
    dead = Job.objects.get(died_at__isnull=False)
    assert "answered 422: no such order" in dead.error
    assert "answered 422: no such order" in JobEvent.objects.get(job=dead).error
    assert held() == (False, "")


def test_a_refused_content_shows_that_the_target_is_back(stage, target, db_clock):
    target.results = [TargetDown("away"), Rejected("no")]
    schedule("t", key="a", delay=0)
    stage.go()
    db_clock.advance(seconds=5)
    stage.go()
    assert (state_of("a"), held()) == ("dead", (False, ""))


def test_a_worker_that_dies_after_the_confirmation_sends_the_same_id_again(stage, target, db_clock):
    job = schedule("t", key="a", delay=0)
    (attempt,) = stage.take("t")
    handlers.find("t").function([attempt])  # and then the process is killed: the job is not finished
    db_clock.advance(seconds=61)
    stage.go()
    assert [message.id for message in target.messages] == [str(job.pk)] * 2
    assert state_of("a") == "finished"


def test_a_job_whose_ttr_is_over_is_not_sent(stage, target, db_clock):
    schedule("t", key="a", delay=0)
    (attempt,) = stage.take("t")
    db_clock.advance(seconds=60)
    with pytest.raises(TimeoutError, match="was over before it was sent"):
        handlers.find("t").function([attempt])
    assert (target.messages, held()) == ([], (False, ""))


def test_a_real_webhook_that_goes_and_comes_back(stage, receiver, db_clock):
    stage.registered.append("hook")
    url = f"http://localhost:{receiver.port}/"
    forward("hook", Webhook(url, allow_http=True, allow_networks=["127.0.0.0/8"]), format="json")
    receiver.status, receiver.headers = 503, {"Retry-After": "30"}
    schedule("hook", key="a", delay=0, body={"n": 1})
    stage.go()
    assert "answered 503" in Topic.objects.get(name="hook").held_why
    receiver.status = 204
    db_clock.advance(seconds=30)
    stage.go()
    assert (state_of("a"), len(receiver.requests)) == ("finished", 2)
    assert receiver.requests[0].headers["webhook-id"] == receiver.requests[1].headers["webhook-id"]


def test_the_answer_of_a_webhook_is_kept_in_the_event_shortened_and_redacted(stage, receiver):
    stage.registered.append("hook")
    forward("hook", Webhook(f"http://localhost:{receiver.port}/", allow_http=True, allow_networks=["127.0.0.0/8"]))
    receiver.status = 422
    receiver.body = json.dumps({"token": "s3cret", "error": "no such order" + "!" * 600}).encode()
    schedule("hook", key="a", delay=0)
    stage.go()
    event = JobEvent.objects.get(job__key="a", outcome="dead")
    assert "The receiver answered 422." in event.error
    assert "no such order" in event.error
    assert "s3cret" not in event.error
    assert len(event.error) < 600


@pytest.fixture
def hook(stage, receiver):
    """The topic "hook", which is forwarded to the receiver."""
    stage.registered.append("hook")
    forward("hook", Webhook(f"http://localhost:{receiver.port}/", allow_http=True, allow_networks=["127.0.0.0/8"]))
    return receiver


def answer_in_event(stage):
    """Return the outcome and the reason of the newest event of a job that is due now."""
    schedule("hook", key="a", delay=0, on_conflict="replace")
    stage.go()
    return JobEvent.objects.filter(job__key="a").order_by("-id").values_list("outcome", "reason").first()


@pytest.mark.parametrize(
    ("status", "body", "answer"),
    [
        (204, b"", "The receiver answered 204."),
        (200, b"taken\nwith thanks\x00", "The receiver answered 200. taken with thanks"),
        (202, b'{"queue": 7, "token": "s3cret"}', 'The receiver answered 202. {"queue": 7, "token": "••••••"}'),
        (200, b"the password", "The receiver answered 200. (The response is hidden: it contains a word of REDACT.)"),
        (200, b'"\\ud800 \\u2028"', 'The receiver answered 200. "   "'),
    ],
)  # fmt: skip
def test_the_answer_that_finishes_a_job_is_in_its_event(stage, hook, status, body, answer):
    hook.status, hook.body = status, body
    assert answer_in_event(stage) == ("finished", answer)


@pytest.mark.parametrize(("status", "outcome"), [(200, "finished"), (302, "snoozed"), (422, "dead"), (503, "snoozed")])
def test_the_answer_to_a_topic_that_hides_its_bodies_is_hidden(stage, hook, status, outcome):
    """A receiver may repeat in its answer what it got."""
    Topic.objects.update_or_create(name="hook", defaults={"hide_bodies": True})
    hook.status, hook.body = status, b'{"taken": {"name": "Ada"}}'
    hook.headers = {"Location": "/login?next=Ada"}
    assert answer_in_event(stage)[0] == outcome
    event = JobEvent.objects.filter(job__key="a", outcome=outcome).get()
    text = f"{event.reason}{event.error}{Topic.objects.get(name='hook').held_why}"
    assert f"The receiver answered {status}" in text
    assert "Ada" not in text


def test_a_long_answer_is_shortened_in_the_event(stage, hook):
    hook.status, hook.body = 200, "ä".encode() * 5000
    outcome, reason = answer_in_event(stage)
    assert (outcome, len(reason)) == ("finished", 255)
    assert (reason[:32], reason[-4:]) == ("The receiver answered 200. äääää", "ä...")


@pytest.mark.parametrize("status", [302, 401, 404, 410, 429, 503])
def test_the_answer_that_holds_the_topic_is_in_the_event_of_the_job_that_was_sent(stage, hook, status):
    hook.status, hook.body, hook.headers = status, b'{"wait": true, "secret": "s3cret"}', {"Retry-After": "30"}
    outcome, reason = answer_in_event(stage)
    assert (outcome, f"The receiver answered {status}" in reason, "s3cret" in reason) == ("snoozed", True, False)
    hook.status = 204
    schedule("hook", key="b", delay=0)
    stage.go()
    assert (state_of("b"), outcomes("b")) == ("delayed", []), "it was not sent: the topic is held"


def test_the_answer_that_fails_an_attempt_is_in_its_event(stage, hook):
    hook.status, hook.body = 500, b'{"error": "a defect", "token": "s3cret"}'
    answer_in_event(stage)
    event = JobEvent.objects.get(job__key="a", outcome="failed")
    assert 'The receiver answered 500. {"error": "a defect", "token": "••••••"}' in event.error


def test_a_text_that_a_target_returns_is_kept_and_what_else_it_returns_is_not(stage, target, monkeypatch):
    results = {"a": "taken\tas 7" + "!" * 300, "b": object(), "c": None, "d": ""}
    monkeypatch.setattr(target, "deliver", lambda message, seconds: results[message.key])
    for key in results:
        schedule("t", key=key, delay=0)
    stage.go()
    events = JobEvent.objects.filter(outcome="finished").values_list("job__key", "reason")
    assert dict(events) == {"a": f"taken as 7{'!' * 242}...", "b": "", "c": "", "d": ""}


def test_an_exception_that_a_target_returns_counts_as_raised(stage, target, monkeypatch):
    monkeypatch.setattr(target, "deliver", lambda message, timeout_seconds: Rejected("no"))
    schedule("t", key="a", delay=0)
    stage.go()
    assert state_of("a") == "dead"


def test_a_call_of_a_webhook_ends_before_the_ttr_and_fails_the_attempt(stage, receiver, ttr_state):
    """The timeout of the target is longer: the rest of the TTR limits the call, and leaves time to store its result."""
    ttr.enforce(watchdog=False, grace_seconds=5)
    stage.registered.append("hook")
    url = f"http://localhost:{receiver.port}/"
    forward("hook", Webhook(url, allow_http=True, allow_networks=["127.0.0.0/8"], timeout=60), ttr=3)
    ended = threading.Event()
    receiver.answer = lambda request: ended.wait(30)
    schedule("hook", key="a", delay=0)
    stage.go()
    ended.set()
    event = JobEvent.objects.get(job__key="a")
    assert event.outcome == "failed"  # not "timed_out": the TTR did not interrupt the call
    assert "Timeout: localhost did not answer within" in event.error
    assert len(receiver.requests) == 1


# -- declarations -------------------------------------------------------------------------------


def test_a_topic_with_a_handler_and_a_target_is_reported(stage):
    stage.recorder("t")
    forward("t", Target())
    (message,) = check_clashes()
    assert message.id == "delaytasks.E002"
    assert "forward('t', " in message.msg


def test_the_function_is_public_and_the_former_imports_keep_working():
    program = """
from delaytasks import forward
from delaytasks.forwarding import registration
assert forward is registration.forward
from delaytasks.forward import Webhook, forward as former
assert former is forward
from delaytasks import forward as again
again("order.timeout", Webhook("https://shop.example/"))
from delaytasks import handlers
print(handlers.handled())
"""
    quiet = "ignore:delaytasks.forward:DeprecationWarning"  # tests/test_deprecation.py has the warning
    done = subprocess.run([sys.executable, "-W", "error", "-W", quiet, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("['order.timeout']", "")


def test_a_declaration_may_be_repeated(stage):
    stage.registered.append("t")
    for _ in range(2):
        forward("t", Webhook("https://shop.example/"))
    assert check_clashes() == []


SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    "other",
    [Webhook("https://shop.example/?shop=2"), Webhook("https://shop.example/?shop=1", secret=SECRET),
     Webhook("https://shop.example/?shop=1", headers={"X-Shop": "1"}),
     Webhook("https://shop.example/?shop=1", timeout=3)],
    ids=["query", "secret", "headers", "timeout"],
)  # fmt: skip
def test_two_targets_that_differ_in_anything_clash(stage, other):
    stage.registered.append("t")
    forward("t", Webhook("https://shop.example/?shop=1"))
    forward("t", other)
    (message,) = check_clashes()
    assert SECRET not in message.msg


def test_two_declarations_of_a_target_that_differ_in_their_options_clash(stage):
    stage.registered.append("t")
    forward("t", Webhook("https://shop.example/"))
    forward("t", Webhook("https://shop.example/"), format="json")
    assert len(check_clashes()) == 1


def test_equal_targets_of_every_kind_may_be_declared_again(stage, settings):
    settings.DELAYTASKS = {
        **settings.DELAYTASKS, "BROKERS": {"kafka": {"bootstrap.servers": "localhost:1"}, "amqp": "amqp://localhost:1//"},
    }  # fmt: skip
    makers = [
        lambda: Kafka("orders"), lambda: Amqp("", "orders"), lambda: CeleryTask("shop.close"),
        lambda: Webhook("https://shop.example/", secret=SECRET, headers={"X": "1"}, allow_networks=["10.0.0.0/8"]),
    ]  # fmt: skip
    for number, make in enumerate(makers):
        stage.registered.append(f"t{number}")
        for _ in range(2):
            forward(f"t{number}", make())
    assert check_clashes() == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t", object()), "is not a target"),
        (("t t", Target()), "is not a topic's name"),
        (("t", Target(), {"format": "xml"}), "format is 'xml'"),
        (("t", Target(), {"source": ""}), "source is ''"),
        (("t", Target(), {"source": None}), "source is None"),
    ],
)
def test_wrong_declarations_are_refused(arguments, message):
    topic, target, *options = arguments
    with pytest.raises(ValueError, match=message):
        forward(topic, target, **(options[0] if options else {}))
