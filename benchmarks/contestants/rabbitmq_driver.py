"""RabbitMQ through its HTTP door: the management plugin's `publish`, to a durable queue that delays by expiry."""

import asyncio
import base64
from typing import Any

import amqp

from benchmarks import http_load
from benchmarks.contestants.lines import serve
from tests.support.rabbitmq import RabbitServer
from tests.support.servers import free_port

CONFIGURATION = (
    "persistent messages in a durable queue, whose dead-letter exchange gets them when they expire: its way to delay"
    " without a plugin, exact only if all delays of a queue are equal; the door is rabbitmq_management, which is meant"
    " for tests and not for load; an answer says that the message was routed, not that it is on the disk"
)
CAN = ["http.add"]
QUEUE = "delayed"
AUTHORIZATION = "Basic " + base64.b64encode(b"guest:guest").decode()

web_port = free_port()
server = RabbitServer(
    plugins=["rabbitmq_management"],
    **{
        "management.tcp.ip": "127.0.0.1",
        "management.tcp.port": str(web_port),
        "management.tcp.max_keepalive": "100000000",  # requests of a connection; its default of 1,000 would end it
    },
)


def describe() -> dict[str, Any]:
    server.start()
    return {
        "name": "RabbitMQ", "version": server.version, "configuration": CONFIGURATION, "workers": [], "extra": [],
        "can": CAN,
    }  # fmt: skip


def setup() -> dict[str, Any]:
    clear()
    return {}


def http_add(connections: int, duration: float) -> dict[str, Any]:
    return asyncio.run(http_load.run(web_port, AUTHORIZATION, QUEUE, "publish", connections, duration))


def left() -> dict[str, Any]:
    return {"left": 0}  # nothing is due during a measurement


def clear() -> None:
    with amqp.Connection(f"127.0.0.1:{server.port}") as connection:
        channel = connection.channel()
        channel.queue_declare("due", durable=True, auto_delete=False)
        terms = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "due"}
        channel.queue_declare(QUEUE, durable=True, auto_delete=False, arguments=terms)
        channel.queue_purge(QUEUE)


if __name__ == "__main__":
    try:
        serve({f.__name__: f for f in (describe, setup, http_add, left, clear)})
    finally:
        server.close()
