"""Targets that staff store in Topic rows: workers learn of them, forward, hold and probe."""

import logging
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test.utils import CaptureQueriesContext

from delaytasks import cancel, handlers, schedule, topics
from delaytasks.exceptions import UnknownTopic
from delaytasks.forwarding import Kafka, holds
from delaytasks.forwarding.delivery import deliver
from delaytasks.forwarding.stored import checks
from delaytasks.forwarding.stored import targets as stored_targets
from delaytasks.forwarding.stored.targets import BadTarget
from delaytasks.maintenance import sweep
from delaytasks.models import Job, Topic
from delaytasks.monitoring import metrics
from delaytasks.testing import running_job
from delaytasks.worker import dispatch

from ..support.stage import outcomes, state_of

LOCAL = {"allow_http": True, "allow_networks": ["127.0.0.0/8"]}
COMMON = {"format": "json", "source": "/delaytasks", "timeout": 5}
WEBHOOK = {**COMMON, "kind": "webhook", "url": "https://shop.example/hooks"}
KAFKA = {**COMMON, "kind": "kafka", "topic": "orders", "broker": "events"}
AMQP = {**COMMON, "kind": "amqp", "exchange": "shop", "routing_key": "{key}", "broker": "rabbit"}
CELERY = {**COMMON, "kind": "celery", "task": "shop.tasks.close"}
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(autouse=True)
def _settings(settings: Any) -> None:
    settings.DELAYTASKS = {
        **settings.DELAYTASKS,
        "WEBHOOKS": {"local": LOCAL, "shop": SECRET},
        "BROKERS": {"events": {"bootstrap.servers": "localhost:1"}, "rabbit": "amqp://user:s3cret@localhost:1//"},
    }


def to_receiver(receiver, **fields):
    return {**WEBHOOK, "url": f"http://localhost:{receiver.port}/", "settings": "local", **fields}


def set_target(target, topic="t"):
    """Store a target as the admin does, and let time pass until every process has seen it."""
    Topic.objects.update_or_create(name=topic, defaults={"target": target})
    topics.clear_cache()


# -- from the row to the receiver -----------------------------------------------------------------


def test_a_worker_without_a_handler_forwards_to_the_target_of_the_row(stage, receiver):
    set_target(to_receiver(receiver))
    job = schedule("t", key="a", delay=0, body={"n": 1})
    stage.go()
    (request,) = receiver.requests
    assert (request.headers["webhook-id"], request.body) == (str(job.pk), b'{"n":1}')
    assert state_of("a") == "finished"


def test_a_topic_without_a_target_is_left_alone(stage, receiver):
    set_target(None)
    schedule("t", key="a", delay=0)
    stage.go()
    assert (Job.objects.get().attempt, stage.run("t")) == (0, 0)


def test_jobs_that_are_ready_already_are_forwarded_when_staff_set_the_target(stage, receiver, db_clock):
    set_target(None)
    schedule("t", key="a", delay=0)
    stage.go()
    assert receiver.requests == []
    set_target(to_receiver(receiver))
    db_clock.advance(seconds=1)
    stage.go()
    assert state_of("a") == "finished"


