"""Amqp: send due jobs to an exchange of RabbitMQ, or of another broker that speaks AMQP 0-9-1."""

import string
from collections.abc import Sequence
from functools import partial
from typing import Any

from . import brokers, events
from .links import Links
from .publisher import Publisher, Sending, Unroutable, connection
from .targets import BatchTarget, Message, Rejected, Report, TargetDown, report_failures

MAX_NAME_BYTES = 255  # the longest short string of AMQP
FIELDS = ("topic", "key", "id")
JOB_FIELDS = {"key", "id"}  # with these, the jobs of a topic have different routing keys
_links = Links(by_thread=True)


class Amqp(BatchTarget):
    """An exchange that takes each due job as a persistent message, confirmed by the broker.

    exchange      str, the name of an existing exchange; "": the default exchange, where a routing key names a queue
    routing_key   str, with {topic}, {key} and {id} of the job as placeholders
    broker        name of the broker in DELAYTASKS["BROKERS"]: an amqp:// or amqps:// URL, or a dict of "url" and
                  arguments of kombu.Connection
    timeout       seconds to wait for the confirmation; default: 15

    Messages are published as mandatory: the broker returns a message that no queue takes. The job is then dead if the
    routing key has {key} or {id}; otherwise the topic is held. The `message_id` property is the id of the job.

    Raises ValueError for a bad argument.
    """

    max_batch = 200

    def __init__(
        self, exchange: str, routing_key: str = "{topic}", *, broker: str = "amqp", timeout: float = 15
    ) -> None:
        self.exchange = brokers.check_name(exchange, "exchange", "Amqp", empty=True)
        self.routing_key = brokers.check_name(routing_key, "routing_key", "Amqp", longest=1000, empty=True)
        self.fields = _fields(routing_key)
        self.timeout = brokers.check_timeout(timeout, "Amqp")
        self.broker = broker
        _check_url(brokers.options(broker, "Amqp"), broker)

    def __repr__(self) -> str:
        return f"Amqp({self.exchange!r}, {self.routing_key!r}, broker={self.broker!r})"

    def deliver_many(self, messages: Sequence[Message], timeout_seconds: float, report: Report) -> None:
        """Publish messages and wait for their confirmations. Raises TargetDown, Rejected, BatchRefused."""
        options = brokers.options(self.broker, "Amqp")
        publisher = _links.get(repr(options), lambda: Publisher(partial(connection, options), self.broker))
        sendings = report_failures(messages, lambda message: self._sending(message, report), report)
        publisher.publish(sendings, min(self.timeout, timeout_seconds))

    def _sending(self, message: Message, report: Report) -> Sending:
        """Return the message, encoded for the publisher. Raises Rejected if its routing key is too long."""
        routing_key = self.routing_key.format(topic=message.topic, key=message.key, id=message.id)
        if len(routing_key.encode()) > MAX_NAME_BYTES:
            raise Rejected(f"The routing key has more than {MAX_NAME_BYTES} bytes: {routing_key!r:.100}.")
        send = partial(
            _send, message=message, encoded=events.encode(message, "rabbitmq"), exchange=self.exchange,
            routing_key=routing_key,
        )  # fmt: skip
        return Sending(message.id, send, lambda error: report(message, self._result(error)))

    def _result(self, error: Exception | None) -> Exception | None:
        if isinstance(error, Unroutable):
            return (Rejected if self.fields & JOB_FIELDS else TargetDown)(str(error))
        return error


def _send(channel: Any, *, message: Message, encoded: events.Encoded, exchange: str, routing_key: str) -> None:
    properties = {
        "message_id": message.id, "type": message.topic, "delivery_mode": 2,  # persistent
        "timestamp": int(message.due_at.timestamp()),
    }  # fmt: skip
    prepared = channel.prepare_message(
        encoded.body, content_type=encoded.content_type, content_encoding="utf-8",
        headers=encoded.headers, properties=properties,
    )  # fmt: skip
    channel.basic_publish(prepared, exchange=exchange, routing_key=routing_key, mandatory=True)


def _fields(routing_key: str) -> set[str]:
    """Return the placeholders of a routing key. Raises ValueError for an unknown one."""
    try:
        parts = list(string.Formatter().parse(routing_key))
    except ValueError as error:
        raise ValueError(f"Amqp: routing_key {routing_key!r:.100} has a wrong placeholder: {error}.") from None
    found = {field for _, field, _, _ in parts if field is not None}
    if found - set(FIELDS) or any(spec or conversion for _, field, spec, conversion in parts if field is not None):
        raise ValueError(f"Amqp: routing_key {routing_key!r:.100} may only have {{topic}}, {{key}} and {{id}}.")
    return found


def _check_url(options: dict[str, Any], broker: str) -> None:
    url = options.get("url")
    if not isinstance(url, str) or not url.startswith(("amqp://", "amqps://")):
        raise ValueError(f'Amqp: DELAYTASKS["BROKERS"][{broker!r}] needs a URL that begins with amqp:// or amqps://.')
