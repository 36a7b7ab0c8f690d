"""Kafka: send due jobs to a topic of Kafka."""

import logging
import math
import time
from collections import deque
from typing import Any, Literal

from . import brokers, events
from .links import Links
from .targets import Message, Rejected, TargetDown

logger = logging.getLogger("delaytasks.kafka")
POLL_SECONDS = 0.1  # an interrupt of the TTR takes effect between two polls
KEYS = ("key", "topic", "id")
# Names of error codes. The message itself is refused: another attempt would be refused as well.
CONTENT_ERRORS = {
    "MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP",
    "_BAD_MSG",
}  # fmt: skip
RETRY_ERRORS = {"UNKNOWN"}  # the broker does not say whose fault it is: the attempt fails
AWAY_SECONDS = 2.0  # how long to wait after an error of the client: a broker may just have been restarted
UNKNOWN_TOPIC_SECONDS = 5.0  # how long a topic may be unknown: brokers create topics on demand
# One for all threads. In a forked process a producer of the parent would take messages and deliver none.
_links = Links(by_thread=False)


class Kafka:
    """A topic of Kafka that takes each due job as a message, confirmed by all replicas that are in sync.

    topic     str, the name of a topic of Kafka
    key       which field of the job is the message's key: "key", "topic" or "id"; None: messages have no key
    broker    name of the broker in DELAYTASKS["BROKERS"]: a dict of options of librdkafka ("bootstrap.servers", ...)
    timeout   seconds to wait for the confirmation; default: 15

    `acks` and `message.timeout.ms` of the options have no effect: it is always "all", and the time of this target.

    Raises ValueError, which says what is wrong.
    """

    def __init__(
        self,
        topic: str,
        *,
        key: Literal["key", "topic", "id"] | None = None,
        broker: str = "kafka",
        timeout: float = 15,
    ) -> None:
        self.topic = brokers.check_name(topic, "topic", "Kafka", longest=249)
        if key is not None and key not in KEYS:
            raise ValueError(f"Kafka: key is {key!r:.100}; use {', '.join(map(repr, KEYS))} or None.")
        self.key, self.broker = key, broker
        self.timeout = brokers.check_timeout(timeout, "Kafka")
        if "bootstrap.servers" not in brokers.options(broker, "Kafka"):
            raise ValueError(
                f'Kafka: DELAYTASKS["BROKERS"][{broker!r}] needs {{"bootstrap.servers": "host:port,..."}}.'
            )
        _library()

    def __repr__(self) -> str:
        return f"Kafka({self.topic!r}, key={self.key!r}, broker={self.broker!r})"

    def deliver(self, message: Message, timeout_seconds: float) -> None:
        """Produce the message and wait for its confirmation. Raises TargetDown, Rejected, Failed."""
        encoded = events.encode(message, "kafka")
        headers = {"content-type": encoded.content_type, "message-id": message.id, **encoded.headers}
        seconds = min(self.timeout, timeout_seconds)
        producer = self._producer(seconds)
        try:
            producer.send(
                self.topic, seconds, value=encoded.body, headers=[(k, v.encode()) for k, v in headers.items()],
                key=None if self.key is None else getattr(message, self.key).encode(),
            )  # fmt: skip
        except Refusal as refusal:
            raise_as_result(refusal, self.broker)

    def _producer(self, seconds: float) -> "Producer":
        """Return a producer that gives messages up after at most `seconds`; few different ones for many TTRs."""
        if seconds < self.timeout:
            seconds = 2.0 ** math.floor(math.log2(max(seconds, 0.01)))
        options = brokers.options(self.broker, "Kafka")
        return _links.get((repr(options), seconds), lambda: Producer(options, seconds))


class Refusal(Exception):
    """A message was not confirmed: the name of an error code of librdkafka, and its text."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Failed(Exception):
    """The broker reported an error that may pass: the attempt has failed."""


def raise_as_result(refusal: Refusal, broker: str) -> None:
    text = f"{broker}: {refusal}"
    if refusal.code in CONTENT_ERRORS:
        raise Rejected(text) from refusal
    if refusal.code in RETRY_ERRORS:
        raise Failed(text) from refusal
    raise TargetDown(text) from refusal


class Producer:
    """A producer of confluent-kafka. After an error or an interrupt it is discarded, with its undelivered messages."""

    def __init__(self, options: dict[str, Any], seconds: float) -> None:
        # Errors of the client since a message was last confirmed. The callback does not refer to this object: a cycle
        # would keep a producer and its threads until the garbage collector finds it.
        self._errors = errors = deque[Any](maxlen=1)
        given = {
            "linger.ms": 0, "log_level": 2,  # not each attempt to connect: a TargetDown says what is wrong
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.propagation.max.ms": int(min(UNKNOWN_TOPIC_SECONDS, seconds / 2) * 1000),
            **options,
            "acks": "all", "message.timeout.ms": max(1, int(seconds * 1000)), "error_cb": errors.append,
        }  # fmt: skip
        for alias in ("request.required.acks", "delivery.timeout.ms"):
            given.pop(alias, None)
        try:
            self._producer = _library().Producer(given, logger=logger)
        except _library().KafkaException as error:
            raise TargetDown(f"Kafka: {error.args[0].str()}") from error

    def send(self, topic: str, seconds: float, **message: Any) -> None:
        """Produce a message and wait until it is confirmed. Raises Refusal.

        Unless it is confirmed, it is purged: librdkafka would otherwise deliver it after the job went back.
        """
        deadline = time.monotonic() + seconds
        try:
            self._wait(self._produce(topic, message), deadline)
        except BaseException:
            _links.drop(self)
            self._producer.purge(blocking=False)
            self._producer.poll(0)
            raise

    def _produce(self, topic: str, message: dict[str, Any]) -> list[Any]:
        reports: list[Any] = []
        try:
            self._producer.produce(topic, on_delivery=lambda error, _: reports.append(error), **message)
        except _library().KafkaException as error:
            raise _refusal(error.args[0]) from error
        except BufferError as error:
            raise Refusal("_QUEUE_FULL", "too many messages wait for the broker") from error
        return reports

    def _wait(self, reports: list[Any], deadline: float) -> None:
        away = False
        while not reports:
            seconds = deadline - time.monotonic()
            if seconds <= 0:
                raise _refusal(self._errors[0]) if self._errors else Refusal("_TIMED_OUT", "not confirmed in time")
            self._producer.poll(min(seconds, POLL_SECONDS))
            if self._errors and not away:
                away, deadline = True, min(deadline, time.monotonic() + AWAY_SECONDS)
        if reports[0] is not None:
            raise _refusal(reports[0])
        self._errors.clear()


def _refusal(error: Any) -> Refusal:
    return Refusal(error.name(), error.str())


def _library() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise ValueError("Kafka: confluent-kafka is not installed: pip install 'delaytasks[kafka]'.") from error
    return confluent_kafka
