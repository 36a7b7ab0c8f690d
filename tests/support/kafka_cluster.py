"""librdkafka's mock cluster: brokers of Kafka in this process, which answer with the errors that a test asks for.

DELAYTASKS_TEST_KAFKA   host:port of other brokers, which the tests use instead; those that ask for errors are skipped
"""

import ctypes
import glob
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import confluent_kafka
import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

PRODUCE = 0  # the number of the request in Kafka's protocol
COPY = ctypes.c_int(2)  # RD_KAFKA_MSG_F_COPY
PARTITIONS = 4
EXTERNAL_SERVERS = os.environ.get("DELAYTASKS_TEST_KAFKA")


def _library() -> Any:
    """Return the librdkafka of confluent-kafka, whose Python API does not offer the mock cluster."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    (path,) = glob.glob(f"{folder}/librdkafka*.so*")
    library = ctypes.CDLL(path)
    for name in ("rd_kafka_new", "rd_kafka_mock_cluster_new", "rd_kafka_conf_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class KafkaBrokers:
    """Brokers of Kafka, with what tests write to them and read from them.

    group_options   options of a consumer with which a group notices quickly that a member is gone
    """

    group_options: ClassVar[dict[str, Any]] = {}

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._consumer: Consumer | None = None

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()

    def produce(self, topic: str, *values: bytes | str | None, key: str | None = None, **headers: str) -> None:
        """Produce messages, in this order, and wait until they are confirmed."""
        named: list[Any] = [(name, text.encode()) for name, text in headers.items()]
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, key=key, headers=named)
        assert producer.flush(10) == 0

    def produce_with_header(self, topic: str, value: bytes, name: bytes, text: bytes) -> None:
        """Produce a message with a header whose name may be any bytes, which confluent-kafka does not allow."""
        library, error = _library(), ctypes.create_string_buffer(512)
        options = ctypes.c_void_p(library.rd_kafka_conf_new())
        library.rd_kafka_conf_set(options, b"bootstrap.servers", self.servers.encode(), error, 512)
        producer = ctypes.c_void_p(library.rd_kafka_new(0, options, error, 512))
        library.rd_kafka_headers_new.restype = ctypes.c_void_p
        headers = ctypes.c_void_p(library.rd_kafka_headers_new(1))
        sizes = ctypes.c_ssize_t(len(name)), ctypes.c_ssize_t(len(text))
        library.rd_kafka_header_add(headers, name, sizes[0], text, sizes[1])
        arguments = {  # by the numbers of rd_kafka_vtype_t
            1: [topic.encode()], 4: [value, ctypes.c_size_t(len(value))], 7: [COPY], 10: [headers], 0: [],
        }  # fmt: skip
        flat = [each for kind, values in arguments.items() for each in (ctypes.c_int(kind), *values)]
        assert library.rd_kafka_producev(producer, *flat) == 0
        assert library.rd_kafka_flush(producer, 10_000) == 0
        library.rd_kafka_destroy(producer)

    def messages(self, topic: str, count: int, *, seconds: float = 10) -> list[Any]:
        """Return the first messages of a topic: as soon as there are `count`, or those that there are in the end."""
        if self._consumer is None:
            options = {"bootstrap.servers": self.servers, "group.id": "test", "enable.auto.commit": False}
            options |= {"fetch.wait.max.ms": 20, "fetch.error.backoff.ms": 20, "topic.metadata.refresh.interval.ms": 50}
            options |= {"topic.metadata.refresh.fast.interval.ms": 20, "reconnect.backoff.max.ms": 100}
            self._consumer = Consumer(options)
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
        found: list[Any] = []
        deadline = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                found.append(message)
        consumer.unassign()
        return found


class KafkaCluster(KafkaBrokers):
    """A mock cluster. Topics exist when they are first used, with four partitions."""

    # A member whose process stands still for longer than its session gets messages again. A new member waits as long.
    group_options: ClassVar = {"fetch.wait.max.ms": 20, "heartbeat.interval.ms": 50, "session.timeout.ms": 3000}

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        self._client = ctypes.c_void_p(self._library.rd_kafka_new(0, None, error, 512))
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, brokers))
        # Otherwise the first consumer of a group waits three seconds for others.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 50)
        super().__init__(self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode())

    def close(self) -> None:
        super().close()
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create_topic(self, topic: str) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), PARTITIONS, 1)

    def fail_produce(self, *codes: int) -> None:
        """Answer the next requests of producers with these error codes, one each."""
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(PRODUCE), ctypes.c_size_t(len(codes)), array
        )

    def clear_errors(self) -> None:
        """Forget what fail_produce() has left."""
        self._library.rd_kafka_mock_clear_request_errors(self._cluster, ctypes.c_int16(PRODUCE))

    def fail_topic(self, topic: str, code: int) -> None:
        """Report this error for a topic, until it is called with 0."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def set_down(self, *, down: bool) -> None:
        name = "rd_kafka_mock_broker_set_down" if down else "rd_kafka_mock_broker_set_up"
        getattr(self._library, name)(self._cluster, 1)

    def set_round_trip(self, ms: int) -> None:
        """Let each answer of the broker take this time."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, 1, ms)


class ExternalKafka(KafkaBrokers):
    """Brokers that run already, of Apache Kafka or of another that speaks its protocol."""

    group_options: ClassVar = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500}  # Apache Kafka allows no less

    def create_topic(self, topic: str) -> None:
        client = AdminClient({"bootstrap.servers": self.servers})
        client.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)

    def _cannot(self, *args: Any, **options: Any) -> NoReturn:
        pytest.skip("Only librdkafka's mock cluster answers with errors that a test asks for.")

    fail_produce = fail_topic = clear_errors = set_down = set_round_trip = _cannot


@contextmanager
def kafka_cluster() -> Iterator[Any]:
    cluster = ExternalKafka(EXTERNAL_SERVERS) if EXTERNAL_SERVERS else KafkaCluster()
    yield cluster
    closing = threading.Thread(target=cluster.close)  # returns when the clients have noticed
    closing.start()
    closing.join(30)


__all__ = ["KafkaCluster", "KafkaError", "kafka_cluster"]
