"""The system checks: each one with and without its problem."""

from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state
from django.apps import apps
from django.core import checks as django_checks
from django.db import connection

from delaytasks import checks, databases, handlers
from delaytasks.celery import install
from delaytasks.checks import TAG
from delaytasks.db import checks as db_checks
from delaytasks.models import Topic

API_CHECKS = {"delaytasks.W011"}  # tested in tests/api


def check_ids(*, deploy: bool = False) -> set[str]:
    messages = django_checks.run_checks(tags=[TAG], include_deployment_checks=deploy)
    return {message.id for message in messages} - API_CHECKS


def messages_of(check_id: str, *, deploy: bool = False) -> list[Any]:
    messages = django_checks.run_checks(tags=[TAG], include_deployment_checks=deploy)
    return [message for message in messages if message.id == check_id]


@pytest.fixture
def slow_topic() -> Any:
    """A handler with a TTR of 100 s."""
    handlers.handler("test.slow", ttr=100)(slow)
    yield
    handlers.unregister("test.slow")


def slow(job: object) -> None: ...


def other(job: object) -> None: ...


def test_a_correct_project_has_no_messages():
    assert check_ids() == set()


def test_every_message_has_a_hint(settings, slow_topic):
    settings.USE_TZ = False
    settings.CELERY_TASK_TIME_LIMIT = 1
    settings.DELAYTASKS = {"TOPICS": {"no spaces": {}}}
    assert len(check_ids(deploy=True)) >= 4
    assert all(message.hint for message in django_checks.run_checks(tags=[TAG], include_deployment_checks=True))


@pytest.mark.parametrize(
    ("setting", "message_part"),
    [
        ({"BUKETS": 4}, "Did you mean 'BUCKETS'?"),
        ({"BUCKETS": 0}, "DELAYTASKS['BUCKETS'] must be more than 0"),
        ({"BUCKETS": "four"}, "wrong type"),
    ],
)
def test_an_invalid_setting_is_E001_and_breaks_no_other_check(settings, setting, message_part):
    settings.DELAYTASKS = setting
    (message,) = messages_of("delaytasks.E001")
    assert message_part in message.msg
    assert check_ids(deploy=True) <= {"delaytasks.E001"}


def test_the_app_loads_with_an_invalid_setting(settings):
    settings.DELAYTASKS = {"NONSENSE": 1}
    apps.get_app_config("delaytasks").ready()
    assert "delaytasks.E001" in check_ids()


def test_two_handlers_for_one_topic_are_E002(slow_topic, monkeypatch):
    monkeypatch.setattr(handlers, "clashes", [])
    handlers.handler("test.slow")(slow)
    assert "delaytasks.E002" not in check_ids(), "registering the same function again, as after a reload, is allowed"
    handlers.handler("test.slow")(other)
    (message,) = messages_of("delaytasks.E002")
    assert "test.slow" in message.msg


def test_naive_datetimes_are_E003(settings):
    settings.USE_TZ = False
    assert "delaytasks.E003" in check_ids()
    settings.USE_TZ = True
    assert "delaytasks.E003" not in check_ids()


class FakeMirror:
    def __init__(self, policies: dict[str, str]) -> None:
        self.policies = policies

    def eviction_policies(self) -> dict[str, str]:
        return self.policies


def test_each_redis_master_that_may_evict_is_W004(settings, monkeypatch):
    settings.DELAYTASKS = {"REDIS_URL": "redis://nowhere"}
    fake = FakeMirror({"a:6379": "allkeys-lru", "b:6379": "noeviction"})
    monkeypatch.setattr("delaytasks.mirror.connect", lambda: fake)
    (message,) = messages_of("delaytasks.W004", deploy=True)
    assert "a:6379" in message.msg
    assert "allkeys-lru" in message.msg
    fake.policies = {"a:6379": "noeviction"}
    assert check_ids(deploy=True) == {"delaytasks.W013"}


