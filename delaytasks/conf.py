"""The `DELAYTASKS` setting: keys, defaults and validation."""

import difflib
import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

_TYPES: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "redis_url": (str, type(None)),
    "lake": (str, type(None)),
    "autodiscover": (str, type(None)),
    "runbook_url": (str, type(None)),
    "databases": (list, tuple, type(None)),
    "redact": (list, tuple),
}
_overrides: dict[str, Any] = {}
_SECRET = ("brokers", "webhooks")  # messages do not show their values


ALL_TOPICS = "*"  # key in RETENTION for all topics that have no age of their own
WEBHOOK_OPTIONS = ("secret", "allow_networks", "allow_http", "ca_file")
RETENTION_OPTIONS = ("ended", "dead")
MOST_AHEAD_MS = 100  # a worker that receives a job early waits idle until the job is due


@dataclass(frozen=True)
class Settings:
    """The settings with their defaults; the keys of `DELAYTASKS` are these names in capitals: `BUCKETS`, ..."""

    databases: Sequence[str] | None = None  # aliases whose jobs are run; None: the database to which Job is routed
    redis_url: str | None = None  # None: only the database is used, which is correct but slower
    redis_cluster: bool = False  # the URL names one node of a Redis Cluster
    redis_timeout_seconds: float = 1.0  # a Redis that takes longer counts as down
    prefix: str = "delaytasks"  # the beginning of all keys in Redis
    buckets: int = 4  # shards of the mirror; each is one slot of a Redis Cluster
    horizon_seconds: int = 3600  # jobs due later than this are not in the mirror yet
    claim_grace_ms: int = 5000  # for consumers over HTTP: time to claim a job in the database that Redis has reserved
    lease_seconds: int = 30  # a worker that gives no sign of life for so long is dead, and its jobs are taken back
    guard_tick_ms: int = 1000  # interval between two runs of the guard, and the longest sleep of a mover
    promote_limit: int = 1000  # jobs moved from delayed to ready by one script call
    batch_max: int = 200  # the most jobs that a run reserves, or a consumer claims, at once; more was slower
    run_budget_seconds: float = 10.0  # how long one run_topic task runs before it sends the next
    ahead_ms: int = 3  # how long before its due time a worker may receive a job, to claim it on time; 0: never
    linger_ms: int = 50  # how long a run_topic task waits for the next ready job before it ends; 0: not at all
    concurrency: int = 8  # run slots of a topic unless its handler or its Topic row says otherwise
    max_attempts: int = 25  # for topics without a handler in the process
    max_body_bytes: int = 65_536
    max_delay_seconds: int = 10 * 366 * 86_400
    ttr_grace_seconds: float = 5.0  # from the TTR interrupt until the watchdog kills a process that ignores it
    sweep_seconds: int = 30
    audit_seconds: int = 600
    reconcile_seconds: int = 300  # interval between two passes over the rows of each declared timeout
    health_ready_seconds: int = 300  # a health check fails if a job has been ready for so long and is not claimed
    metrics_port: int = 0  # each worker serves its metrics for Prometheus on this port; 0: not at all
    opentelemetry: bool = False  # spans of scheduling and of attempts; see docs/howto/opentelemetry.md
    runbook_url: str | None = None  # address of your copy of docs/howto/runbook.md; the board links to its sections
    mover_thread: bool = True  # run a mover in each Celery worker, for millisecond precision
    autodiscover: str | None = "timeouts"  # module of each app that has handlers; None: import them yourself
    lake: str | None = None  # the data pipeline's folder (a path or URI): archive, reports, audits, loads, stream
    # topic or "*" -> {"ended": age, "dead": age}: how long finished and cancelled jobs, and dead jobs, are kept after
    # their end, as timedelta; None: forever. Without it the sweep deletes no jobs
    retention: Mapping[str, Mapping[str, timedelta | None]] = field(default_factory=dict)
    redact: Sequence[str] = (  # values under body keys that contain one of these words are hidden from staff
        "password", "passwd", "pwd", "passphrase", "passcode", "secret", "token", "auth", "oauth", "authorization",
        "authentication", "jwt", "otp", "pin", "api_key", "access_key", "private_key", "signature", "credential",
        "cookie", "session", "dsn", "card_number", "account_number", "security_code", "cvv", "cvc", "iban", "ssn",
    )  # fmt: skip
    api_rate_per_minute: int = 6000  # requests per token or user; a token may have its own limit
    api_max_request_bytes: int = 4_194_304  # a token may have its own limit
    api_bytes_per_minute: int = 268_435_456  # of request bodies, per token or user
    api_max_live_jobs: int = 1_000_000  # live jobs that one token has created; a token may have its own limit
    api_max_wait_seconds: float = 60.0  # the longest that a consumer's request may wait for a job
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # topics without a handler in Python
    # name -> URL, or dict of options, of the brokers to which delaytasks.forwarding sends; see docs/howto/forward.md
    brokers: Mapping[str, str | Mapping[str, Any]] = field(default_factory=dict)
    # name -> secret, or dict of WEBHOOK_OPTIONS, for the webhooks of Topic rows; see docs/howto/webhooks.md
    webhooks: Mapping[str, Any] = field(default_factory=dict)
    # name -> options of delaytasks.inbox.Inbox: where messages are taken from; see docs/howto/inbox.md
    inboxes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    inbox_retention_days: int = 14  # how long a repeated message of an inbox is recognized

    def __post_init__(self) -> None:
        self._check_types()
        for name in (
            "redis_timeout_seconds", "buckets", "horizon_seconds", "claim_grace_ms", "lease_seconds", "guard_tick_ms",
            "promote_limit", "batch_max", "run_budget_seconds", "concurrency", "max_attempts",
            "max_body_bytes", "max_delay_seconds", "ttr_grace_seconds", "sweep_seconds", "audit_seconds",
            "reconcile_seconds",
            "health_ready_seconds", "api_rate_per_minute", "api_max_request_bytes", "api_bytes_per_minute",
            "api_max_live_jobs", "api_max_wait_seconds", "inbox_retention_days",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ImproperlyConfigured(f"DELAYTASKS[{name.upper()!r}] must be more than 0.")
        if not all(isinstance(word, str) and any(map(str.isalnum, word)) for word in self.redact):
            raise ImproperlyConfigured("DELAYTASKS['REDACT'] must be a list of words; use () to hide nothing.")
        self._check_retention()
        self._check_brokers()
        self._check_webhooks()
        for name in ("linger_ms", "ahead_ms", "metrics_port"):
            if getattr(self, name) < 0:
                raise ImproperlyConfigured(f"DELAYTASKS[{name.upper()!r}] must be 0 or more.")
        if self.ahead_ms > MOST_AHEAD_MS:
            raise ImproperlyConfigured(f"DELAYTASKS['AHEAD_MS'] must be at most {MOST_AHEAD_MS}.")
        if self.promote_limit > 3000:  # a script unpacks two arguments per job onto Lua's stack of 8,000
            raise ImproperlyConfigured("DELAYTASKS['PROMOTE_LIMIT'] must be at most 3000.")

    def _check_types(self) -> None:
        for field_ in fields(self):
            value, default = getattr(self, field_.name), field_.default
            types = _OPTIONAL.get(field_.name) or _TYPES.get(type(default), (Mapping,))
            if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
                allowed = " or ".join(each.__name__ for each in types)
                shown = f"a {type(value).__name__}" if field_.name in _SECRET else f"{value!r:.80}"
                raise ImproperlyConfigured(
                    f"DELAYTASKS[{field_.name.upper()!r}] is {shown}, of the wrong type: it must be {allowed}."
                )

    def _check_brokers(self) -> None:
        for name, broker in self.brokers.items():
            if not isinstance(broker, str | Mapping) or not broker:  # the message must not show a password
                raise ImproperlyConfigured(
                    f"DELAYTASKS['BROKERS'][{name!r}] is a {type(broker).__name__}; give a URL or a dict of options."
                )

    def _check_webhooks(self) -> None:
        for name, options in self.webhooks.items():  # the messages must not show a secret
            if not isinstance(options, str | list | Mapping) or not options:
                raise ImproperlyConfigured(
                    f"DELAYTASKS['WEBHOOKS'][{name!r}] is a {type(options).__name__}; give a secret, a list "
                    f"of secrets, or a dict with {', '.join(map(repr, WEBHOOK_OPTIONS))}."
                )
            unknown = set(options) - set(WEBHOOK_OPTIONS) if isinstance(options, Mapping) else ()
            if unknown:
                raise ImproperlyConfigured(
                    f"DELAYTASKS['WEBHOOKS'][{name!r}] has an unknown key {min(map(str, unknown))!r:.50}. Known keys: "
                    f"{', '.join(map(repr, WEBHOOK_OPTIONS))}."
                )

    def _check_retention(self) -> None:
        for topic, options in self.retention.items():
            if not isinstance(options, Mapping) or not options:
                raise ImproperlyConfigured(
                    f"DELAYTASKS['RETENTION'][{topic!r}] is {options!r:.80}; it must be a dict such as "
                    '{"ended": timedelta(days=30), "dead": timedelta(days=180)}.'
                )
            for option, age in options.items():
                if option not in RETENTION_OPTIONS:
                    known = ", ".join(map(repr, RETENTION_OPTIONS))
                    raise ImproperlyConfigured(
                        f"DELAYTASKS['RETENTION'][{topic!r}] has an unknown key {option!r}. Known keys: {known}."
                    )
                if age is not None and not (isinstance(age, timedelta) and age >= timedelta(0)):
                    raise ImproperlyConfigured(
                        f"DELAYTASKS['RETENTION'][{topic!r}][{option!r}] is {age!r:.80}; it must be a timedelta of 0 "
                        "or more, or None to keep the jobs forever."
                    )

    @property
    def horizon_ms(self) -> int:
        return self.horizon_seconds * 1000


def from_dict(given: Mapping[str, Any]) -> Settings:
    """Return the settings of a `DELAYTASKS` dict. Raises ImproperlyConfigured, which names the wrong key."""
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"DELAYTASKS is {given!r:.80}; it must be a dict.")
    known = {f.name.upper(): f.name for f in fields(Settings)}
    for key in given:
        if key not in known:
            matches = difflib.get_close_matches(str(key).upper(), known, n=1)
            hint = f" Did you mean {matches[0]!r}?" if matches else f" Known keys: {', '.join(sorted(known))}."
            raise ImproperlyConfigured(f"DELAYTASKS has an unknown key {key!r}.{hint}")
    return Settings(**{known[key]: value for key, value in given.items()})


@functools.cache
def get() -> Settings:
    """Return the current settings, cached until setting_changed is sent for DELAYTASKS, as by override_settings()."""
    given = getattr(django_settings, "DELAYTASKS", {})
    return from_dict({**given, **_overrides} if _overrides else given)


@contextmanager
def overridden(**keys: Any) -> Iterator[None]:
    """Use these keys instead of those of DELAYTASKS inside the block.

    For the test kit. Blocks of override_settings() must end in reverse order, which pytest-django does not ensure.
    """
    before = dict(_overrides)
    _overrides.update(keys)
    get.cache_clear()
    try:
        yield
    finally:
        _overrides.clear()
        _overrides.update(before)
        get.cache_clear()


def get_if_valid() -> Settings | None:
    """Return the current settings, or None if they are invalid. For system checks: E001 reports the error."""
    try:
        return get()
    except ImproperlyConfigured:
        return None


def _clear_cache(*, setting: str, **_: object) -> None:
    if setting == "DELAYTASKS":
        get.cache_clear()


setting_changed.connect(_clear_cache, dispatch_uid="delaytasks.conf")
