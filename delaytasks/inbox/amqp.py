"""Take messages from a queue of RabbitMQ, or of another broker that speaks AMQP 0-9-1."""

import contextlib
import struct
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from amqp.serialization import dumps

from ..forwarding.publisher import CONNECT_SECONDS, ERRORS, ONE_RETRY, Publisher, Unroutable, connection
from ..forwarding.targets import Rejected, TargetDown
from .declarations import Inbox
from .formats import Received, Refused, to_headers, to_text
from .sources import BrokerDown

MORE_SECONDS = 0.01  # how long to wait for more messages after the first
SEND_SECONDS = 15.0  # the longest wait for the confirmation of a dead letter
HEARTBEAT_SECONDS = 30
FRAME_MARGIN = 4096  # of the frame with the headers: for the properties
# What py-amqp raises for properties that it cannot parse or write. RecursionError: nested too deeply.
PARSE_ERRORS = (ValueError, LookupError, OverflowError, RecursionError, struct.error)
KEPT = (  # properties of a refused message that its dead letter has too
    "content_type", "content_encoding", "correlation_id", "message_id", "timestamp", "type", "app_id", "reply_to",
    "priority",
)  # fmt: skip


class AmqpSource:
    """Consumes a queue over one connection and publishes dead letters over another.

    Both queues must exist. The broker delivers at most `batch_max` messages that are not acknowledged.
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        options = {"heartbeat": HEARTBEAT_SECONDS, **inbox.broker_options()}
        self._messages: list[Any] = []  # delivered, and not returned by receive() yet
        self._last_tag = 0  # delivery tag of the last message that receive() has returned
        self._dead_letters = Publisher(partial(connection, options), inbox.broker)
        try:
            self._connection = connection(options, {"read_timeout": None, "write_timeout": CONNECT_SECONDS})
            self._connection.ensure_connection(**ONE_RETRY)
            self._channel = self._connection.channel()
            self._channel.auto_decode = False  # a body is bytes, whatever its content_encoding says
            self._channel.queue_declare(inbox.dead_letter, passive=True)  # fails if the queue does not exist
            self._channel.basic_qos(0, inbox.batch_max, False)
            self._channel.basic_consume(inbox.amqp, callback=self._messages.append)
        except ERRORS as error:
            self.close()
            raise _down(inbox.amqp, error) from error

    def receive(self, count: int, seconds: float) -> Sequence[Received]:
        try:
            self._connection.heartbeat_check()
            self._drain(count, seconds)
        except (*ERRORS, *PARSE_ERRORS) as error:
            raise _down(self._inbox.amqp, error) from error
        batch, self._messages[:] = self._messages[:count], self._messages[count:]
        if batch:
            self._last_tag = batch[-1].delivery_tag
        return [_received(message) for message in batch]

    def refuse(self, received: Received, refused: Refused) -> None:
        own = {
            "delaytasks-inbox": self._inbox.name, "delaytasks-code": refused.code,
            "delaytasks-reason": refused.reason, "delaytasks-origin": self._inbox.amqp,
        }  # fmt: skip
        try:
            try:
                self._send(received, (received.raw.headers or {}) | own)
            except PARSE_ERRORS as error:
                self._send(received, own | {"delaytasks-headers": f"{type(error).__name__}: {error}"})
        except (TargetDown, Rejected, Unroutable) as error:
            raise _down(self._inbox.dead_letter, error) from error

    def confirm(self) -> None:
        try:
            self._channel.basic_ack(self._last_tag, multiple=True)
        except ERRORS as error:
            raise _down(self._inbox.amqp, error) from error

    def close(self) -> None:
        self._dead_letters.close()
        with contextlib.suppress(Exception):
            self._connection.collect(socket_timeout=0.1)

    def _drain(self, count: int, seconds: float) -> None:
        """Wait for the first message, then take more as long as each follows within MORE_SECONDS."""
        deadline = time.monotonic() + seconds
        while len(self._messages) < count:
            left = MORE_SECONDS if self._messages else deadline - time.monotonic()
            if left <= 0:
                return
            try:
                self._connection.drain_events(timeout=left)
            except TimeoutError:
                return

    def _send(self, received: Received, headers: dict[str, Any]) -> None:
        """Send a dead letter. Raises one of PARSE_ERRORS if the headers cannot be written into one frame."""

        def publish(channel: Any) -> None:
            if len(dumps("F", [headers])) > channel.connection.frame_max - FRAME_MARGIN:
                raise ValueError("The headers are too large for a frame.")
            properties = {name: received.raw.properties.get(name) for name in KEPT} | {"delivery_mode": 2}
            prepared = channel.prepare_message(
                received.body, content_type=properties.pop("content_type"),
                content_encoding=properties.pop("content_encoding"), properties=properties,
                headers=headers, priority=properties.pop("priority"),
            )  # fmt: skip
            channel.basic_publish(prepared, exchange="", routing_key=self._inbox.dead_letter, mandatory=True)

        self._dead_letters.publish_one(publish, SEND_SECONDS)


def _received(message: Any) -> Received:
    properties, given, problem = message.properties, message.headers or {}, ""
    try:
        headers = to_headers((_text(name), _text(value)) for name, value in given.items() if value is not None)
    except RecursionError:
        headers, problem = {}, "The headers are nested too deeply."
    return Received(
        message.body or b"", headers, properties.get("content_type") or "", properties.get("message_id") or "",
        _ms(properties.get("timestamp")), message, problem,
    )  # fmt: skip


def _text(value: Any) -> str:
    """Return a header's name or value as text. py-amqp returns bytes if it is not UTF-8, and naive datetimes in UTC."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).isoformat()
    return to_text(value) if isinstance(value, bytes) else str(value)


def _ms(timestamp: Any) -> int | None:
    return int(timestamp) * 1000 if isinstance(timestamp, int) else None


def _down(name: str, error: BaseException) -> BrokerDown:
    return BrokerDown(f"{name}: {type(error).__name__}: {error}")