def test_the_eviction_policy_of_a_real_redis_is_read(with_redis, redis_server):
    with redis_server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        assert "delaytasks.W004" in check_ids(deploy=True)
        client.config_set("maxmemory-policy", "noeviction")
        assert check_ids(deploy=True) == {"delaytasks.W013"}


def test_redis_is_checked_only_with_deploy(settings, monkeypatch):
    settings.DELAYTASKS = {"REDIS_URL": "redis://nowhere"}

    def connect() -> None:
        raise AssertionError("a check without --deploy uses no network")

    monkeypatch.setattr("delaytasks.mirror.connect", connect)
    assert check_ids() == set()


def test_a_redis_that_does_not_answer_is_W005(settings):
    settings.DELAYTASKS = {"REDIS_URL": "redis://:secret@127.0.0.1:1/0", "REDIS_TIMEOUT_SECONDS": 0.2}
    assert check_ids(deploy=True) == {"delaytasks.W005"}


def test_an_alias_that_django_does_not_have_is_E001(settings):
    settings.DELAYTASKS = {"DATABASES": ["default", "shop"]}
    (message,) = messages_of("delaytasks.E001")
    assert message.msg == "DELAYTASKS['DATABASES'] has 'shop', which is no alias in the setting DATABASES."
    assert message.hint == "Use aliases of that setting: default."


@pytest.mark.django_db
def test_the_checks_of_databases_accept_a_router_to_a_database_whose_jobs_are_not_run(settings):
    settings.DELAYTASKS = {"DATABASES": ["default"]}
    settings.DATABASE_ROUTERS = [SimpleNamespace(db_for_write=lambda model, **hints: "shop")]
    messages = django_checks.run_checks(tags=[TAG], databases=["default"])
    assert "delaytasks.E045" in {message.id for message in messages}


def test_an_invalid_redis_url_is_E001(settings):
    settings.DELAYTASKS = {"REDIS_URL": "http://example.com"}
    assert check_ids(deploy=True) == {"delaytasks.E001"}


REDIS_CACHE = "django.core.cache.backends.redis.RedisCache"


def caches(location: Any, **options: Any) -> dict[str, Any]:
    return {"CACHES": {"default": {"BACKEND": REDIS_CACHE, "LOCATION": location, "OPTIONS": options}}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"DELAYTASKS": {"REDIS_URL": "redis://127.0.0.1:1/0", "REDIS_TIMEOUT_SECONDS": 0.2}},
            "DELAYTASKS['REDIS_URL']",
        ),
        ({"CELERY_BROKER_URL": "redis://redis:6379/1"}, "CELERY_BROKER_URL"),
        ({"CELERY_BROKER_URL": "sentinel://:secret@a:1;sentinel://b:1"}, "CELERY_BROKER_URL"),
        (caches("rediss://anna@redis:6379/1"), "CACHES['default']"),
        (caches(["redis://:secret@a:1", "redis://b:1"]), "CACHES['default']"),
    ],
)
def test_a_redis_over_tcp_without_a_password_is_W013(settings, changes, named):
    for name, value in changes.items():
        setattr(settings, name, value)
    (message,) = messages_of("delaytasks.W013", deploy=True)
    assert message.msg.startswith(named)
    assert messages_of("delaytasks.W013") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"CELERY_BROKER_URL": "redis://:secret@redis:6379/1"},
        {"CELERY_BROKER_URL": "redis://redis:6379/1?password=secret"},
        {"CELERY_BROKER_URL": "redis+socket:///run/redis.sock"},
        {"CELERY_BROKER_URL": "amqp://guest@localhost//"},
        caches("unix:///run/redis.sock"),
        caches("redis://redis:6379/1", password="secret"),
        caches("/var/tmp/cache"),
    ],
    ids=str,
)
def test_a_redis_with_a_password_or_a_socket_is_not_W013(settings, changes):
    for name, value in changes.items():
        setattr(settings, name, value)
    assert messages_of("delaytasks.W013", deploy=True) == []


