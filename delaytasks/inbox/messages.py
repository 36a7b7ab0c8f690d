"""The messages of an inbox: JSON documents and CloudEvents with the action "schedule" or "cancel"."""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from importlib import import_module
from typing import Any, Literal

from .. import clock
from ..exceptions import BadInput, short_repr
from ..jobs.inputs import to_new_job
from ..validators import JSON_NULL, MAX_KEY, check_key, check_line
from .declarations import Inbox

Action = Literal["schedule", "cancel"]
ACTIONS = ("schedule", "cancel")
MODES = ("replace", "keep", "reject", "again")
ENVELOPE = ("id", "action", "topic", "key")
TERMS = ("due_at", "delay_seconds", "body", "ttr_seconds", "expires_seconds", "on_conflict")
# The extension of a CloudEvent that has a field's value; extensions' names have no underscores.
EXTENSIONS = {
    "delaytasksaction": "action", "delaytasksdue": "due_at", "delaytasksdelay": "delay_seconds",
    "delaytasksttr": "ttr_seconds", "delaytasksexpires": "expires_seconds", "delaytasksconflict": "on_conflict",
}  # fmt: skip
REQUIRED = ("specversion", "id", "source", "type")  # of a CloudEvent; the library makes up an id that is missing
MAX_REASON = 1000
PREFIXES = {"kafka": "ce_", "amqp": "ce-"}  # of the headers of a CloudEvent in binary mode


@dataclass(frozen=True)
class Received:
    """A message as the broker delivered it.

    headers     names in lower case, and their values as text
    message_id  the broker's property or header; "" without one
    sent_ms     ms since 1970: the broker's or the producer's time; None if it is not known
    raw         the message of the client library
    """

    body: bytes
    headers: Mapping[str, str]
    content_type: str
    message_id: str
    sent_ms: int | None
    raw: Any


@dataclass(frozen=True)
class Command:
    """The validated command of a message.

    source, message_id  identify the message in its inbox; `source` is that of a CloudEvent, otherwise ""
    terms               arguments of schedule(), without topic and key; {} for a cancel
    digest              a hash of all that the message says, apart from its format
    """

    action: Action
    source: str
    message_id: str
    topic: str
    key: str
    terms: Mapping[str, Any]
    on_conflict: Any
    digest: str

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, self.message_id


class Refused(Exception):
    """The message is refused: it goes to the dead-letter topic or queue.

    code    a word for programs; see docs/howto/inbox.md
    reason  a text for people; shortened, and without what no header can have
    """

    def __init__(self, code: str, reason: str) -> None:
        self.code, self.reason = code, reason.encode(errors="backslashreplace").decode()[:MAX_REASON]
        super().__init__(self.reason)


def decode(received: Received, inbox: Inbox, *, now_ms: int) -> Command:
    """Return the message's command, validated. Does not check that its topic is known. Raises Refused.

    now_ms   the database's time
    """
    source, fields = _read(received, inbox.protocol)
    unknown = fields.keys() - {*ENVELOPE, *TERMS}
    if unknown:
        known = ", ".join((*ENVELOPE, *TERMS))
        raise Refused("invalid", f"Unknown field {short_repr(min(unknown, key=str))}. Known: {known}.")
    action = fields.get("action")
    if action not in ACTIONS:
        raise Refused("invalid", f"action is {short_repr(action)}; use 'schedule' or 'cancel'.")
    terms, mode = _terms(fields, action)
    command = Command(
        action, _identifier(source, "source", empty=True), _identifier(fields.get("id"), "id"),
        fields.get("topic", ""), fields.get("key", ""), terms, mode,
        _digest(action, fields.get("topic"), fields.get("key"), terms, mode),
    )  # fmt: skip
    _check_allowed(command, inbox)
    _check(command, inbox, now_ms if received.sent_ms is None else min(now_ms, received.sent_ms))
    return command


# -- formats ------------------------------------------------------------------------------------


def _read(received: Received, protocol: str) -> tuple[str, dict[str, Any]]:
    """Return the source of a CloudEvent, or "", and the fields. Raises Refused."""
    if received.content_type.lower().startswith("application/cloudevents"):
        document = _object(received.body)
        _check_attributes(document)
        return _read_event(replace(received, body=_without_nulls(received.body, document)), protocol)
    prefix = PREFIXES[protocol]
    if attributes := {name[len(prefix) :]: text for name, text in received.headers.items() if name.startswith(prefix)}:
        _check_attributes(attributes)
        if "json" in (received.content_type or "json"):
            _json(received.body or b"null")  # the library takes what is not JSON as text
        return _read_event(received, protocol)
    fields = _object(received.body)
    if received.message_id:
        fields.setdefault("id", received.message_id)
    return "", fields


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    missing = [name for name in REQUIRED if attributes.get(name) in (None, "")]
    if missing:
        raise Refused("invalid", f"The message is not a CloudEvent: it has no {missing[0]}.")


def _without_nulls(body: bytes, document: Mapping[str, Any]) -> bytes:
    """Return the event without attributes that are null, which is the same, and which the library refuses."""
    kept = {name: value for name, value in document.items() if value is not None or name == "data"}
    return body if len(kept) == len(document) else json.dumps(kept).encode()


