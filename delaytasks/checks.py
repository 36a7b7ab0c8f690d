"""System checks with stable ids. The checks that connect to Redis or PostgreSQL run only with `check --deploy`.

Errors    E001 the DELAYTASKS setting, E002 topics with two handlers, E003 USE_TZ, E009 DELAYTASKS["TOPICS"],
          E013 psycopg2, E017 SQLite's TIME_ZONE, E020 a handler's subject is not a model
Warnings  W004 Redis may evict, W005 Redis does not answer, W006 a TTR beyond Celery's time limit,
          W007 the broker's visibility timeout, W008 SQLite without IMMEDIATE or WAL, W010 no Redis,
          W012 the Celery app has no broker, W013 Redis over TCP without a password,
          W014 the audit log's triggers are missing, W015 settings for a connection pooler, W016 the isolation level,
          W018 PostgreSQL on another host without connect_timeout, W019 RETENTION names an unknown topic,
          W050 OpenTelemetry is not installed
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connections, router

from . import conf, databases, handlers, topics, tracing
from .databases import is_migrated, is_test_run
from .db import audit_triggers
from .db import checks as db_checks
from .exceptions import MirrorDown
from .timeouts.renames import is_installed

TAG = "delaytasks"
DEFAULT_VISIBILITY_SECONDS = 3600  # the default of kombu for Redis and Sentinel
REDIS_TRANSPORTS = ("redis://", "rediss://", "redis+socket://", "sentinel://", "valkey://")


@register(TAG)
def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """E001: DELAYTASKS has an unknown key or an invalid value."""
    try:
        config = conf.get()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Correct the DELAYTASKS setting; delaytasks/conf.py lists every key with its "
                      "default.", id="delaytasks.E001")]  # fmt: skip
    return [
        Error(f"DELAYTASKS['DATABASES'] has {alias!r}, which is no alias in the setting DATABASES.",
              hint=f"Use aliases of that setting: {', '.join(connections)}.", id="delaytasks.E001")
        for alias in config.databases or () if alias not in connections
    ]  # fmt: skip


@register(TAG)
def check_clashes(**_kwargs: Any) -> list[CheckMessage]:
    """E002: two handlers are registered for the same topic."""
    hint = "The first one registered is used. Give one of them another topic."
    return [Error(clash, hint=hint, id="delaytasks.E002") for clash in handlers.clashes]


@register(TAG)
def check_subject_models(**_kwargs: Any) -> list[CheckMessage]:
    """E020: a handler's `subject` is not a model."""
    return [
        Error(f"Topic {handler.topic!r}: its handler says subject={handler.subject!r}, which is not a model.",
              hint="Give the model or its label, such as 'shop.Order', of an app in INSTALLED_APPS.",
              id="delaytasks.E020")
        for handler in _handlers() if handler.subject is not None and not is_installed(handler.subject)
    ]  # fmt: skip


@register(TAG)
def check_time_zone(**_kwargs: Any) -> list[CheckMessage]:
    """E003: USE_TZ is False. With naive datetimes, jobs would be an hour early or late when clocks change."""
    if settings.USE_TZ:
        return []
    return [Error("USE_TZ is False: due times would be naive datetimes.", hint="Set USE_TZ = True.",
                  id="delaytasks.E003")]  # fmt: skip


@register(TAG)
def check_opentelemetry(**_kwargs: Any) -> list[CheckMessage]:
    """W050: DELAYTASKS["OPENTELEMETRY"] is True, but OpenTelemetry is not installed."""
    config = conf.get_if_valid()
    if config is None or not config.opentelemetry or tracing.is_installed():
        return []
    return [Warning("DELAYTASKS['OPENTELEMETRY'] is True, but opentelemetry-api is not installed: there are no spans.",
                    hint="pip install 'delaytasks[otel]', or remove the setting.", id="delaytasks.W050")]  # fmt: skip