def test_workers_learn_of_a_new_a_changed_and_a_removed_target_in_bounded_time(stage, receiver, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("delaytasks.topics.time.monotonic", lambda: now[0])
    row = Topic.objects.create(name="t")

    def store(target):
        Topic.objects.filter(pk=row.pk).update(target=target)

    assert topics.find("default", "t") is None
    assert topics.handled("default") == handlers.handled()
    store(to_receiver(receiver))
    now[0] += topics.CACHE_SECONDS
    first = topics.find("default", "t")
    assert first is not None
    assert "t" in topics.handled("default")
    store(to_receiver(receiver, format="cloudevents"))
    now[0] += topics.CACHE_SECONDS
    second = topics.find("default", "t")
    assert second is not first
    store(None)
    assert "t" in topics.handled("default")
    now[0] += topics.TARGET_SECONDS
    assert "t" not in topics.handled("default")
    assert topics.find("default", "t") is None


def test_a_database_that_fails_leaves_the_mover_with_the_targets_of_before(stage, monkeypatch, caplog):
    set_target(WEBHOOK)
    before = topics.handled("default")
    assert "t" in before
    monkeypatch.setattr(Topic.objects, "using", lambda using: (_ for _ in ()).throw(OperationalError("gone")))
    assert topics.handled("default", 0) == before
    assert "were not read from the database default: gone" in caplog.text


def test_a_target_costs_no_query_for_each_job(stage, receiver):
    """The rows of topics are read once a second at most, with or without targets."""
    set_target(to_receiver(receiver))
    for n in range(20):
        schedule("t", key=f"k{n}", delay=0)
    with CaptureQueriesContext(connection) as captured:
        stage.go()
    assert len(receiver.requests) == 20
    reads = [each["sql"] for each in captured if "SELECT" in each["sql"] and '"target"' in each["sql"]]
    assert 1 <= len(reads) <= 4, reads


def test_the_sender_of_messages_makes_no_query(stage, receiver):
    set_target(to_receiver(receiver))
    topics.handled("default")
    with CaptureQueriesContext(connection) as captured:
        assert dispatch.group_topics("default", "t", topics.CACHED) == topics.handled("default")
        topics.clear_cache()
        assert dispatch.group_topics("default", "t", topics.CACHED) == handlers.handled()
    assert len(captured) == 0


def test_the_ttr_and_the_limits_are_those_of_the_settings(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": {"t": {"ttr": 7, "max_attempts": 4}}}
    handler = stored_targets.handler("default", "t", WEBHOOK)
    assert (handler.ttr_ms, handler.max_attempts, handler.atomic, handler.batch) == (7000, 4, False, 1)


def test_a_row_batches_as_a_declaration_in_code_does():
    handler = stored_targets.handler("default", "t", KAFKA)
    assert handler.batch == Kafka.max_batch > 1


def test_a_job_whose_worker_died_is_dead_after_max_attempts(stage, receiver, db_clock, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "MAX_ATTEMPTS": 1}
    set_target(to_receiver(receiver))
    schedule("t", key="a", delay=0, ttr=5)
    stage.take("t")
    db_clock.advance(seconds=6)
    sweep.take_back_expired("default")
    assert state_of("a") == "dead"


# -- held and paused ------------------------------------------------------------------------------


def held():
    row = Topic.objects.get(name="t")
    return row.held_since is not None, row.held_why


def test_a_receiver_that_is_away_holds_the_topic_until_a_probe_is_confirmed(stage, receiver, db_clock):
    set_target(to_receiver(receiver))
    receiver.status = 503
    schedule("t", key="a", delay=0)
    schedule("t", key="b", delay=0)
    stage.go()
    assert len(receiver.requests) == 1
    assert held() == (True, "The receiver answered 503.")
    assert set(Job.objects.values_list("failures", flat=True)) == {0}
    receiver.status = 204
    db_clock.advance(seconds=5)
    stage.go()
    db_clock.advance(seconds=5)
    stage.go()
    assert ([state_of("a"), state_of("b")], held()) == (["finished"] * 2, (False, ""))


def test_a_paused_topic_forwards_nothing(stage, receiver):
    set_target(to_receiver(receiver))
    Topic.objects.update(paused=True)
    topics.clear_cache()
    schedule("t", key="a", delay=0)
    stage.go()
    assert receiver.requests == []


def test_an_attempt_whose_target_was_changed_meanwhile_does_not_hold_the_new_one(stage, receiver, db_clock):
    """The former receiver asks to wait for an hour while staff name another one."""
    set_target(to_receiver(receiver))
    other = to_receiver(receiver, url=f"http://localhost:{receiver.port}/other")
    receiver.status, receiver.headers = 503, {"Retry-After": "3600"}

    def answer(request):
        Topic.objects.filter(name="t").update(target=other)
        connection.close()  # of the receiver's thread
        request.send_response(503)
        request.send_header("Retry-After", "3600")
        request.end_headers()

    receiver.answer = answer
    schedule("t", key="a", delay=0)
    stage.go()
    assert held() == (False, "")
    receiver.answer, receiver.status = None, 204
    topics.clear_cache()
    schedule("t", key="b", delay=0)
    stage.go()
    assert [request.path for request in receiver.requests] == ["/", "/other"]
    assert (outcomes("a"), state_of("b")) == (["snoozed"], "finished")


def test_an_attempt_in_flight_ends_with_its_own_target_and_a_run_with_the_next_one(stage, receiver, db_clock):
    set_target(to_receiver(receiver))
    other = to_receiver(receiver, url=f"http://localhost:{receiver.port}/other")

    def answer(request):
        Topic.objects.filter(name="t").update(target=other)
        connection.close()
        topics.clear_cache()  # a second has passed
        db_clock.advance(seconds=1)
        request.send_response(204)
        request.end_headers()

    receiver.answer = answer
    for key in "ab":
        schedule("t", key=key, delay=0)
    stage.go()
    assert [request.path for request in receiver.requests] == ["/", "/other"]
    assert [state_of("a"), state_of("b")] == ["finished"] * 2


def test_a_target_that_is_removed_while_a_run_lasts_is_called_no_more(stage, receiver, db_clock):
    set_target(to_receiver(receiver))

    def answer(request):
        Topic.objects.filter(name="t").update(target=None)
        connection.close()
        topics.clear_cache()
        db_clock.advance(seconds=1)
        request.send_response(204)
        request.end_headers()

    receiver.answer = answer
    for key in "ab":
        schedule("t", key=key, delay=0)
    stage.go()
    assert len(receiver.requests) == 1
    assert Job.objects.live().get().attempt == 0


# -- who else asks whether a topic is served ------------------------------------------------------


def test_a_topic_with_a_row_is_known_with_and_without_a_target(stage):
    with pytest.raises(UnknownTopic):
        schedule("t", key="a", delay=60)
    with pytest.raises(UnknownTopic):
        cancel("t", key="a")
    set_target(WEBHOOK)
    schedule("t", key="a", delay=60)
    assert cancel("t", key="a") == "cancelled"


def test_metrics_and_the_sweep_count_the_topic_as_served(stage, receiver, caplog):
    set_target(to_receiver(receiver))
    schedule("t", key="a", delay=0)
    stage.mover.move_due()
    assert metrics.snapshot("default")["topics"]["t"]["handled"] is True
    assert metrics.topics_snapshot("default", ["t"])["t"]["handled"] is True
    assert sweep.sweep("default")["unhandled"] == 0
    assert "does not know the topic" not in caplog.text
    set_target(None)
    assert metrics.snapshot("default")["topics"]["t"]["handled"] is False


def test_a_handler_in_code_wins_and_a_check_says_where_it_is(stage, receiver):
    keys = stage.recorder("t")
    set_target(to_receiver(receiver))
    schedule("t", key="a", delay=0)
    stage.go()
    assert (keys, receiver.requests) == (["a"], [])
    (warning,) = checks.check_stored_targets(databases=["default"])
    assert warning.id == "delaytasks.W060"
    assert "tests.support.stage" in warning.msg


def test_each_database_has_its_own_targets():
    topics.clear_cache()
    topics._rows["default"] = (float("inf"), {"t": topics.Row(target=WEBHOOK), "u": topics.Row(target=KAFKA)})
    topics._rows["other"] = (float("inf"), {"t": topics.Row(target={**WEBHOOK, "url": "https://other.example/"})})
    try:
        targets = {using: repr(topics.find(using, "t").function.target) for using in ("default", "other")}
        assert topics.find("other", "u") is None
        assert "u" not in topics.handled("other")
    finally:
        topics.clear_cache()
    assert targets == {"default": "Webhook(https://shop.example/hooks)", "other": "Webhook(https://other.example/)"}


@pytest.fixture
def other(db, monkeypatch):
    """A second database with a table of topics."""
    monkeypatch.setitem(connections.settings, "other", {
        **connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:",
        "OPTIONS": {},
    })  # fmt: skip
    connections["other"].connect()  # Django's test case refuses to open it by itself
    with connections["other"].schema_editor() as editor:
        editor.create_model(Topic)
    topics.clear_cache()
    yield "other"
    connections["other"].close()
    del connections["other"]


def test_a_row_serves_its_own_database_only(other):
    Topic.objects.using(other).create(name="t", target=WEBHOOK)
    Topic.objects.create(name="t")
    Topic.objects.create(name="u", target=CELERY)
    assert topics.find("other", "t").function.using == "other"
    assert topics.find("default", "t") is None
    assert {"t", "u"} & set(topics.handled("other")) == {"t"}
    assert {"t", "u"} & set(topics.handled("default")) == {"u"}
    assert dispatch.new_mover("other")._topics() == topics.handled("other")
    holds.hold("other", "t", "away", None)
    holds.release("default", "t")
    assert Topic.objects.using(other).get().held_why == "away"


def test_jobs_of_different_databases_have_different_message_ids(other, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "DATABASES": ["default", other]}
    sent = []

    class Target:
        def deliver(self, message, timeout_seconds):
            sent.append(message.id)

    jobs = [running_job("t", "a", using=using) for using in ("default", other)]
    for job in jobs:
        assert deliver([job], target=Target(), format="json", source="/") == {job.id: None}
    assert sent == [str(jobs[0].id), f"other-{jobs[1].id}"]


def test_the_check_names_the_database(other):
    Topic.objects.using(other).create(name="t", target={**KAFKA, "broker": "gone"})
    (warning,) = checks.check_stored_targets(databases=["default", "other"])
    assert "Topic 't' of the database 'other'" in warning.msg


# -- targets that this process cannot use ---------------------------------------------------------


def test_a_worker_that_cannot_use_the_target_leaves_the_jobs_to_others(stage, caplog):
    set_target({**KAFKA, "broker": "gone"})
    schedule("t", key="a", delay=0)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            stage.go()
            topics.clear_cache()
    assert Job.objects.get().attempt == 0
    assert caplog.text.count("the target of its row cannot be used here") == 1
    (warning,) = checks.check_stored_targets(databases=["default"])
    assert "No broker 'gone' of kind 'kafka'" in warning.msg


@pytest.mark.parametrize("target", [[], 3, "webhook", {}, {"kind": ["webhook"]}, {"kind": "pigeon"}])
def test_rows_that_somebody_has_broken_stop_nothing(stage, receiver, target):
    set_target(target)
    set_target(to_receiver(receiver), topic="u")
    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b")) == ("delayed", "finished")


@pytest.mark.parametrize("options", [{"allow_networks": None}, {"allow_networks": 10}])
def test_settings_that_no_webhook_takes_stop_nothing(stage, receiver, settings, options):
    settings.DELAYTASKS["WEBHOOKS"]["wrong"] = options
    set_target({**WEBHOOK, "settings": "wrong"})
    set_target(to_receiver(receiver), topic="u")
    schedule("t", key="a", delay=0)
    schedule("u", key="b", delay=0)
    stage.go()
    assert (state_of("a"), state_of("b")) == ("delayed", "finished")


def test_a_process_of_the_older_version_inserts_rows_and_leaves_the_topic_alone(stage, receiver, monkeypatch, db_clock):
    """It does not know the column, and makes no handler of it."""
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO delaytasks_topic (name, paused, slots) VALUES ('t', %s, '{}')", [False])
    assert Topic.objects.get(name="t").target is None
    set_target(to_receiver(receiver))
    monkeypatch.setattr(topics, "_builder", None)
    schedule("t", key="a", delay=0)
    stage.go()
    assert (stage.run("t"), Job.objects.get().attempt) == (0, 0)
    monkeypatch.undo()
    db_clock.advance(seconds=1)
    stage.go()
    assert state_of("a") == "finished"


# -- what a target may contain --------------------------------------------------------------------


@pytest.mark.parametrize("target", [WEBHOOK, KAFKA, AMQP, CELERY, {**WEBHOOK, "settings": "shop"}])
def test_each_kind_can_be_stored(target):
    assert callable(stored_targets.build(target).deliver)


def test_a_webhook_is_signed_with_the_secret_that_it_names(receiver, settings, message):
    settings.DELAYTASKS["WEBHOOKS"]["local"] = {**LOCAL, "secret": SECRET}
    target = stored_targets.build(to_receiver(receiver))
    target.deliver(message(), 5)
    from standardwebhooks.webhooks import Webhook as Verifier

    (request,) = receiver.requests
    Verifier(SECRET).verify(request.body, request.headers)


@pytest.mark.parametrize(
    ("target", "field", "code", "words"),
    [
        ({**KAFKA, "broker": "rabbit"}, "broker", "broker", "known: events"),
        ({**AMQP, "broker": "events"}, "broker", "broker", "known: rabbit"),
        ({**KAFKA, "broker": "no"}, "broker", "broker", "'no'"),
        ({**KAFKA, "broker": ""}, "broker", "missing", "'broker'"),
        ({**KAFKA, "key": "body"}, "topic", "invalid", "key is 'body'"),
        ({**AMQP, "routing_key": "{body}"}, "routing_key", "invalid", "may only have"),
        ({**WEBHOOK, "url": ""}, "url", "missing", "'url'"),
        ({**WEBHOOK, "url": "https://ann:pw@shop.example/"}, "url", "credentials", "a user or a password"),
        ({**WEBHOOK, "url": "https://shop.example/?token=abc"}, "url", "credentials", "a token"),
        ({**WEBHOOK, "url": "http://shop.example/"}, "url", "scheme", "use https"),
        ({**WEBHOOK, "url": "ftp://shop.example/"}, "url", "scheme", "'ftp'"),
        ({**WEBHOOK, "url": "https://"}, "url", "syntax", "needs a host"),
        ({**WEBHOOK, "settings": "no"}, "settings", "settings", "which has: local, shop"),
        ({**CELERY, "task": ""}, "task", "missing", "'task'"),
        ({**CELERY, "format": "xml"}, "format", "format", "format is 'xml'"),
        ({**CELERY, "source": ""}, "source", "missing", "'source'"),
        ({**CELERY, "timeout": -1}, "task", "invalid", "timeout is -1"),
        ({**CELERY, "password": "x"}, "kind", "unknown_field", "no field 'password'"),
    ],
)
def test_wrong_targets_are_refused(target, field, code, words):
    with pytest.raises(BadTarget, match=words) as raised:
        stored_targets.build(target)
    assert (raised.value.field, raised.value.code) == (field, code)
    assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.1", "169.254.169.254", "[::1]", "localhost"])
def test_hosts_that_are_not_public_are_refused_when_a_target_is_stored(host):
    with pytest.raises(BadTarget, match="not public") as raised:
        stored_targets.check_new({**WEBHOOK, "url": f"https://{host}/"})
    assert raised.value.code == "private"


def test_networks_that_the_settings_allow_are_not_refused():
    stored_targets.check_new({**WEBHOOK, "url": "http://127.0.0.1:8000/", "settings": "local"})


def test_a_name_that_cannot_be_resolved_here_is_accepted():
    stored_targets.check_new({**WEBHOOK, "url": "https://shop.invalid/"})


def test_a_target_whose_library_is_missing_is_refused_with_its_name(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for target, module in ((KAFKA, "confluent_kafka"), ({**WEBHOOK, "settings": "shop"}, "standardwebhooks"),
                           ({**CELERY, "format": "cloudevents"}, "cloudevents")):  # fmt: skip
        with pytest.raises(BadTarget, match=f"{module} is not installed: pip install") as raised:
            stored_targets.build(target)
        assert raised.value.code == "library"


@pytest.mark.parametrize(
    ("options", "words"),
    [({"secret": "not base64!"}, "not base64"), ({"allow_networks": ["10.0.0.1/8"]}, "host bits")],
)
def test_webhook_settings_that_no_webhook_takes_are_reported(settings, options, words):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "WEBHOOKS": {"shop": options}}
    (error,) = checks.check_webhooks()
    assert error.id == "delaytasks.E060"
    assert "['WEBHOOKS']['shop']" in error.msg
    assert words in error.msg