def _read_event(received: Received, protocol: str) -> tuple[str, dict[str, Any]]:
    try:
        event = _event(received, protocol)
        attributes, data = event.get_attributes(), event.get_data()
    except BadInput:
        raise
    except Exception as error:  # the library raises errors of many kinds
        raise Refused("invalid", f"The message is not a CloudEvent: {type(error).__name__}: {error}") from None
    if isinstance(data, bytes):
        raise Refused("not-json", "The data of the CloudEvent is binary; it must be JSON or text.")
    fields = {"id": attributes.get("id"), "topic": attributes.get("type"), "key": attributes.get("subject")}
    fields |= {field: attributes[name] for name, field in EXTENSIONS.items() if name in attributes}
    fields.setdefault("action", "schedule")
    if data is not None and fields["action"] != "cancel":
        fields["body"] = data
    return str(attributes.get("source", "")), fields


def _event(received: Received, protocol: str) -> Any:
    library = _library("kafka" if protocol == "kafka" else "rabbitmq")
    content_type, headers = received.content_type or None, dict(received.headers)
    if protocol == "amqp":
        return library.from_rabbitmq_event(library.RabbitMQMessage(headers, content_type, received.body))
    encoded = {name: text.encode() for name, text in headers.items() if text or name != "content-type"}
    return library.from_kafka_event(library.KafkaMessage(encoded, None, received.body))


def _library(binding: str) -> Any:
    try:
        return import_module(f"cloudevents.core.bindings.{binding}")
    except ImportError as error:
        raise BadInput("cloudevents is not installed: pip install 'cloudevents>=2.2,<3'.") from error


def _object(body: bytes) -> dict[str, Any]:
    document = _json(body)
    if not isinstance(document, dict):
        raise Refused("not-json", f"The message is a {type(document).__name__} of JSON; it must be an object.")
    return document


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refused("not-json", f"The message is not JSON: {str(error) or type(error).__name__}") from None


# -- fields -------------------------------------------------------------------------------------


def _terms(fields: Mapping[str, Any], action: str) -> tuple[dict[str, Any], str]:
    """Return the arguments of schedule() and the mode for a live job. Raises Refused."""
    if action == "cancel":
        useless = fields.keys() & set(TERMS)
        if useless:
            raise Refused("invalid", f"A cancel has no {min(useless)}.")
        return {}, ""
    mode = fields.get("on_conflict", MODES[0])
    if mode not in MODES:
        raise Refused("invalid", f"on_conflict is {short_repr(mode)}; use {', '.join(map(repr, MODES))}.")
    terms: dict[str, Any] = {}
    for field, argument, convert in _CONVERTERS:
        if fields.get(field) is not None:
            terms[argument] = convert(field, fields[field])
    if "body" in fields:
        terms["body"] = JSON_NULL if fields["body"] is None else fields["body"]
    return terms, mode


def _moment(field: str, value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise Refused("invalid", f"{field} is {short_repr(value)}; give a time such as 2030-01-31T12:00:00Z.") from None


def _seconds(field: str, value: Any) -> float:
    """Return a number of seconds; headers have texts."""
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if isinstance(value, bool) or not math.isfinite(number):
        raise Refused("invalid", f"{field} is {short_repr(value)}; give a number of seconds.")
    return number


_CONVERTERS: tuple[tuple[str, str, Callable[[str, Any], Any]], ...] = (
    ("due_at", "due_at", _moment), ("delay_seconds", "delay", _seconds), ("ttr_seconds", "ttr", _seconds),
    ("expires_seconds", "expires", _seconds),
)  # fmt: skip


def _identifier(value: Any, what: str, *, empty: bool = False) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = short_repr(value)
    try:
        check_line(value, what=what)
    except BadInput:
        value = None
    if value is None or not (value or empty):
        hint = " It makes repeated messages known." if what == "id" else ""
        raise Refused("invalid", f"The message has no valid {what}: give 1 to {MAX_KEY} printable characters.{hint}")
    return str(value)


def _digest(action: str, topic: Any, key: Any, terms: Mapping[str, Any], mode: str) -> str:
    named = {name: None if value is JSON_NULL else value for name, value in terms.items()}
    try:
        text = json.dumps([action, topic, key, named, mode], sort_keys=True, default=str)
    except RecursionError:
        raise Refused("invalid", "The message is nested too deeply.") from None
    return hashlib.sha256(text.encode()).hexdigest()


# -- checks -------------------------------------------------------------------------------------


def _check_allowed(command: Command, inbox: Inbox) -> None:
    if command.topic not in inbox.topics:
        raise Refused("not-allowed", f"The inbox {inbox.name!r} does not allow topic {short_repr(command.topic)}.")


def _check(command: Command, inbox: Inbox, sent_ms: int) -> None:
    try:
        check_key(command.key)
        if command.action == "schedule":
            to_new_job(command.topic, key=command.key, **command.terms)
    except BadInput as error:
        raise Refused("invalid", f"{type(error).__name__}: {error}") from None
    due_at = command.terms.get("due_at")
    if due_at is not None and clock.to_ms(due_at) < sent_ms - inbox.past_seconds * 1000:
        raise Refused(
            "due-in-past",
            f"due_at {due_at.isoformat()} is more than {inbox.past_seconds:,.0f} s before the message was sent, at "
            f"{clock.from_ms(sent_ms).isoformat()} (past_seconds).",
        )