@pytest.mark.parametrize("name", ["task_time_limit", "task_soft_time_limit"])
def test_a_ttr_beyond_celerys_time_limit_is_W006(celery_app, slow_topic, name):
    celery_app.conf[name] = 60
    messages = [message for message in messages_of("delaytasks.W006") if "test.slow" in message.msg]
    assert len(messages) == 1
    assert name in messages[0].msg
    celery_app.conf[name] = 10_000
    assert "delaytasks.W006" not in check_ids()


def test_the_time_limit_must_include_the_run_budget(celery_app, settings, slow_topic):
    settings.DELAYTASKS = {"RUN_BUDGET_SECONDS": 10}
    settings.CELERY_TASK_TIME_LIMIT = 105
    celery_app.config_from_object("django.conf:settings", namespace="CELERY")
    assert [m for m in messages_of("delaytasks.W006") if "test.slow" in m.msg]
    celery_app.conf.task_time_limit = 110
    assert not [m for m in messages_of("delaytasks.W006") if "test.slow" in m.msg]


@pytest.mark.parametrize(
    "broker",
    [
        "redis://localhost/0", "rediss://localhost/0", "sentinel://a:1;sentinel://b:1", "redis+socket:///x",
        ["redis://a/0", "redis://b/0"],
    ],
    ids=str,
)  # fmt: skip
def test_a_visibility_timeout_shorter_than_a_run_is_W007(settings, slow_topic, broker):
    settings.CELERY_BROKER_URL = broker
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 60}
    assert "delaytasks.W007" in check_ids()
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 7200}
    assert "delaytasks.W007" not in check_ids()


def test_a_ttr_of_an_hour_exceeds_the_default_visibility_timeout(settings):
    settings.CELERY_BROKER_URL = "redis://localhost/0"
    handlers.handler("test.hour", ttr=3600)(slow)
    try:
        assert "delaytasks.W007" in check_ids()
    finally:
        handlers.unregister("test.hour")
    assert "delaytasks.W007" not in check_ids()


def test_a_celery_app_that_is_not_configured_by_the_settings_is_checked_as_well(settings, slow_topic, celery_app):
    celery_app.conf.update(broker_url="redis://localhost/0", broker_transport_options={"visibility_timeout": 60})
    assert "delaytasks.W007" in check_ids()
    assert ("CELERY_BROKER_URL", ["redis://localhost/0"]) in list(checks._redis_urls())


def test_a_broker_without_visibility_timeouts_is_not_checked(settings, slow_topic):
    settings.CELERY_BROKER_URL = "amqp://localhost"
    settings.CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 1}
    assert "delaytasks.W007" not in check_ids()


SQLITE: dict[str, Any] = {
    "ENGINE": "django.db.backends.sqlite3",
    "NAME": "x.sqlite3",
    "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode = wal; PRAGMA foo"},
}


@pytest.fixture
def hints_for(monkeypatch) -> Any:
    """Return the hints of W008 for a database with these settings."""

    def hints(**database: Any) -> list[str]:
        monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES={"default": database}))
        messages = checks.check_sqlite()
        assert {message.id for message in messages} <= {"delaytasks.W008"}
        return [str(message.hint) for message in messages]

    return hints


def test_a_recommended_sqlite_configuration_has_no_warning(hints_for):
    assert hints_for(**SQLITE) == []


@pytest.mark.parametrize(
    ("missing", "advice"), [("transaction_mode", "IMMEDIATE"), ("init_command", "journal_mode=WAL")]
)
def test_sqlite_without_immediate_or_wal_is_W008(hints_for, missing, advice):
    options = {name: value for name, value in SQLITE["OPTIONS"].items() if name != missing}
    (hint,) = hints_for(**SQLITE | {"OPTIONS": options})
    assert advice in hint


def test_sqlite_without_options_gets_both_hints(hints_for):
    assert len(hints_for(ENGINE="django.db.backends.sqlite3", NAME="x.sqlite3")) == 2


