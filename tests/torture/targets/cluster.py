"""Serve librdkafka's mock cluster to other processes: `python -m tests.torture.targets.cluster TOPIC FILE`.

The cluster chooses its port, so its address is written into FILE. What it holds survives while its broker is down, as
with a Kafka that was killed, but not this process.
"""

import json
import sys
import threading
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.support.kafka_cluster import KafkaCluster

from ..constants import LATE_SECONDS, SLOW_SECONDS
from .witness import Witness

LOOKS_SECONDS = 0.05
PARTITIONS = 4
MANY = 1000  # requests that are refused, more than there are until the manner changes
ROUND_TRIPS = {"slow": SLOW_SECONDS, "late": LATE_SECONDS}


def behave(cluster: KafkaCluster, manner: str) -> None:
    cluster.set_down(down=manner == "dies")
    cluster.set_round_trip(int(ROUND_TRIPS.get(manner, 0) * 1000))
    cluster.clear_errors()
    if manner == "refuses":
        cluster.fail_produce(*[KafkaError.TOPIC_AUTHORIZATION_FAILED] * MANY)


def record(witness: Witness, servers: str) -> None:
    """Record all messages of the topic, for ever."""
    options = {"bootstrap.servers": servers, "group.id": "witness", "enable.auto.commit": False, "log_level": 2}
    options |= {"reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 50, "auto.offset.reset": "earliest"}
    consumer = Consumer(options)
    consumer.assign([TopicPartition(witness.topic, number, 0) for number in range(PARTITIONS)])
    while True:
        message: Message | None = consumer.poll(1)
        if message is not None and not message.error():
            event, headers = json.loads(message.value() or b""), dict(message.headers() or [])
            assert headers["message-id"] == event["id"].encode()
            witness.receives((event["id"], event["subject"]))


def main(topic: str, file: str) -> None:
    cluster, witness, manner = KafkaCluster(), Witness(topic, mortal=False), ""
    cluster.create_topic(topic)
    threading.Thread(target=record, args=(witness, cluster.servers), daemon=True).start()
    Path(file).write_text(cluster.servers)
    print("ready.", flush=True)
    while not threading.Event().wait(LOOKS_SECONDS):
        if (now := witness.manner) != manner:
            behave(cluster, now)
            manner = now


if __name__ == "__main__":
    main(*sys.argv[1:])
