"""librdkafka's mock cluster: brokers of Kafka in this process, which answer with the errors that a test asks for."""

import ctypes
import glob
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, TopicPartition

PRODUCE = 0  # the number of the request in Kafka's protocol


def _library() -> Any:
    """Return the librdkafka of confluent-kafka, whose Python API does not offer the mock cluster."""
    folder = Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs"
    (path,) = glob.glob(f"{folder}/librdkafka*.so*")
    library = ctypes.CDLL(path)
    for name in ("rd_kafka_new", "rd_kafka_mock_cluster_new", "rd_kafka_conf_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class KafkaCluster:
    """A mock cluster. Topics exist when they are first used, with four partitions."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        error = ctypes.create_string_buffer(512)
        self._client = ctypes.c_void_p(self._library.rd_kafka_new(0, None, error, 512))
        self._cluster = ctypes.c_void_p(self._library.rd_kafka_mock_cluster_new(self._client, brokers))
        self._consumer: Consumer | None = None
        # Otherwise the first consumer of a group waits three seconds for others.
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 50)
        self.servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create_topic(self, topic: str) -> None:
        self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), 4, 1)

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

    def produce(self, topic: str, *values: bytes | str | None, key: str | None = None, **headers: str) -> None:
        """Produce messages, in this order, and wait until they are confirmed."""
        named: list[Any] = [(name, text.encode()) for name, text in headers.items()]
        producer = confluent_kafka.Producer({"bootstrap.servers": self.servers, "linger.ms": 0})
        for value in values:
            producer.produce(topic, value, key=key, headers=named)
        assert producer.flush(10) == 0

    def messages(self, topic: str, count: int, *, seconds: float = 10) -> list[Any]:
        """Return the first messages of a topic: as soon as there are `count`, or those that there are in the end."""
        if self._consumer is None:
            options = {"bootstrap.servers": self.servers, "group.id": "test", "enable.auto.commit": False}
            options |= {"fetch.wait.max.ms": 20, "fetch.error.backoff.ms": 20, "topic.metadata.refresh.interval.ms": 50}
            options |= {"topic.metadata.refresh.fast.interval.ms": 20, "reconnect.backoff.max.ms": 100}
            self._consumer = Consumer(options)
        consumer = self._consumer
        consumer.assign([TopicPartition(topic, number, 0) for number in range(4)])
        found: list[Any] = []
        deadline = time.monotonic() + seconds
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.05)
            if message is not None and not message.error():
                found.append(message)
        consumer.unassign()
        return found


@contextmanager
def kafka_cluster() -> Iterator[KafkaCluster]:
    cluster = KafkaCluster()
    yield cluster
    closing = threading.Thread(target=cluster.close)  # returns when the clients have noticed
    closing.start()
    closing.join(30)


__all__ = ["KafkaCluster", "KafkaError", "kafka_cluster"]
