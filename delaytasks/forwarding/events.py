"""Encode messages: CloudEvents 1.0 in the structured or the binary mode of each protocol, or the body alone.

The event's "distributed tracing" attributes hold the trace context in which the job was scheduled. The trace headers of
the protocol hold the context of the attempt that sends the message.
"""

import functools
import json
from importlib import import_module
from typing import Any, Literal, NamedTuple

from .. import tracing
from .targets import Message, TargetDown

Protocol = Literal["http", "kafka", "rabbitmq"]  # bindings of the library; "rabbitmq" is AMQP 0-9-1
JSON = "application/json"


class Encoded(NamedTuple):
    content_type: str
    headers: dict[str, str]  # without the content type
    body: bytes


def encode(message: Message, protocol: Protocol) -> Encoded:
    """Return the message as it is sent over a protocol. Raises TargetDown if the library is not installed."""
    encoded = _encode(message, protocol)
    return encoded._replace(headers=encoded.headers | tracing.outgoing_headers())


def _encode(message: Message, protocol: Protocol) -> Encoded:
    if message.format == "json":
        return Encoded(JSON, {}, _to_json(message.body))
    binding, format_ = _library(f"bindings.{protocol}"), _library("formats.json").JSONFormat()
    if message.format == "cloudevents":
        structured = binding.to_structured(_event(message), format_)
        body = structured.value if protocol == "kafka" else structured.body
        return Encoded("application/cloudevents+json", {}, body)
    headers = {
        name.lower(): _text(value) for name, value in binding.to_binary(_event(message), format_).headers.items()
    }
    headers.pop("content-type", None)
    return Encoded(JSON, headers, _to_json(message.body))  # the library writes a str as it is, not as JSON


def _to_json(body: Any) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def as_dict(message: Message) -> dict[str, Any]:
    """Return the CloudEvent as a dict that JSON can encode. Raises TargetDown if the library is not installed."""
    event: dict[str, Any] = json.loads(_library("formats.json").JSONFormat().write(_event(message)))
    return event


def _event(message: Message) -> Any:
    attributes = {
        "id": message.id, "source": message.source, "type": message.topic, "subject": message.key,
        "time": message.due_at, "specversion": "1.0", "datacontenttype": JSON,
    } | tracing.to_headers(message.trace_context)  # fmt: skip
    return _library("v1.event").CloudEvent(attributes=attributes, data=message.body)


@functools.cache  # finding a module takes as long as encoding a message
def _library(module: str) -> Any:
    try:
        return import_module(f"cloudevents.core.{module}")
    except ImportError as error:
        raise TargetDown("cloudevents is not installed: pip install 'cloudevents>=2.2,<3'.") from error


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