def test_a_time_zone_of_a_sqlite_database_is_E017(hints_for, monkeypatch):
    assert hints_for(**SQLITE | {"TIME_ZONE": "UTC"}) == []
    database = SQLITE | {"TIME_ZONE": "Europe/Berlin"}
    monkeypatch.setattr(checks, "settings", SimpleNamespace(DATABASES={"default": database}))
    (error,) = checks.check_sqlite()
    assert (error.id, "'Europe/Berlin'" in error.msg) == ("delaytasks.E017", True)


@pytest.mark.parametrize("name", [":memory:", "file:x?mode=memory&cache=shared"])
def test_an_in_memory_database_needs_no_wal(hints_for, name):
    assert hints_for(**SQLITE | {"NAME": name, "OPTIONS": {"transaction_mode": "IMMEDIATE"}}) == []


def test_postgresql_is_not_checked_for_sqlite_options(hints_for):
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
def test_an_invalid_declared_topic_is_E009(settings, declared):
    settings.DELAYTASKS = {"TOPICS": declared}
    assert "delaytasks.E009" in check_ids()


def test_topics_that_are_not_a_dict_are_E001(settings):
    settings.DELAYTASKS = {"TOPICS": ["mail.send"]}
    assert "delaytasks.E001" in check_ids()


def test_a_valid_declared_topic_is_not_E009(settings):
    settings.DELAYTASKS = {"TOPICS": {"mail.send": {"ttr": 60, "max_attempts": 3, "concurrency": 2}, "sms": {}}}
    assert "delaytasks.E009" not in check_ids()


def test_a_deployment_without_redis_is_W010(settings):
    settings.DELAYTASKS = {"REDIS_URL": None}
    assert "delaytasks.W010" in check_ids(deploy=True)
    assert "delaytasks.W010" not in check_ids()


BROKER_VARIABLES = ("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL")


@pytest.fixture
def celery_app(monkeypatch) -> Any:
    """A Celery app with delaytasks installed and no broker configured."""
    for name in BROKER_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    app = Celery("mysite", set_as_current=False)
    install(app)
    monkeypatch.setattr(_state._tls, "current_app", app)
    return app


def test_a_celery_app_without_a_broker_is_W012(celery_app):
    (message,) = messages_of("delaytasks.W012")
    assert "mysite" in message.msg
    assert "CELERY_BROKER_URL" in message.hint


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "redis://localhost:6379/1"},
        {"broker_url": "amqp://guest@localhost//"},
        {"broker_url": ["amqp://a//", "amqp://b//"]},
        {"broker_read_url": "amqp://reader@a//", "broker_write_url": "amqp://writer@a//"},
        {"broker_transport": "sqs"},
        {"task_always_eager": True},
    ],
)
def test_a_broker_in_the_apps_conf_is_not_W012(celery_app, conf):
    celery_app.conf.update(conf)
    assert "delaytasks.W012" not in check_ids()


def test_a_broker_given_to_the_app_itself_is_not_W012(celery_app, monkeypatch):
    app = Celery("mysite", broker="redis://localhost:6379/1", set_as_current=False)
    install(app)
    monkeypatch.setattr(_state._tls, "current_app", app)
    assert "delaytasks.W012" not in check_ids()


def test_a_broker_in_the_environment_is_not_W012(celery_app, monkeypatch):
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://localhost:6379/1")
    assert "delaytasks.W012" not in check_ids()


def test_a_broker_only_for_writing_is_W012(celery_app):
    celery_app.conf.broker_write_url = "redis://localhost:6379/1"
    assert "delaytasks.W012" in check_ids()


def test_a_broker_in_the_django_settings_is_not_W012(celery_app, settings):
    settings.CELERY_BROKER_URL = "redis://localhost:6379/1"
    celery_app.config_from_object("django.conf:settings", namespace="CELERY")
    assert "delaytasks.W012" not in check_ids()


