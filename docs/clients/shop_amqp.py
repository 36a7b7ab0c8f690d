"""A shop that speaks only AMQP: it schedules a timeout, cancels it, and hears what is due.

    python shop_amqp.py schedule order:1042 1800      close the order in half an hour ...
    python shop_amqp.py cancel order:1042             ... unless it is paid
    python shop_amqp.py due 1                         print the next order that is due, and end

AMQP_URL  the broker; default: amqp://guest:guest@localhost//
DELAYS    the queue that an inbox of delaytasks takes; default: delays
DUE       the queue to which delaytasks forwards; default: orders
TOPIC     the topic of delaytasks; default: order.timeout

Needs kombu.
"""

import json
import os
import sys
from uuid import uuid4

import kombu

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost//")
DELAYS, DUE = os.environ.get("DELAYS", "delays"), os.environ.get("DUE", "orders")
TOPIC = os.environ.get("TOPIC", "order.timeout")


def schedule(key, seconds):
    send(key, {"action": "schedule", "delay_seconds": float(seconds), "body": {"order": key}})


def cancel(key):
    send(key, {"action": "cancel"})


def send(key, message):
    """Send a persistent message and wait until it is confirmed. If you repeat it, repeat its id."""
    message |= {"id": str(uuid4()), "topic": TOPIC, "key": key}
    with kombu.Connection(URL, transport_options={"confirm_publish": True}) as connection:
        connection.Producer().publish(
            message, routing_key=DELAYS, message_id=message["id"], delivery_mode=2, mandatory=True
        )
    print(f"sent {message['action']} {key}", flush=True)


def due(count):
    """Print orders that are due. The same order may come twice, with the same id."""
    left = int(count)

    def show(message):
        nonlocal left
        body = message.body if isinstance(message.body, str) else message.body.decode()
        event = json.loads(body)  # a CloudEvent
        print(f"due {event['subject']} {json.dumps(event['data'])}", flush=True)
        message.ack()
        left -= 1

    with kombu.Connection(URL) as connection:
        queue = kombu.Queue(DUE, no_declare=True)
        with connection.Consumer(queue, on_message=show, prefetch_count=1):
            while left > 0:
                connection.drain_events()


if __name__ == "__main__":
    commands = {"schedule": schedule, "cancel": cancel, "due": due}
    if len(sys.argv) < 3 or sys.argv[1] not in commands:
        sys.exit(__doc__)
    commands[sys.argv[1]](*sys.argv[2:])
