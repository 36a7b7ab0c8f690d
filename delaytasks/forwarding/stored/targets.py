"""Targets that staff store in the row of a topic: check them, and build handlers from them.

A stored target is a dict with "kind", "format", "source", "timeout" and the fields of its kind (FIELDS). It has no
credentials: it names a broker of DELAYTASKS["BROKERS"], or the settings of a webhook in DELAYTASKS["WEBHOOKS"].
"""

import importlib.util
import logging
from collections.abc import Mapping, Sequence
from typing import Any, get_args
from urllib.parse import urlsplit

from ... import conf, handlers
from ...handlers import Handler, Snooze
from ...models import Topic
from ...redaction import redacted
from ...worker.attempt import RunningJob
from .. import addresses, brokers, holds
from ..delivery import Results, deliver
from ..targets import Format, Rejected, Target, TargetDown

logger = logging.getLogger("delaytasks")
# kind -> {field: whether it is required}
FIELDS: Mapping[str, Mapping[str, bool]] = {
    "kafka": {"topic": True, "key": False, "broker": True},
    "amqp": {"exchange": False, "routing_key": True, "broker": True},
    "webhook": {"url": True, "settings": False},
    "celery": {"task": True, "queue": False},
}
COMMON = ("kind", "format", "source", "timeout")
EXTRAS = {"kafka": ("confluent_kafka", "kafka"), "webhook": ("standardwebhooks", "webhook")}
DEFAULT_SOURCE, DEFAULT_TIMEOUT = "/delaytasks", 15
RESOLVE_SECONDS = 2.0


class BadTarget(ValueError):
    """A stored target that cannot be used.

    field    the name of the wrong field; "kind" if the target as a whole is wrong
    code     what is wrong: "kind", "unknown_field", "missing", "format", "broker", "settings", "library", "syntax",
             "credentials", "scheme", "private" or "invalid"
    details  dict of the values to insert into a translated message
    """

    def __init__(self, field: str, code: str, message: str, **details: str) -> None:
        super().__init__(message)
        self.field, self.code, self.details = field, code, {"message": message, **details}


def default_format(kind: str) -> Format:
    return "json" if kind == "celery" else "cloudevents"


def handler(using: str, topic: str, stored: Mapping[str, Any]) -> Handler | None:
    """Return a handler that forwards the jobs of a topic to this target, which its row has.

    Return None if this process cannot use the target, for example because a library is missing. The reason is logged,
    and the topic's jobs are left to other workers. TTR, maximum number of attempts and concurrency come from the TOPICS
    setting, or are the defaults.
    """
    try:
        target = build(stored)
    except ValueError as error:
        logger.error(
            "topic %s: the target of its row cannot be used here; its jobs wait for another worker: %s", topic, error
        )
        return None
    logger.info("topic %s: its jobs are forwarded to %r, the target of its row", topic, target)
    return Handler(
        topic, StoredForwarder(using, topic, stored, target), handlers.ttr_ms(topic), handlers.max_attempts(topic),
        atomic=False, batch=getattr(target, "max_batch", 1), give_up_on=(Rejected,),
    )  # fmt: skip


class StoredForwarder:
    """The handler of a topic that is forwarded to the target of its row."""

    def __init__(self, using: str, topic: str, stored: Mapping[str, Any], target: Target) -> None:
        self.using, self.topic, self.stored, self.target = using, topic, stored, target
        self.__qualname__ = repr(target)

    def __call__(self, jobs: Sequence[RunningJob]) -> Results:
        results = deliver(jobs, target=self.target, format=self.stored["format"], source=self.stored["source"])
        if any(isinstance(each, Snooze) for each in results.values()) and self._is_replaced():
            holds.release(self.using, self.topic)  # the topic is held because of the former target
        return results

    def _is_replaced(self) -> bool:
        rows = Topic.objects.using(self.using).filter(name=self.topic)
        return rows.values_list("target", flat=True).first() != self.stored


def build(stored: Mapping[str, Any]) -> Target:
    """Return the target that a stored target describes. Opens no connection. Raises BadTarget."""
    _check_fields(stored)
    kind = stored["kind"]
    _check_library(kind, stored)
    try:
        return _BUILDERS[kind](stored)
    except BadTarget:
        raise
    except (ValueError, TypeError) as error:  # TypeError: in WEBHOOKS, such as allow_networks of None
        raise BadTarget(_MAIN_FIELDS[kind], getattr(error, "code", "invalid"), str(error)) from error


def check_new(stored: Mapping[str, Any]) -> None:
    """Check a target before it is stored, including that a webhook's host is public. Raises BadTarget.

    Each delivery checks the host again. A host that cannot be resolved now is accepted.
    """
    target = build(stored)
    if stored["kind"] != "webhook":
        return
    parts, networks = urlsplit(stored["url"]), getattr(target, "networks", [])
    try:
        addresses.resolve(parts.hostname or "", parts.port or 443, allowed=networks, timeout_seconds=RESOLVE_SECONDS)
    except addresses.NotPublic as error:
        raise BadTarget("url", "private", str(error)) from error
    except TargetDown:
        return