def test_a_celery_app_that_does_not_run_delaytasks_is_not_W012(celery_app, monkeypatch):
    monkeypatch.setattr(_state._tls, "current_app", Celery("another", set_as_current=False))
    assert "delaytasks.W012" not in check_ids()


def test_psycopg2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db.backends.postgresql import psycopg_any

    assert list(db_checks.driver_messages("default")) == []
    monkeypatch.setattr(psycopg_any, "is_psycopg3", False)
    (message,) = db_checks.driver_messages("default")
    assert (message.id, message.level) == ("delaytasks.E013", django_checks.ERROR)
    assert "psycopg[binary]" in message.hint


@pytest.mark.parametrize(
    ("database", "waits"),
    [
        ({"HOST": "db.example.com"}, True),
        ({"HOST": "db1,db2", "OPTIONS": {"connect_timeout": 0}}, True),  # no limit
        ({"HOST": "db.example.com", "OPTIONS": {"connect_timeout": 2}}, False),
        ({"HOST": "db.example.com", "OPTIONS": {"service": "shop"}}, False),  # it may be in the service file
        ({"HOST": ""}, False),
        ({"HOST": "/run/postgresql"}, False),
    ],
)
def test_a_database_on_a_network_needs_a_limit_for_connecting(database: dict[str, Any], waits: bool) -> None:
    messages = list(db_checks.timeout_messages("default", {"OPTIONS": {}, **database}))
    assert [message.id for message in messages] == ["delaytasks.W018"] * waits


def test_the_limit_for_connecting_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "2")
    assert not list(db_checks.timeout_messages("default", {"HOST": "db.example.com", "OPTIONS": {}}))


@pytest.mark.only_on("postgresql")
def test_the_limit_for_connecting_is_checked_at_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.settings_dict, "HOST", "127.0.0.1")
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {})
    monkeypatch.setattr(db_checks, "connection_messages", lambda using: [])
    assert not messages_of("delaytasks.W018")
    assert len(messages_of("delaytasks.W018", deploy=True)) == 1


@pytest.mark.only_on("postgresql")
@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_another_isolation_level_than_read_committed_is_mentioned(transactional_db, level: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER ROLE CURRENT_USER SET default_transaction_isolation = %s", [level])
    connection.close()
    try:
        messages = messages_of("delaytasks.W016", deploy=True)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER ROLE CURRENT_USER RESET default_transaction_isolation")
        connection.close()
    assert [level.upper() in message.msg for message in messages] == ([] if level == "read committed" else [True])


@pytest.mark.only_on("postgresql")
def test_a_direct_connection_is_no_pooler(transactional_db) -> None:
    assert messages_of("delaytasks.W015", deploy=True) == []
    assert messages_of("delaytasks.E013") == []
    assert {message.id for message in db_checks.pooler_messages("default")} == {"delaytasks.W015"}


@pytest.mark.django_db
def test_a_table_that_lacks_a_column_is_not_migrated(monkeypatch: pytest.MonkeyPatch) -> None:
    """`migrate` runs the checks of the database before the migrations."""
    assert databases.is_migrated("default", Topic)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE partly_migrated (name text)")
    for table in ("partly_migrated", "nowhere"):
        monkeypatch.setattr(Topic._meta, "db_table", table)
        assert not databases.is_migrated("default", Topic)


@pytest.mark.django_db
def test_a_topic_of_the_retention_that_nothing_knows_is_W019(settings, monkeypatch):
    monkeypatch.setattr(checks, "is_test_run", lambda: False)
    Topic.objects.create(name="test.row")
    retention = {name: {"ended": None} for name in ("*", "order.close", "test.row", "oder.close")}
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RETENTION": retention}
    (warning,) = checks.check_retention_topics(databases=["default"])
    assert warning.id == "delaytasks.W019"
    assert "names the topic 'oder.close'" in warning.msg
    del retention["oder.close"]
    assert checks.check_retention_topics(databases=["default"]) == []
    assert checks.check_retention_topics() == []
