"""Take messages from a Kafka topic, as a member of a consumer group."""

import logging
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

from ..forwarding import kafka
from ..forwarding.targets import TargetDown
from .declarations import Inbox
from .formats import Received, Refused, to_headers, to_text
from .sources import BrokerDown

logger = logging.getLogger("delaytasks.kafka")
MORE_SECONDS = 0.01  # how long to wait for more messages after the first
SEND_SECONDS = 15.0  # the longest wait for the confirmation of a dead letter
# Names of error codes. The client recovers from these by itself.
PASSING_ERRORS = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_PARTITION_EOF", "_RESOLVE"}
# Names of error codes. The partition was assigned to another consumer, which gets the messages again.
MOVED_ERRORS = {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "_ILLEGAL_GENERATION"}
# Not message.headers(): for a name that is not UTF-8 it returns a broken list and sets an error, and after a few calls
# Python's optimized code does not look for errors any more. methodcaller() does.
_headers = operator.methodcaller("headers")


class Raw(NamedTuple):
    """A message of confluent-kafka, and its headers. They are read once: if that fails, a second call crashes."""

    message: Any
    headers: list[tuple[str, bytes]]


class KafkaSource:
    """A consumer of confluent-kafka. Offsets are committed by confirm() only, not automatically."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._options = inbox.broker_options()
        self._batch: list[Any] = []
        library = kafka.library()
        self._producer: kafka.Producer | None = self._new_producer()
        given = {"log_level": 2, "reconnect.backoff.max.ms": 1000, "auto.offset.reset": "earliest", **self._options}
        for option in ("acks", "request.required.acks", "message.timeout.ms", "delivery.timeout.ms"):
            given.pop(option, None)  # options of producers only
        given |= {"group.id": inbox.group or f"delaytasks.{inbox.name}", "enable.auto.commit": False}
        try:
            self._consumer = library.Consumer(given, logger=logger)
            self._consumer.subscribe([inbox.kafka])
        except library.KafkaException as error:
            raise BrokerDown(f"Kafka: {error.args[0].str()}") from error

    def receive(self, count: int, seconds: float) -> Sequence[Received]:
        first = self._consumer.poll(seconds)
        found = [] if first is None else [first]
        if found and count > 1:
            found += self._consumer.consume(count - 1, MORE_SECONDS)
        self._batch = []
        for message in found:
            if message.error() is None:
                self._batch.append(message)
            elif message.error().name() not in PASSING_ERRORS:
                raise BrokerDown(f"{self._inbox.kafka}: {message.error().name()}: {message.error().str()}")
        return [_received(message) for message in self._batch]

    def refuse(self, received: Received, refused: Refused) -> None:
        """Send the dead letter. If it is too large for its topic, the value or the headers are left out, or both."""
        message, headers = received.raw
        own = {
            "delaytasks-inbox": self._inbox.name, "delaytasks-code": refused.code,
            "delaytasks-reason": refused.reason,
            "delaytasks-origin": f"{message.topic()}[{message.partition()}]@{message.offset()}",
        } | ({"delaytasks-headers": received.problem} if received.problem else {})  # fmt: skip
        key, value = message.key(), message.value()
        letters: list[tuple[Any, Any, list[Any], list[str]]] = [
            (key, value, headers, []), (key, None, headers, ["value"]), (key, value, [], ["headers"]),
            (None, None, [], ["value", "headers"]),
        ]  # fmt: skip
        cause: kafka.Refusal | None = None
        for key, value, kept, left_out in letters:
            named = own | {f"delaytasks-{name}": str(cause) for name in left_out}
            try:
                self._send(key, value, [*kept, *((name, text.encode()) for name, text in named.items())])
                return
            except kafka.Refusal as refusal:
                cause = refusal
                if refusal.code not in kafka.CONTENT_ERRORS:
                    break
        raise BrokerDown(f"{self._inbox.dead_letter}: {cause}") from cause

    def confirm(self) -> None:
        library = kafka.library()
        ends: dict[tuple[str, int], int] = {}
        for message in self._batch:
            ends[message.topic(), message.partition()] = message.offset() + 1
        offsets = [library.TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
        self._batch = []
        try:
            self._consumer.commit(offsets=offsets, asynchronous=False)
        except library.KafkaException as error:
            if error.args[0].name() not in MOVED_ERRORS:
                raise BrokerDown(f"{self._inbox.kafka}: {error.args[0].str()}") from error

    def close(self) -> None:
        self._consumer.close()

    def _new_producer(self) -> kafka.Producer:
        try:
            return kafka.Producer(self._options, SEND_SECONDS)
        except TargetDown as error:
            raise BrokerDown(str(error)) from error

    def _send(self, key: Any, value: Any, headers: list[tuple[str, bytes]]) -> None:
        if self._producer is None:
            self._producer = self._new_producer()
        try:
            self._producer.send_one(self._inbox.dead_letter, SEND_SECONDS, key=key, value=value, headers=headers)
        except kafka.Refusal:
            self._producer = None  # send_one() discards a producer after an error
            raise


def _received(message: Any) -> Received:
    try:
        given, problem = _headers(message) or [], ""
    except Exception as error:  # SystemError, if a name is not UTF-8
        given, problem = [], f"The headers cannot be read: {error.__cause__ or error}"
    headers = to_headers((name, to_text(value or b"")) for name, value in given)
    kind, ms = message.timestamp()
    return Received(
        message.value() or b"", headers, headers.get("content-type", ""), headers.get("message-id", ""),
        ms if kind else None, Raw(message, given), problem,
    )  # fmt: skip
