"""System checks with stable ids. Those that concern Redis run with `check --deploy` only.

Errors    E001 the DELAYTASKS setting, E002 topics with two handlers, E003 USE_TZ, E009 DELAYTASKS["TOPICS"]
Warnings  W004 Redis may evict, W005 Redis does not answer, W006 a TTR beyond Celery's time limit,
          W007 the broker's visibility timeout, W008 SQLite without IMMEDIATE or WAL, W010 no Redis
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Warning, register
from django.core.exceptions import ImproperlyConfigured
from django.db import router

from . import conf, topics
from .exceptions import MirrorDown

TAG = "delaytasks"
DEFAULT_VISIBILITY_SECONDS = 3600  # kombu's, for Redis and Sentinel
REDIS_TRANSPORTS = ("redis://", "rediss://", "redis+socket://", "sentinel://", "valkey://")


def _valid_settings() -> conf.Settings | None:
    try:
        return conf.get()
    except ImproperlyConfigured:
        return None  # E001 says so; the others have nothing to go by


@register(TAG)
def check_settings(**_kwargs: Any) -> list[CheckMessage]:
    """E001: DELAYTASKS has an unknown key or a value that cannot be."""
    try:
        conf.get()
    except ImproperlyConfigured as error:
        return [Error(str(error), hint="Correct the DELAYTASKS setting; delaytasks/conf.py lists every key with its "
                      "default.", id="delaytasks.E001")]  # fmt: skip
    return []


@register(TAG)
def check_clashes(**_kwargs: Any) -> list[CheckMessage]:
    """E002: two functions claim the same topic."""
    hint = "The first one found is used. Give one of them another topic."
    return [Error(clash, hint=hint, id="delaytasks.E002") for clash in topics.clashes]


@register(TAG)
def check_time_zone(**_kwargs: Any) -> list[CheckMessage]:
    """E003: naive datetimes mean an hour too early or too late, twice a year."""
    if settings.USE_TZ:
        return []
    return [Error("USE_TZ is False: due times would be naive datetimes.", hint="Set USE_TZ = True.",
                  id="delaytasks.E003")]  # fmt: skip


@register(TAG, deploy=True)
def check_redis(**_kwargs: Any) -> list[CheckMessage]:
    """W004, W005: asks each Redis master what it does when its memory is full."""
    config = _valid_settings()
    if config is None or not config.redis_url:
        return []
    from .mirror import connect

    try:
        mirror = connect()
        policies: Mapping[str, str] = mirror.eviction_policies() if mirror is not None else {}
    except ImproperlyConfigured as error:
        return [Error(str(error), id="delaytasks.E001")]
    except MirrorDown as error:
        return [Warning(f"Redis cannot be asked: {error}", hint="Jobs run from the database alone until it answers; "
                        "look after DELAYTASKS['REDIS_URL'].", id="delaytasks.W005")]  # fmt: skip
    return [
        Warning(
            f"Redis ({address}) may evict keys: its maxmemory-policy is {policy}.",
            hint="Set `maxmemory-policy noeviction`. An evicted entry is found again by the guards, but late.",
            id="delaytasks.W004",
        )
        for address, policy in sorted(policies.items())
        if policy != "noeviction"
    ]


def _held_seconds(config: conf.Settings, handler: topics.Handler) -> float:
    """The longest that one run_topic message of this topic goes on: its budget, then the attempt begun last."""
    return config.run_budget_seconds + handler.ttr_ms / 1000


def _handlers() -> Iterator[topics.Handler]:
    for topic in topics.handled():
        handler = topics.find(topic)
        if handler is not None:
            yield handler


@register(TAG)
def check_time_limits(**_kwargs: Any) -> list[CheckMessage]:
    """W006: Celery would end the worker's process before the handler's time is over."""
    config = _valid_settings()
    limits = [
        (name, getattr(settings, name, None)) for name in ("CELERY_TASK_TIME_LIMIT", "CELERY_TASK_SOFT_TIME_LIMIT")
    ]
    if config is None:
        return []
    return [
        Warning(
            f"Topic {handler.topic!r} may take {handler.ttr_ms / 1000:g} s (its TTR), but {name} is {limit:g} s.",
            hint="A run_topic message goes on for RUN_BUDGET_SECONDS and then finishes the attempt it is at: set "
            f"{name} to more than {_held_seconds(config, handler):g} s, or lower the handler's ttr.",
            id="delaytasks.W006",
        )
        for handler in _handlers()
        for name, limit in limits
        if limit is not None and limit < _held_seconds(config, handler)
    ]


@register(TAG)
def check_visibility(**_kwargs: Any) -> list[CheckMessage]:
    """W007: a Redis broker would deliver a bell again while its run is still going on."""
    config = _valid_settings()
    broker = getattr(settings, "CELERY_BROKER_URL", None) or ""
    held = max((_held_seconds(config, handler) for handler in _handlers()), default=0) if config else 0
    if not str(broker).startswith(REDIS_TRANSPORTS):
        return []
    options = getattr(settings, "CELERY_BROKER_TRANSPORT_OPTIONS", None) or {}
    visible = options.get("visibility_timeout", DEFAULT_VISIBILITY_SECONDS)
    if visible >= held:
        return []
    return [
        Warning(
            f"The broker's visibility timeout is {visible:g} s, but a run_topic message may be held for {held:g} s.",
            hint="No job would run twice, but needless bells would ring: set "
            f'CELERY_BROKER_TRANSPORT_OPTIONS = {{"visibility_timeout": {int(held) + 1}}} or more.',
            id="delaytasks.W007",
        )
    ]


@register(TAG)
def check_sqlite(**_kwargs: Any) -> list[CheckMessage]:
    """W008: without these, "database is locked" is a matter of time."""
    from .models import Job

    return [
        message
        for alias, database in settings.DATABASES.items()
        if str(database.get("ENGINE", "")).endswith("sqlite3") and router.allow_migrate_model(alias, Job)
        for message in _sqlite_messages(alias, database)
    ]


def _sqlite_messages(alias: str, database: Mapping[str, Any]) -> Iterator[CheckMessage]:
    options = database.get("OPTIONS") or {}
    if str(options.get("transaction_mode") or "").upper() != "IMMEDIATE":
        yield Warning(
            f"The SQLite database {alias!r} begins its transactions without the write lock.",
            hint='Set OPTIONS["transaction_mode"] = "IMMEDIATE", so that a transaction that comes to write does not '
            'fail with "database is locked" half-way.',
            id="delaytasks.W008",
        )
    in_memory = re.search(r":memory:|mode=memory", str(database.get("NAME", "")))
    wal = re.search(r"journal_mode\s*(=|\()\s*['\"]?wal\b", str(options.get("init_command") or ""), re.IGNORECASE)
    if not in_memory and not wal:
        yield Warning(
            f"The SQLite database {alias!r} is not put into WAL mode.",
            hint='Set OPTIONS["init_command"] = "PRAGMA journal_mode=WAL;", so that readers and the writer do not '
            "wait for each other.",
            id="delaytasks.W008",
        )


@register(TAG)
def check_topics_setting(**_kwargs: Any) -> list[CheckMessage]:
    """E009: DELAYTASKS["TOPICS"] names a topic or an option that cannot be."""
    config = _valid_settings()
    if config is None:
        return []
    hint = 'It reads like {"order.close": {"ttr": 60, "max_attempts": 5, "concurrency": 8}}, each option optional.'
    return [Error(f"DELAYTASKS: {wrong}", hint=hint, id="delaytasks.E009") for wrong in _topic_problems(config.topics)]


def _topic_problems(declared: object) -> list[str]:
    if not isinstance(declared, Mapping):
        return [f"TOPICS is {declared!r:.80}; it must be a dict."]
    no_dicts = {name: options for name, options in declared.items() if not isinstance(options, Mapping)}
    problems = [f"TOPICS[{name!r:.80}] is {options!r:.80}; it must be a dict." for name, options in no_dicts.items()]
    rest = {name: options for name, options in declared.items() if name not in no_dicts}
    return problems + topics.declared_problems(rest)


@register(TAG, deploy=True)
def check_mirror_configured(**_kwargs: Any) -> list[CheckMessage]:
    """W010: not wrong, but worth knowing in production."""
    config = _valid_settings()
    if config is None or config.redis_url:
        return []
    return [
        Info(
            "No Redis is configured: due jobs are looked for in the database alone.",
            hint="Correct, and slower than with DELAYTASKS['REDIS_URL'].",
            id="delaytasks.W010",
        )
    ]
