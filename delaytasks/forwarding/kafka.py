"""Kafka: a target that sends due jobs to a Kafka topic."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ..exceptions import BadInput
from . import brokers, events
from .links import Links
from .targets import BatchRefused, BatchTarget, Failed, Message, Rejected, Report, TargetDown, report_failures

logger = logging.getLogger("delaytasks.kafka")
POLL_SECONDS = 0.1  # the interrupt at the end of the TTR takes effect between two polls
KEYS = ("key", "topic", "id")
# Names of error codes. Kafka refuses the message itself: another attempt would be refused as well.
CONTENT_ERRORS = {
    "MSG_SIZE_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD", "RECORD_LIST_TOO_LARGE", "INVALID_TIMESTAMP",
    "_BAD_MSG",
}  # fmt: skip
# Errors without a known cause: the attempt fails. _INVALID_DIFFERENT_RECORD: another message of the request was bad.
RETRY_ERRORS = {"UNKNOWN", "_INVALID_DIFFERENT_RECORD"}
AWAY_SECONDS = 2.0  # how long to wait after an error of the client: the broker may only be restarting
UNKNOWN_TOPIC_SECONDS = 5.0  # how long a topic may be unknown: brokers create topics on demand
# Producers are shared by all threads, but not with forked processes: there they would accept messages and deliver none.
_links = Links(by_thread=False)


class Kafka(BatchTarget):
    """A topic of Kafka that takes each due job as a message, confirmed by all replicas that are in sync.

    topic     str, the name of the Kafka topic
    key       which field of the job is the message's key: "key", "topic" or "id"; None: messages have no key
    broker    name of the broker in DELAYTASKS["BROKERS"]: a dict of options of librdkafka ("bootstrap.servers", ...)
    timeout   seconds to wait for the confirmation; default: 15

    The options `acks` and `message.timeout.ms` have no effect: the target sets "all" and a time from its timeout.

    Raises ValueError for a bad argument.
    """

    max_batch = 200

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
        library()

    def __repr__(self) -> str:
        return f"Kafka({self.topic!r}, key={self.key!r}, broker={self.broker!r})"

    def deliver_many(self, messages: Sequence[Message], timeout_seconds: float, report: Report) -> None:
        """Produce messages and wait for their confirmations. Raises TargetDown, BatchRefused.

        A broker gives one answer for several messages. If the answer is an error that any of them may have caused, none
        is reported, and BatchRefused asks for a delivery one by one.
        """
        seconds = min(self.timeout, timeout_seconds)
        doubtful: list[Refusal] = []

        def answered(message: Message, refusal: Refusal | None) -> None:
            error = None if refusal is None else to_result(refusal, self.broker)
            if refusal is None or refusal.is_local or len(messages) == 1 or isinstance(error, TargetDown):
                report(message, error)
            else:
                doubtful.append(refusal)

        records = report_failures(messages, lambda message: self._record(message, answered), report)
        try:
            self._producer(seconds).send(self.topic, records, seconds)
        except Refusal as refusal:
            raise to_result(refusal, self.broker) from refusal
        if doubtful:
            raise BatchRefused(str(doubtful[0]))

    def _record(self, message: Message, answered: "Callable[[Message, Refusal | None], None]") -> "Record":
        encoded = events.encode(message, "kafka")
        headers = {"content-type": encoded.content_type, "message-id": message.id, **encoded.headers}
        key = None if self.key is None else getattr(message, self.key).encode()
        fields = {"value": encoded.body, "headers": [(k, v.encode()) for k, v in headers.items()], "key": key}
        return Record(fields, lambda refusal: answered(message, refusal))

    def _producer(self, seconds: float) -> "Producer":
        """Return a producer that gives a message up after at most `seconds`.

        Short times are rounded down to a power of 2: jobs with many different TTRs share few producers.
        """
        if seconds < self.timeout:
            seconds = 2.0 ** math.floor(math.log2(max(seconds, 0.01)))
        options = brokers.options(self.broker, "Kafka")
        return _links.get((repr(options), seconds), lambda: Producer(options, seconds))


class Refusal(Exception):
    """A message was not confirmed. Has the name of librdkafka's error code, and its text.

    is_local   True: librdkafka refused the message and did not send it
    """

    def __init__(self, code: str, text: str, *, is_local: bool = False) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.is_local = code, is_local


def to_result(refusal: Refusal, broker: str) -> Exception:
    kind = Rejected if refusal.code in CONTENT_ERRORS else Failed if refusal.code in RETRY_ERRORS else TargetDown
    return kind(f"{broker}: {refusal}")


@dataclass(eq=False)
class Record:
    """A message for produce(), and the function to call with None (confirmed) or a Refusal when it is answered."""

    fields: dict[str, Any]
    answered: Callable[[Refusal | None], object]


class Producer:
    """A producer of confluent-kafka. After an error or an interrupt it is discarded, with its undelivered messages."""

    def __init__(self, options: dict[str, Any], seconds: float) -> None:
        # Errors of the client since a message was last confirmed. The callback does not refer to this object: a cycle
        # would keep a producer and its threads until the garbage collector finds it.
        self._errors = errors = deque[Any](maxlen=1)
        given = {
            "linger.ms": 0, "log_level": 2,  # do not log each attempt to connect: TargetDown has the error
            "reconnect.backoff.max.ms": 1000,
            "topic.metadata.propagation.max.ms": int(min(UNKNOWN_TOPIC_SECONDS, seconds / 2) * 1000),
            **options,
            "acks": "all", "message.timeout.ms": max(1, int(seconds * 1000)), "error_cb": errors.append,
        }  # fmt: skip
        for alias in ("request.required.acks", "delivery.timeout.ms"):
            given.pop(alias, None)
        try:
            self._producer = library().Producer(given, logger=logger)
        except library().KafkaException as error:
            raise TargetDown(f"Kafka: {error.args[0].str()}") from error

    def send(self, topic: str, records: Sequence[Record], seconds: float) -> None:
        """Produce messages and wait until each is answered. Raises Refusal if some are not answered in time.

        These are then purged. Otherwise librdkafka might deliver them after their jobs were scheduled again.
        """
        batch = _Batch(self._errors)
        deadline = time.monotonic() + seconds
        try:
            for record in records:
                self._produce(topic, record, batch, deadline)
            while batch.waiting:
                self._poll(batch, deadline)
        except BaseException:
            batch.is_given_up = True
            self._give_up()
            raise
        if batch.has_refusals:  # all messages are answered: a purge would only remove those of other threads
            _links.drop(self)

    def send_one(self, topic: str, seconds: float, **fields: Any) -> None:
        """Produce one message and wait until it is confirmed. Raises Refusal."""
        answers: list[Refusal | None] = []
        self.send(topic, [Record(fields, answers.append)], seconds)
        if answers[0] is not None:
            raise answers[0]

    def _produce(self, topic: str, record: Record, batch: "_Batch", deadline: float) -> None:
        """Produce a message. While the queue of librdkafka is full, wait for answers to messages of this batch."""
        while True:
            batch.waiting.add(record)  # before produce(): another thread's poll() may bring the answer at once
            try:
                self._producer.produce(topic, on_delivery=batch.on_delivery(record), **record.fields)
                return
            except library().KafkaException as error:
                batch.answer(record, _refusal(error.args[0], is_local=True))
                return
            except BufferError as error:
                batch.waiting.discard(record)
                if not batch.waiting:
                    raise Refusal("_QUEUE_FULL", "too many messages wait for the broker") from error
                self._poll(batch, deadline)

    def _poll(self, batch: "_Batch", deadline: float) -> None:
        """Wait a moment for answers. Raises Refusal at the deadline, or sooner if no broker seems to be reachable."""
        if self._errors and batch.away_at is None:
            batch.away_at = time.monotonic() + AWAY_SECONDS
        if not self._errors:
            batch.away_at = None
        seconds = (deadline if batch.away_at is None else min(deadline, batch.away_at)) - time.monotonic()
        if seconds <= 0:
            raise _refusal(self._errors[0]) if self._errors else Refusal("_TIMED_OUT", "not confirmed in time")
        self._producer.poll(min(seconds, POLL_SECONDS))

    def _give_up(self) -> None:
        _links.drop(self)
        self._producer.purge(blocking=False)
        self._producer.poll(0)


class _Batch:
    """The messages of one call that wait for their answers. Has no reference to the producer: it would make a cycle."""

    def __init__(self, errors: deque[Any]) -> None:
        self._errors = errors
        self.waiting: set[Record] = set()
        self.has_refusals = False  # True: the broker (not librdkafka) has refused a message
        self.is_given_up = False  # True: the call has ended, so that refusals are ignored from now on
        self.away_at: float | None = None  # time.monotonic() at which the brokers count as unreachable

    def on_delivery(self, record: Record) -> Callable[[Any, Any], None]:
        return lambda error, _: self.answer(record, None if error is None else _refusal(error))

    def answer(self, record: Record, refusal: Refusal | None) -> None:
        self.waiting.discard(record)
        if refusal is None:
            self._errors.clear()
        elif self.is_given_up:
            return
        else:
            self.has_refusals = self.has_refusals or not refusal.is_local
        record.answered(refusal)


def _refusal(error: Any, *, is_local: bool = False) -> Refusal:
    return Refusal(error.name(), error.str(), is_local=is_local)


def library() -> Any:
    try:
        import confluent_kafka
    except ImportError as error:
        raise BadInput("Kafka: confluent-kafka is not installed: pip install 'delaytasks[kafka]'.") from error
    return confluent_kafka