@register(TAG, deploy=True)
def check_redis(**_kwargs: Any) -> list[CheckMessage]:
    """W004: a Redis master may evict keys. W005: Redis does not answer."""
    config = conf.get_if_valid()
    if config is None or not config.redis_url:
        return []
    from .mirror import connect

    try:
        mirror = connect()
        policies: Mapping[str, str] = mirror.eviction_policies() if mirror is not None else {}
    except ImproperlyConfigured as error:
        return [Error(str(error), id="delaytasks.E001")]
    except MirrorDown as error:
        return [Warning(f"Redis does not answer: {error}", hint="Until it does, jobs run from the database alone. "
                        "Check DELAYTASKS['REDIS_URL'] and the server.", id="delaytasks.W005")]  # fmt: skip
    return [
        Warning(
            f"Redis ({address}) may evict keys: its maxmemory-policy is {policy}.",
            hint="Set `maxmemory-policy noeviction`. The guards find an evicted job again, but late.",
            id="delaytasks.W004",
        )
        for address, policy in sorted(policies.items())
        if policy != "noeviction"
    ]


@register(TAG, deploy=True)
def check_redis_passwords(**_kwargs: Any) -> list[CheckMessage]:
    """W013: a Redis is used over TCP without a password, so that other programs on the network may use it too."""
    return [
        Warning(
            f"{setting} uses a Redis over TCP without a password.",
            hint="Set `requirepass` or a user with a password, and put it into the URL: rediss://:PASSWORD@HOST/0. Or "
            "use a Unix socket. A program that can write to this Redis can delay jobs, lift rate limits and falsify "
            "statistics; one that can write to the broker can start tasks.",
            id="delaytasks.W013",
        )
        for setting, urls in _redis_urls()
        if any(_is_open(url) for url in urls)
    ]


