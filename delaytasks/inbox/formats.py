"""Parse the messages of an inbox: a JSON document, a CloudEvent (structured or binary), or JSON with plain headers."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, NamedTuple

from ..exceptions import BadInput, short_repr

# Plain header -> field, and CloudEvent extension -> field. The names of extensions have no hyphens.
HEADERS = {
    "delaytasks-action": "action", "delaytasks-id": "id", "delaytasks-topic": "topic", "delaytasks-key": "key",
    "delaytasks-due": "due_at", "delaytasks-delay": "delay_seconds", "delaytasks-ttr": "ttr_seconds",
    "delaytasks-expires": "expires_seconds", "delaytasks-conflict": "on_conflict",
}  # fmt: skip
EXTENSIONS = {
    name.replace("-", ""): field for name, field in HEADERS.items() if field not in ("id", "topic", "key")
}  # fmt: skip
ATTRIBUTES = {"id": "id", "type": "topic", "subject": "key"}  # CloudEvent attribute -> field
HEADER_PREFIX = "delaytasks-"
# Headers that an inbox adds to its dead letters.
OWN_HEADERS = {f"{HEADER_PREFIX}{name}" for name in ("inbox", "code", "reason", "origin", "value", "headers")}
# Attributes that a CloudEvent must have. Checked here, because the library generates a missing id.
REQUIRED = ("specversion", "id", "source", "type")
MAX_REASON = 1000
JSON = "application/json"
PREFIXES = {"kafka": "ce_", "amqp": "ce-"}  # prefix of the headers of a CloudEvent in binary mode, by protocol


@dataclass(frozen=True)
class Received:
    """A message as the broker delivered it.

    headers     values as text, by their names in lower case
    message_id  id in the broker's property or header; "" if there is none
    sent_ms     time of the broker or the producer, in ms since 1970; None if it is not known
    raw         the message object of the client library
    problem     why the headers cannot be read: the message is refused; "" if they can
    """

    body: bytes
    headers: Mapping[str, str]
    content_type: str
    message_id: str
    sent_ms: int | None
    raw: Any
    problem: str = ""


def to_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by their names in lower case.

    The values of a repeated header are joined with a line break. No field may contain a line break: validation refuses
    the message later.
    """
    headers: dict[str, str] = {}
    for name, text in pairs:
        name = name.lower()
        headers[name] = f"{headers[name]}\n{text}" if name in headers else text
    return headers


def to_text(value: bytes) -> str:
    """Decode the value of a header. Bytes that are not UTF-8 become lone surrogates, which validation refuses later."""
    return value.decode(errors="surrogateescape")


class Refused(Exception):
    """The message is refused: it goes to the dead-letter topic or queue.

    code    a machine-readable word; docs/howto/inbox.md lists them
    reason  a text for people. It becomes a header: it is shortened, and lone surrogates are escaped
    """

    def __init__(self, code: str, reason: str) -> None:
        self.code, self.reason = code, reason.encode(errors="backslashreplace").decode()[:MAX_REASON]
        super().__init__(self.reason)


class Fields(NamedTuple):
    """The fields of a message, not validated.

    fields   values by the field names of the JSON format
    source   the `source` of a CloudEvent; otherwise ""
    names    field -> name of the plain header that it was read from
    """

    fields: dict[str, Any]
    source: str
    names: Mapping[str, str]


def read(received: Received, protocol: str) -> Fields:
    """Return the fields of a message, not validated. Raises Refused; BadInput if a library is not installed."""
    if received.problem:
        raise Refused("invalid", received.problem)
    headers, names = _plain_headers(received.headers)
    if _is_structured(received) or _event_attributes(received, protocol):
        fields, source = _read_event(received, protocol, headers, names)
    elif headers:
        fields, source = _read_plain(received, headers), ""
    else:
        fields, source = _object(received.body), ""
    if received.message_id and not source:
        fields.setdefault("id", received.message_id)
    return Fields(fields, source, names)


# -- plain headers ------------------------------------------------------------------------------


