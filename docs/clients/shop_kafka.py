"""A shop that speaks only Kafka: it schedules a timeout, cancels it, and hears what is due.

    python shop_kafka.py schedule order:1042 1800     close the order in half an hour ...
    python shop_kafka.py cancel order:1042            ... unless it is paid
    python shop_kafka.py due 1                        print the next order that is due, and end

KAFKA   addresses of brokers; default: localhost:9092
DELAYS  the topic that an inbox of delaytasks takes; default: delays
DUE     the topic to which delaytasks forwards; default: orders
TOPIC   the topic of delaytasks; default: order.timeout

Needs confluent-kafka.
"""

import json
import os
import sys
from uuid import uuid4

from confluent_kafka import Consumer, Producer

BROKER = {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")}
DELAYS, DUE = os.environ.get("DELAYS", "delays"), os.environ.get("DUE", "orders")
TOPIC = os.environ.get("TOPIC", "order.timeout")


def schedule(key, seconds):
    send(key, {"action": "schedule", "delay_seconds": float(seconds), "body": {"order": key}})


def cancel(key):
    send(key, {"action": "cancel"})


def send(key, message):
    """Send a message and wait until it is confirmed. If you repeat it, repeat its id."""
    message |= {"id": str(uuid4()), "topic": TOPIC, "key": key}
    failed = []
    producer = Producer({**BROKER, "acks": "all", "message.timeout.ms": 15_000})
    # The key keeps the messages of an order in one partition, so that a cancel comes after its schedule.
    producer.produce(DELAYS, json.dumps(message), key=key, on_delivery=lambda error, _: failed.append(error))
    producer.flush()
    if failed != [None]:
        sys.exit(f"The message was not confirmed: {failed}")
    print(f"sent {message['action']} {key}", flush=True)


def due(count):
    """Print orders that are due. The same order may come twice, with the same id."""
    consumer = Consumer({**BROKER, "group.id": "shop", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([DUE])
    left = int(count)
    while left > 0:
        message = consumer.poll(1.0)
        if message is None or message.error():
            continue
        event = json.loads(message.value())  # a CloudEvent
        print(f"due {event['subject']} {json.dumps(event['data'])}", flush=True)
        consumer.commit(message, asynchronous=False)
        left -= 1
    consumer.close()


if __name__ == "__main__":
    commands = {"schedule": schedule, "cancel": cancel, "due": due}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