@register(TAG, Tags.database, deploy=True)
def check_audit_triggers(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W014: a database lacks the triggers that make the audit log append-only. Runs with --database only."""
    from .models import AuditEntry

    return [
        Warning(
            f"The audit log in the database {alias!r} can be changed: it has no trigger {', '.join(missing)}.",
            hint="Call delaytasks.db.audit_triggers.install(connection), for example in a migration.",
            id="delaytasks.W014",
        )
        for alias in databases or ()
        if router.allow_migrate_model(alias, AuditEntry)
        and AuditEntry._meta.db_table in connections[alias].introspection.table_names()
        and (missing := audit_triggers.missing(connections[alias]))
    ]


@register(TAG, Tags.database)
def check_retention_topics(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W019: RETENTION names a topic that is unknown in the checked databases. Runs with --database only."""
    from .models import Topic

    config, aliases = conf.get_if_valid(), [alias for alias in databases or () if is_migrated(alias, Topic)]
    if config is None or not aliases or is_test_run():
        return []
    known = {conf.ALL_TOPICS}.union(*map(topics.known, aliases))
    return [
        Warning(
            f"DELAYTASKS['RETENTION'] names the topic {topic!r}, which has no handler, no setting and no Topic row "
            f"in {', '.join(aliases)}.",
            hint="Correct or remove it. Jobs of topics that RETENTION does not name are kept as its '*' says.",
            id="delaytasks.W019",
        )
        for topic in sorted(config.retention.keys() - known)
    ]


def _redis_urls() -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the URLs of each setting that may name a Redis."""
    config = conf.get_if_valid()
    yield "DELAYTASKS['REDIS_URL']", _url_list(config and config.redis_url)
    yield "CELERY_BROKER_URL", _broker_urls()
    for alias, cache in settings.CACHES.items():
        options = cache.get("OPTIONS") or {}
        credentials = options.get("password") or (options.get("CONNECTION_POOL_KWARGS") or {}).get("password")
        yield f"CACHES[{alias!r}]", [] if credentials or options.get("PASSWORD") else _url_list(cache.get("LOCATION"))


def _broker_urls() -> list[str]:
    """Return the URLs of the Celery app's broker, or of the setting, which this process may not have loaded."""
    from celery import current_app

    return _url_list(current_app.conf.broker_read_url or getattr(settings, "CELERY_BROKER_URL", None))


def _url_list(urls: Any) -> list[str]:
    """Return the URLs of a setting, which may be a list or one text with several URLs."""
    texts = urls if isinstance(urls, list | tuple) else [urls or ""]
    return [url for text in texts for url in re.split(r"[;,\s]+(?=\w+(?:\+\w+)?://)", str(text))]


def _is_open(url: str) -> bool:
    parts = urlsplit(url)
    return parts.scheme in ("redis", "rediss", "valkey", "valkeys", "sentinel") and not (
        parts.password or "password" in parse_qs(parts.query)
    )


def _max_run_seconds(config: conf.Settings, handler: handlers.Handler) -> float:
    """Return the longest run time in seconds of a run_topic task of this topic: RUN_BUDGET_SECONDS plus one attempt."""
    return config.run_budget_seconds + handler.ttr_ms / 1000


def _handlers() -> Iterator[handlers.Handler]:
    for topic in handlers.handled():
        handler = handlers.find(topic)
        if handler is not None:
            yield handler


@register(TAG)
def check_time_limits(**_kwargs: Any) -> list[CheckMessage]:
    """W006: Celery's time limit is below the longest time of a run_topic task, so Celery may kill handlers."""
    from celery import current_app

    config = conf.get_if_valid()
    if config is None:
        return []
    limits = [(name, current_app.conf[name]) for name in ("task_time_limit", "task_soft_time_limit")]
    return [
        Warning(
            f"Topic {handler.topic!r} may take {handler.ttr_ms / 1000:g} s (its TTR), but Celery's {name} is "
            f"{limit:g} s.",
            hint="A run_topic task runs for RUN_BUDGET_SECONDS and then finishes its current attempt: set "
            f"{name} to more than {_max_run_seconds(config, handler):g} s, or lower the handler's ttr.",
            id="delaytasks.W006",
        )
        for handler in _handlers()
        for name, limit in limits
        if limit is not None and limit < _max_run_seconds(config, handler)
    ]


@register(TAG)
def check_visibility(**_kwargs: Any) -> list[CheckMessage]:
    """W007: a Redis broker would deliver a run_topic message again while its task is running."""
    from celery import current_app

    config = conf.get_if_valid()
    run_seconds = max((_max_run_seconds(config, handler) for handler in _handlers()), default=0) if config else 0
    if not any(url.startswith(REDIS_TRANSPORTS) for url in _broker_urls()):
        return []
    options = current_app.conf.broker_transport_options or getattr(settings, "CELERY_BROKER_TRANSPORT_OPTIONS", {})
    timeout = options.get("visibility_timeout", DEFAULT_VISIBILITY_SECONDS)
    if timeout >= run_seconds:
        return []
    return [
        Warning(
            f"The broker's visibility timeout is {timeout:g} s, but a run_topic task may run for {run_seconds:g} s.",
            hint="The broker would deliver its message again. No job runs twice, but the message is wasted: set "
            f'CELERY_BROKER_TRANSPORT_OPTIONS = {{"visibility_timeout": {int(run_seconds) + 1}}} or more.',
            id="delaytasks.W007",
        )
    ]


@register(TAG)
def check_broker(**_kwargs: Any) -> list[CheckMessage]:
    """W012: without a broker, Celery connects to RabbitMQ on the same host."""
    from celery import current_app

    from .celery.bootsteps import is_installed

    if not is_installed(current_app) or _has_broker(current_app.conf):
        return []
    return [
        Warning(
            f"The Celery app {current_app.main!r} has no broker: it would look for RabbitMQ on this host.",
            hint='Set CELERY_BROKER_URL = "redis://localhost:6379/1", or the address of your broker, and load it with '
            'app.config_from_object("django.conf:settings", namespace="CELERY"). To use RabbitMQ on this host, '
            'set it to "amqp://guest@localhost//".',
            id="delaytasks.W012",
        )
    ]


def _has_broker(conf: Any) -> bool:
    """Return whether the Celery app has a broker for reading and writing, or needs none."""
    has_urls = conf.broker_read_url and conf.broker_write_url  # both default to broker_url
    return bool(has_urls or conf.broker_transport or conf.task_always_eager)


@register(TAG)
def check_sqlite(**_kwargs: Any) -> list[CheckMessage]:
    """E017: times would not be stored in UTC. W008: without IMMEDIATE or WAL, "database is locked" under load."""
    from .models import Job

    return [
        message
        for alias, database in settings.DATABASES.items()
        if str(database.get("ENGINE", "")).endswith("sqlite3") and router.allow_migrate_model(alias, Job)
        for message in _sqlite_messages(alias, database)
    ]


def _sqlite_messages(alias: str, database: Mapping[str, Any]) -> Iterator[CheckMessage]:
    if database.get("TIME_ZONE") not in (None, "UTC", "Etc/UTC"):
        yield Error(
            f"DATABASES[{alias!r}]['TIME_ZONE'] is {database['TIME_ZONE']!r}: Django would store times in this zone, "
            "but the SQL of delaytasks reads and writes times in UTC.",
            hint="Remove TIME_ZONE from this database; the project's own TIME_ZONE setting can stay. Convert the times "
            "that are already stored, or keep jobs and models with timeouts in another database "
            "(DELAYTASKS['DATABASES']).",
            id="delaytasks.E017",
        )
    options = database.get("OPTIONS") or {}
    if str(options.get("transaction_mode") or "").upper() != "IMMEDIATE":
        yield Warning(
            f"The SQLite database {alias!r} does not take the write lock when a transaction begins.",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE". Otherwise a transaction that reads and then writes '
            'may fail with "database is locked".',
            id="delaytasks.W008",
        )
    in_memory = re.search(r":memory:|mode=memory", str(database.get("NAME", "")))
    wal = re.search(r"journal_mode\s*(=|\()\s*['\"]?wal\b", str(options.get("init_command") or ""), re.IGNORECASE)
    if not in_memory and not wal:
        yield Warning(
            f"The SQLite database {alias!r} is not in WAL mode.",
            hint='Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL;", so that readers and the writer do not '
            "block each other.",
            id="delaytasks.W008",
        )


def _postgresql_aliases() -> list[str]:
    if conf.get_if_valid() is None:
        return []
    return [
        alias for alias in databases.aliases() if alias in connections and connections[alias].vendor == "postgresql"
    ]


@register(TAG)
def check_driver(**_kwargs: Any) -> list[CheckMessage]:
    """E013: Django uses psycopg2, which delaytasks does not support."""
    return [message for alias in _postgresql_aliases() for message in db_checks.driver_messages(alias)]


@register(TAG, deploy=True)
def check_connections(**_kwargs: Any) -> list[CheckMessage]:
    """W015: settings that do not work behind a connection pooler. W016: the isolation level. W018: connect_timeout."""
    messages: list[CheckMessage] = []
    for alias in _postgresql_aliases():
        messages += db_checks.timeout_messages(alias, connections[alias].settings_dict)
        with suppress(DatabaseError):  # Django itself reports a database that does not answer
            messages += db_checks.connection_messages(alias)
    return messages


@register(TAG)
def check_topics_setting(**_kwargs: Any) -> list[CheckMessage]:
    """E009: DELAYTASKS["TOPICS"] has an invalid topic or option."""
    config = conf.get_if_valid()
    if config is None:
        return []
    hint = 'Example: {"order.close": {"ttr": 60, "max_attempts": 5, "concurrency": 8}}, all options are optional.'
    return [
        Error(f"DELAYTASKS: {problem}", hint=hint, id="delaytasks.E009") for problem in _topic_problems(config.topics)
    ]


def _topic_problems(declared: object) -> list[str]:
    if not isinstance(declared, Mapping):
        return [f"TOPICS is {declared!r:.80}; it must be a dict."]
    no_dicts = {name: options for name, options in declared.items() if not isinstance(options, Mapping)}
    problems = [f"TOPICS[{name!r:.80}] is {options!r:.80}; it must be a dict." for name, options in no_dicts.items()]
    dicts = {name: options for name, options in declared.items() if name not in no_dicts}
    return problems + handlers.declared_problems(dicts)


@register(TAG, deploy=True)
def check_mirror_configured(**_kwargs: Any) -> list[CheckMessage]:
    """W010: no Redis is configured, which is correct but slower."""
    config = conf.get_if_valid()
    if config is None or config.redis_url:
        return []
    return [
        Info(
            "No Redis is configured: due jobs are found by polling the database.",
            hint="This is correct, but slower than with DELAYTASKS['REDIS_URL'].",
            id="delaytasks.W010",
        )
    ]
