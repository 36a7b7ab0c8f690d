"""The system checks: each is seen to appear, and not to."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.apps import apps
from django.core import checks as django_checks

from delaytasks import checks, topics
from delaytasks.checks import TAG

OF_THE_API = {"delaytasks.W011"}  # tests/api looks after these


def found(*, deploy: bool = False) -> set[str]:
    messages = django_checks.run_checks(tags=[TAG], include_deployment_checks=deploy)
    return {message.id for message in messages} - OF_THE_API


def only(wanted: str, *, deploy: bool = False) -> list[Any]:
    messages = django_checks.run_checks(tags=[TAG], include_deployment_checks=deploy)
    return [message for message in messages if message.id == wanted]


@pytest.fixture
def slow_topic() -> Any:
    """A handler that may take a hundred seconds."""
    topics.handler("test.slow", ttr=100)(slow)
    yield
    topics.forget("test.slow")


def slow(job: object) -> None: ...


def other(job: object) -> None: ...


def test_a_sound_project_has_nothing_to_be_told():
    assert found() == set()


def test_every_message_has_a_hint(settings, slow_topic):
    settings.USE_TZ = False
    settings.CELERY_TASK_TIME_LIMIT = 1
    settings.DELAYTASKS = {"TOPICS": {"no spaces": {}}}
    assert len(found(deploy=True)) >= 4
    assert all(message.hint for message in django_checks.run_checks(tags=[TAG], include_deployment_checks=True))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"BUKETS": 4}, "Did you mean 'BUCKETS'?"),
        ({"BUCKETS": 0}, "DELAYTASKS['BUCKETS'] must be more than 0"),
        ({"BUCKETS": "four"}, "wrong type"),
    ],
)
def test_a_bad_setting_is_named_by_E001_and_hides_no_other_check(settings, wrong, says):
    settings.DELAYTASKS = wrong
    (message,) = only("delaytasks.E001")
    assert says in message.msg
    assert found(deploy=True) <= {"delaytasks.E001"}


def test_a_bad_setting_does_not_stop_the_app_from_loading(settings):
    settings.DELAYTASKS = {"NONSENSE": 1}
    apps.get_app_config("delaytasks").ready()
    assert "delaytasks.E001" in found()


def test_two_handlers_for_one_topic_are_E002(slow_topic, monkeypatch):
    monkeypatch.setattr(topics, "clashes", [])
    topics.handler("test.slow")(slow)
    assert "delaytasks.E002" not in found(), "the same function again, as after a reload, is no clash"
    topics.handler("test.slow")(other)
    (message,) = only("delaytasks.E002")
    assert "test.slow" in message.msg


def test_naive_datetimes_are_E003(settings):
    settings.USE_TZ = False
    assert "delaytasks.E003" in found()
    settings.USE_TZ = True
    assert "delaytasks.E003" not in found()


class FakeMirror:
    def __init__(self, policies: dict[str, str]) -> None:
        self.policies = policies

    def eviction_policies(self) -> dict[str, str]:
        return self.policies


def test_a_redis_that_may_evict_is_W004_for_each_such_master(settings, monkeypatch):
    settings.DELAYTASKS = {"REDIS_URL": "redis://nowhere"}
    fake = FakeMirror({"a:6379": "allkeys-lru", "b:6379": "noeviction"})
    monkeypatch.setattr("delaytasks.mirror.connect", lambda: fake)
    (message,) = only("delaytasks.W004", deploy=True)
    assert "a:6379" in message.msg
    assert "allkeys-lru" in message.msg
    fake.policies = {"a:6379": "noeviction"}
    assert found(deploy=True) == set()


def test_a_real_redis_is_asked_for_its_policy(with_redis, redis_server):
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "delaytasks.W004" in found(deploy=True)
        client.config_set("maxmemory-policy", "noeviction")
        assert found(deploy=True) == set()


def test_redis_is_asked_only_for_a_deployment(settings, monkeypatch):
    settings.DELAYTASKS = {"REDIS_URL": "redis://nowhere"}

    def asked() -> None:
        raise AssertionError("a plain check talks to nobody")

    monkeypatch.setattr("delaytasks.mirror.connect", asked)
    assert found() == set()


def test_a_redis_that_does_not_answer_is_W005(settings):
    settings.DELAYTASKS = {"REDIS_URL": "redis://127.0.0.1:1/0", "REDIS_TIMEOUT_SECONDS": 0.2}
    assert found(deploy=True) == {"delaytasks.W005"}


def test_an_address_that_is_none_is_E001(settings):
    settings.DELAYTASKS = {"REDIS_URL": "http://example.com"}
    assert found(deploy=True) == {"delaytasks.E001"}


@pytest.mark.parametrize("name", ["CELERY_TASK_TIME_LIMIT", "CELERY_TASK_SOFT_TIME_LIMIT"])
def test_a_ttr_beyond_celerys_time_limit_is_W006(settings, slow_topic, name):
    setattr(settings, name, 60)
    messages = [message for message in only("delaytasks.W006") if "test.slow" in message.msg]
    assert len(messages) == 1
    assert name in messages[0].msg
    setattr(settings, name, 10_000)
    assert "delaytasks.W006" not in found()


def test_the_time_limit_must_leave_room_for_what_ran_before_in_the_same_message(settings, slow_topic):
    settings.DELAYTASKS = {"RUN_BUDGET_SECONDS": 10}
    settings.CELERY_TASK_TIME_LIMIT = 105
    assert [m for m in only("delaytasks.W006") if "test.slow" in m.msg]
    settings.CELERY_TASK_TIME_LIMIT = 110
    assert not [m for m in only("delaytasks.W006") if "test.slow" in m.msg]


@pytest.mark.parametrize(
    "broker", ["redis://localhost/0", "rediss://localhost/0", "sentinel://a:1;sentinel://b:1", "redis+socket:///x"]
)
def test_a_visibility_timeout_shorter_than_a_run_is_W007(settings, slow_topic, broker):
    settings.CELERY_BROKER_URL = broker
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 60}
    assert "delaytasks.W007" in found()
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 7200}
    assert "delaytasks.W007" not in found()


def test_an_hours_ttr_is_too_long_for_the_default_visibility_timeout(settings):
    settings.CELERY_BROKER_URL = "redis://localhost/0"
    topics.handler("test.hour", ttr=3600)(slow)
    try:
        assert "delaytasks.W007" in found()
    finally:
        topics.forget("test.hour")
    assert "delaytasks.W007" not in found()


def test_a_broker_without_visibility_timeouts_is_left_alone(settings, slow_topic):
    settings.CELERY_BROKER_URL = "amqp://localhost"
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 1}
    assert "delaytasks.W007" not in found()


SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "x.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode = wal; PRAGMA foo"},
}


@pytest.fixture
def hints_for(monkeypatch) -> Any:
    """What W008 advises for a database of these settings."""

    def hints(**database: Any) -> list[str]:
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES={"default": database}))
        messages = checks.check_sqlite()
        assert {message.id for message in messages} <= {"delaytasks.W008"}
        return [str(message.hint) for message in messages]

    return hints


def test_sqlite_as_it_should_be_is_not_warned_of(hints_for):
    assert hints_for(**SQLITE) == []


@pytest.mark.parametrize(
    ("missing", "advice"), [("transaction_mode", "IMMEDIATE"), ("init_command", "journal_mode=WAL")]
)
def test_sqlite_without_immediate_or_wal_is_W008(hints_for, missing, advice):
    options = {name: value for name, value in SQLITE["OPTIONS"].items() if name != missing}
    (hint,) = hints_for(**SQLITE | {"OPTIONS": options})
    assert advice in hint


def test_sqlite_without_any_option_is_told_both(hints_for):
    assert len(hints_for(ENGINE="django.db.backends.sqlite3", NAME="x.sqlite3")) == 2


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared"])
def test_a_database_in_memory_cannot_have_wal_and_is_not_asked_for_it(hints_for, name):
    assert hints_for(**SQLITE | {"NAME": name, "OPTIONS": {"transaction_mode": "IMMEDIATE"}}) == []


def test_postgresql_is_not_asked_for_what_sqlite_needs(hints_for):
    assert hints_for(ENGINE="django.db.backends.postgresql", NAME="x") == []


@pytest.mark.parametrize(
    "declared",
    [
        {"no spaces": {}},
        {"mail.send": {"tttr": 60}},
        {"mail.send": {"ttr": 0}},
        {"mail.send": {"max_attempts": 0}},
        {"mail.send": {"concurrency": True}},
        {"mail.send": "fast"},
        {"mail.send": None},
    ],
)
def test_a_declared_topic_with_a_bad_name_or_option_is_E009(settings, declared):
    settings.DELAYTASKS = {"TOPICS": declared}
    assert "delaytasks.E009" in found()


def test_topics_that_are_no_dict_are_E001(settings):
    settings.DELAYTASKS = {"TOPICS": ["mail.send"]}
    assert "delaytasks.E001" in found()


def test_a_well_declared_topic_is_not_E009(settings):
    settings.DELAYTASKS = {"TOPICS": {"mail.send": {"ttr": 60, "max_attempts": 3, "concurrency": 2}, "sms": {}}}
    assert "delaytasks.E009" not in found()


def test_a_deployment_without_redis_is_told_so_by_W010(settings):
    settings.DELAYTASKS = {"REDIS_URL": None}
    assert "delaytasks.W010" in found(deploy=True)
    assert "delaytasks.W010" not in found()
