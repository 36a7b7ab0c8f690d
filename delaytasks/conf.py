"""Settings: one dict `DELAYTASKS`, documented defaults, unknown keys refused by name."""

import difflib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

_KINDS: dict[type, tuple[type, ...]] = {int: (int,), float: (int, float), bool: (bool,), str: (str,)}
_OPTIONAL: dict[str, tuple[type, ...]] = {
    "redis_url": (str, type(None)),
    "lake": (str, type(None)),
    "autodiscover": (str, type(None)),
    "databases": (list, tuple, type(None)),
    "redact": (list, tuple),
}


MOST_AHEAD_MS = 100  # who has been handed a job does nothing else until it is due


@dataclass(frozen=True)
class Settings:
    """What `DELAYTASKS = {...}` may hold, in capitals there: `BUCKETS`, `HORIZON_SECONDS`, ..."""

    databases: Sequence[str] | None = None  # aliases whose jobs are run; None: where the router writes Job
    redis_url: str | None = None  # None: database only, slower and still correct
    redis_cluster: bool = False  # the URL names one node of a Redis Cluster
    redis_timeout_seconds: float = 1.0  # a Redis that takes longer counts as down
    prefix: str = "delaytasks"  # of every key in Redis
    buckets: int = 4  # shards of the mirror; each one slot of a Redis Cluster
    horizon_seconds: int = 3600  # jobs due later than this are rows only
    claim_grace_ms: int = 5000  # between reserving in the mirror and claiming in the database
    guard_tick_ms: int = 1000  # the longest rest of a mover and the period of the guards
    promote_limit: int = 1000  # members moved from due to ready by one call
    batch_max: int = 200  # jobs claimed at once, at most; more was measured to be slower
    run_budget_seconds: float = 10.0  # how long one run_topic goes on before it rings for another
    ahead_ms: int = 3  # how long before its due time a job is handed to who will claim it at that time; 0: not before
    linger_ms: int = 50  # how long a run_topic waits for the next ready job before it leaves; 0: not at all
    concurrency: int = 8  # run slots of a topic unless its handler or its Topic row says otherwise
    max_attempts: int = 5  # of topics without a handler here
    max_body_bytes: int = 65_536
    max_delay_seconds: int = 10 * 366 * 86_400
    ttr_grace_seconds: float = 5.0  # after the TTR interrupt, before the watchdog ends a deaf process
    sweep_seconds: int = 30
    audit_seconds: int = 600
    mover_thread: bool = True  # a mover inside each Celery worker, for millisecond precision
    autodiscover: str | None = "timeouts"  # the module looked for in each app; None: import handlers yourself
    lake: str | None = None  # the data pipeline's folder (a path or URI): archive, reports, audits, loads, stream
    redact: Sequence[str] = (  # staff do not see a body's values under keys whose names contain one of these
        "password", "passwd", "passphrase", "secret", "token", "authorization", "authentication", "api_key",
        "access_key", "private_key", "credential", "cookie", "session_id", "card_number", "security_code", "cvv",
        "cvc", "iban",
    )  # fmt: skip
    api_rate_per_minute: int = 6000  # requests of one token or person, unless its token says otherwise
    api_max_request_bytes: int = 4_194_304  # of one request's body, unless its token says otherwise
    api_max_wait_seconds: float = 60.0  # how long a consumer's request may wait for a job
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # topics that have no handler in Python

    def __post_init__(self) -> None:
        self._check_types()
        for name in (
            "redis_timeout_seconds", "buckets", "horizon_seconds", "claim_grace_ms", "guard_tick_ms",
            "promote_limit", "batch_max", "run_budget_seconds", "concurrency", "max_attempts",
            "max_body_bytes", "max_delay_seconds", "ttr_grace_seconds", "sweep_seconds", "audit_seconds",
            "api_rate_per_minute", "api_max_request_bytes", "api_max_wait_seconds",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise ImproperlyConfigured(f"DELAYTASKS[{name.upper()!r}] must be more than 0.")
        if not all(isinstance(word, str) and any(map(str.isalnum, word)) for word in self.redact):
            raise ImproperlyConfigured("DELAYTASKS['REDACT'] must be a list of words; () hides nothing.")
        for name in ("linger_ms", "ahead_ms"):
            if getattr(self, name) < 0:
                raise ImproperlyConfigured(f"DELAYTASKS[{name.upper()!r}] must be 0 or more.")
        if self.ahead_ms > MOST_AHEAD_MS:
            raise ImproperlyConfigured(f"DELAYTASKS['AHEAD_MS'] must be at most {MOST_AHEAD_MS}.")
        if self.promote_limit > 3000:  # a script unpacks two arguments a member onto Lua's stack of 8,000
            raise ImproperlyConfigured("DELAYTASKS['PROMOTE_LIMIT'] must be at most 3000.")

    def _check_types(self) -> None:
        for each in fields(self):
            value, default = getattr(self, each.name), each.default
            kinds = _OPTIONAL.get(each.name) or _KINDS.get(type(default), (Mapping,))
            if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                raise ImproperlyConfigured(
                    f"DELAYTASKS[{each.name.upper()!r}] is {value!r:.80}, of the wrong type: it must be {wanted}."
                )

    @property
    def horizon_ms(self) -> int:
        return self.horizon_seconds * 1000


def from_dict(given: Mapping[str, Any]) -> Settings:
    """The frozen settings of a `DELAYTASKS` dict. Raises ImproperlyConfigured that names what is wrong."""
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"DELAYTASKS is {given!r:.80}; it must be a dict.")
    known = {f.name.upper(): f.name for f in fields(Settings)}
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(str(key).upper(), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else f" Known keys: {', '.join(sorted(known))}."
            raise ImproperlyConfigured(f"DELAYTASKS has an unknown key {key!r}.{hint}")
    return Settings(**{known[key]: value for key, value in given.items()})


@functools.cache
def get() -> Settings:
    """The settings in force. Read once; read again when a test overrides DELAYTASKS."""
    return from_dict(getattr(django_settings, "DELAYTASKS", {}))


def _forget(*, setting: str, **_: object) -> None:
    if setting == "DELAYTASKS":
        get.cache_clear()


setting_changed.connect(_forget, dispatch_uid="delaytasks.conf")
