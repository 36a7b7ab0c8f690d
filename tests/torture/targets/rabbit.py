"""The consumer of queues of a RabbitMQ: `python -m tests.torture.targets.rabbit URL QUEUE...`.

Each queue has the name of its topic and refuses messages when it is full. A message leaves it when it is recorded.
"""

import socket
import sys
import time
from typing import Any

import kombu
from kombu.exceptions import KombuError

from ..constants import QUEUE_ARGUMENTS
from .amqp import id_and_key
from .witness import Witness

PREFETCHED = 2
AGAIN_SECONDS = 0.3


def consume(url: str, witnesses: dict[str, Witness]) -> None:
    """Consume until the connection fails. Raises OSError or KombuError."""
    with kombu.Connection(url, connect_timeout=2) as connection:
        connection.ensure_connection(max_retries=1)
        channel = connection.channel()
        channel.basic_qos(0, PREFETCHED, False)

        def take(message: Any) -> None:
            witness = witnesses[message.delivery_info["routing_key"]]
            witness.receives(id_and_key(message._serialize_properties(), message.body))
            channel.basic_ack(message.delivery_tag)

        for queue in witnesses:
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments=QUEUE_ARGUMENTS)
            # As Celery declares it, which sends to an exchange of this name.
            channel.exchange_declare(queue, "direct", durable=True, auto_delete=False)
            channel.queue_bind(queue, queue, queue)
            channel.basic_consume(queue, callback=take)
        print("ready.", flush=True)
        while True:
            connection.drain_events(timeout=60)


def main(url: str, *queues: str) -> None:
    witnesses = {queue: Witness(queue) for queue in queues}
    while True:
        try:
            consume(url, witnesses)
        except (OSError, KombuError, *kombu.Connection(url).recoverable_connection_errors) as error:
            if not isinstance(error, socket.timeout):
                print(f"{type(error).__name__}: {error}", flush=True)
            time.sleep(AGAIN_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