def broker_names(kind: str) -> list[str]:
    """Return the names of the brokers that a kind of target can use."""
    return [name for name in conf.get().brokers if _fits(kind, name)]


def _fits(kind: str, broker: str) -> bool:
    options = brokers.options(broker, kind)
    return "bootstrap.servers" in options if kind == "kafka" else str(options.get("url", "")).startswith("amqp")


def _check_fields(stored: Mapping[str, Any]) -> None:
    texts: dict[str, Any]
    texts = {name: value for name, value in stored.items() if name != "timeout"} if isinstance(stored, Mapping) else {}
    kind = texts.get("kind", "")
    if not all(isinstance(value, str) for value in texts.values()) or kind not in FIELDS:
        known = ", ".join(FIELDS)
        raise BadTarget(
            "kind", "kind",
            f"{stored!r:.200} is not a target: its kind must be one of {known}, and its fields must be texts.",
        )  # fmt: skip
    unknown = set(stored) - set(COMMON) - set(FIELDS[kind])
    if unknown:
        raise BadTarget("kind", "unknown_field", f"A target of kind {kind!r} has no field {min(unknown)!r:.50}.")
    for field, is_required in FIELDS[kind].items():
        if is_required and not stored.get(field):
            raise BadTarget(field, "missing", f"A target of kind {kind!r} needs {field!r}.")
    if stored.get("format") not in get_args(Format):
        known = ", ".join(map(repr, get_args(Format)))
        raise BadTarget("format", "format", f"format is {stored.get('format')!r:.50}; use {known}.")
    for field in ("source", "timeout"):
        if not stored.get(field):
            raise BadTarget(field, "missing", f"A target needs {field!r}.")


def _check_library(kind: str, stored: Mapping[str, Any]) -> None:
    needed = [EXTRAS[kind]] if kind == "kafka" or stored.get("settings") else []
    if stored["format"] != "json":
        needed.append(("cloudevents", "cloudevents"))
    for module, extra in needed:
        if importlib.util.find_spec(module) is None:
            text = f"{module} is not installed: pip install 'delaytasks[{extra}]'."
            raise BadTarget("kind", "library", text, library=module, extra=extra)


def _broker(stored: Mapping[str, Any]) -> str:
    """Return the name of the broker. Raises BadTarget if it is unknown or of another kind."""
    kind, name = stored["kind"], stored["broker"]
    known = broker_names(kind)
    if name not in known:
        text = ", ".join(sorted(known)) or "none"
        raise BadTarget(
            "broker", "broker", f'No broker {name!r:.50} of kind {kind!r} is in DELAYTASKS["BROKERS"]; known: {text}.',
            value=str(name),
        )  # fmt: skip
    return str(name)


def _kafka(stored: Mapping[str, Any]) -> Target:
    from ..kafka import Kafka

    key = stored.get("key") or None
    return Kafka(stored["topic"], key=key, broker=_broker(stored), timeout=stored["timeout"])


def _amqp(stored: Mapping[str, Any]) -> Target:
    from ..amqp import Amqp

    exchange = stored.get("exchange") or ""
    return Amqp(exchange, stored["routing_key"], broker=_broker(stored), timeout=stored["timeout"])


def _webhook(stored: Mapping[str, Any]) -> Target:
    from ..webhook import BadUrl, Webhook, checked_url

    options = webhook_options(stored.get("settings") or "")
    checked_url(stored["url"], bool(options.get("allow_http")))
    if redacted(stored["url"], conf.get().redact) != stored["url"]:
        raise BadUrl("the URL contains a value that looks like a password or a token.", "credentials")
    return Webhook(stored["url"], timeout=stored["timeout"], **options)


def webhook_options(name: str) -> dict[str, Any]:
    """Return the arguments of Webhook that DELAYTASKS["WEBHOOKS"] has under a name. Raises BadTarget if it is unknown.

    The name "" stands for no arguments.
    """
    if not name:
        return {}
    webhooks = conf.get().webhooks
    if name not in webhooks:
        known = ", ".join(sorted(webhooks)) or "none"
        raise BadTarget(
            "settings", "settings", f'There is no {name!r:.50} in DELAYTASKS["WEBHOOKS"], which has: {known}.',
            value=name,
        )  # fmt: skip
    given = webhooks[name]
    return dict(given) if isinstance(given, Mapping) else {"secret": given}


def _celery(stored: Mapping[str, Any]) -> Target:
    from ..celery_task import CeleryTask

    return CeleryTask(stored["task"], queue=stored.get("queue") or None, timeout=stored["timeout"])


_BUILDERS = {"kafka": _kafka, "amqp": _amqp, "webhook": _webhook, "celery": _celery}
_MAIN_FIELDS = {"kafka": "topic", "amqp": "routing_key", "webhook": "url", "celery": "task"}