def _plain_headers(headers: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the fields in plain headers, and for each field the name of its header. Raises Refused."""
    plain = {name: text for name, text in headers.items() if name.startswith(HEADER_PREFIX) and name not in OWN_HEADERS}
    for name in plain:
        if name not in HEADERS:
            raise Refused("invalid", f"Unknown header {short_repr(name)}. Known: {', '.join(HEADERS)}.")
    return {HEADERS[name]: text for name, text in plain.items()}, {HEADERS[name]: name for name in plain}


def _read_plain(received: Received, headers: Mapping[str, Any]) -> dict[str, Any]:
    for name in ("topic", "key"):
        if name not in headers:
            raise Refused("invalid", f"The message has no header {HEADER_PREFIX}{name}.")
    fields = {"action": "schedule", **headers}
    if fields["action"] != "cancel" and received.body:
        fields["body"] = _json(received.body)
    return fields


# -- CloudEvents --------------------------------------------------------------------------------


def _is_structured(received: Received) -> bool:
    return received.content_type.lower().startswith("application/cloudevents")


def _event_attributes(received: Received, protocol: str) -> dict[str, str]:
    """Return the attributes of a CloudEvent in binary mode; {} if the message is not one."""
    prefix = PREFIXES[protocol]
    return {name[len(prefix) :]: text for name, text in received.headers.items() if name.startswith(prefix)}


def _read_event(
    received: Received, protocol: str, headers: Mapping[str, Any], names: Mapping[str, str]
) -> tuple[dict[str, Any], str]:
    """Return the fields and the source of a CloudEvent. Plain headers may add fields that it does not have."""
    event = _checked_event(received, protocol)
    attributes, data = _parts(event, protocol)
    called = {field: name for name, field in (ATTRIBUTES | EXTENSIONS).items() if attributes.get(name) is not None}
    for field in called.keys() & headers.keys():
        raise Refused("invalid", f"The message has {names[field]} and {called[field]}: give one of them.")
    fields: dict[str, Any] = {field: attributes.get(name) for name, field in ATTRIBUTES.items()}
    fields |= {field: attributes[name] for name, field in EXTENSIONS.items() if name in attributes}
    fields = {"action": "schedule"} | fields | dict(headers)
    if data is not None and fields["action"] != "cancel":
        fields["body"] = data
    return fields, str(attributes.get("source", ""))


def _checked_event(received: Received, protocol: str) -> Received:
    """Validate the message. Return it without null attributes, which the library rejects. Raises Refused."""
    if _is_structured(received):
        document = _object(received.body)
        _check_attributes(document)
        return replace(received, body=_without_nulls(received.body, document))
    _check_attributes(_event_attributes(received, protocol))
    if "json" in (received.content_type or JSON).lower():
        # The library would take invalid JSON as text, and valid JSON, too, if its type is "Application/JSON".
        _json(received.body or b"null")
        return replace(received, content_type=JSON, headers={**received.headers, "content-type": JSON})
    return received


def _check_attributes(attributes: Mapping[str, Any]) -> None:
    missing = [name for name in REQUIRED if attributes.get(name) in (None, "")]
    if missing:
        raise Refused("invalid", f"The message is not a CloudEvent: it has no {missing[0]}.")


def _without_nulls(body: bytes, document: Mapping[str, Any]) -> bytes:
    """Return the event without null attributes, which mean the same as absent ones but are rejected by the library."""
    kept = {name: value for name, value in document.items() if value is not None or name == "data"}
    return body if len(kept) == len(document) else json.dumps(kept).encode()


def _parts(received: Received, protocol: str) -> tuple[Mapping[str, Any], Any]:
    """Return the attributes and the data of a CloudEvent. Raises Refused, BadInput."""
    try:
        event = _event(received, protocol)
        attributes, data = event.get_attributes(), event.get_data()
    except BadInput:
        raise
    except Exception as error:  # the library raises errors of many kinds
        raise Refused("invalid", f"The message is not a CloudEvent: {type(error).__name__}: {error}") from None
    if isinstance(data, bytes):
        raise Refused("not-json", "The data of the CloudEvent is binary; it must be JSON or text.")
    return attributes, data


def _event(received: Received, protocol: str) -> Any:
    library = _library("kafka" if protocol == "kafka" else "rabbitmq")
    content_type, headers = received.content_type or None, dict(received.headers)
    if protocol == "amqp":
        return library.from_rabbitmq_event(library.RabbitMQMessage(headers, content_type, received.body))
    kept = {
        name: text for name, text in headers.items() if name.startswith(PREFIXES["kafka"]) or name == "content-type"
    }
    encoded = {name: text.encode(errors="surrogateescape") for name, text in kept.items() if text}
    return library.from_kafka_event(library.KafkaMessage(encoded, None, received.body))


def _library(binding: str) -> Any:
    try:
        return import_module(f"cloudevents.core.bindings.{binding}")
    except ImportError as error:
        raise BadInput("cloudevents is not installed: pip install 'cloudevents>=2.2,<3'.") from error


# -- JSON ---------------------------------------------------------------------------------------


def _object(body: bytes) -> dict[str, Any]:
    document = _json(body)
    if not isinstance(document, dict):
        raise Refused("not-json", f"The message is JSON of type {type(document).__name__}; it must be an object.")
    return document


def _json(body: bytes) -> Any:
    try:
        return json.loads(body.decode())
    except (ValueError, RecursionError) as error:
        raise Refused("not-json", f"The message is not JSON: {str(error) or type(error).__name__}") from None
