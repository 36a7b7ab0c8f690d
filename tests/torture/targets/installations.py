"""Installations whose jobs are forwarded to targets that record what they receive."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.support.rabbitmq import RabbitServer
from tests.support.servers import RedisServer, free_port

from ..constants import FORWARDED, PEERS
from ..environment import Arena, arena
from ..proxy import Proxy
from .addresses import KAFKA

# Module and address of each peer.
MODULES = {"webhook": "webhook", "amqp": "amqp", "celery": "amqp", "kafka": "kafka"}
ADDRESSES = {
    "webhook": "http://127.0.0.1:{port}/hook", "amqp": "amqp://guest:guest@127.0.0.1:{port}//",
    "celery": "amqp://guest:guest@127.0.0.1:{port}//", "kafka": KAFKA + "127.0.0.1:{port}",
}  # fmt: skip
DURABLE_REDIS = {"appendonly": "yes", "appendfsync": "always"}  # it will be killed


def _populate(there: Arena, addresses: dict[str, str]) -> None:
    there.await_ready(*there.crew)
    there.env["TORTURE_TARGETS"] = json.dumps({FORWARDED + name: url for name, url in addresses.items()})
    there.populate(consumers=0)


@contextlib.contextmanager
def peers(directory: Path, database: str) -> Iterator[Arena]:
    """A receiver of webhooks, and peers that speak AMQP, also to Celery, and Kafka's protocol. They can lie."""
    with arena(directory, database=database) as there:
        ports = {name: free_port() for name in PEERS}
        for name, port in ports.items():
            there.enlist_python(name, f"tests.torture.targets.{MODULES[name]}", FORWARDED + name, str(port))
        _populate(there, {name: ADDRESSES[name].format(port=port) for name, port in ports.items()})
        yield there


@contextlib.contextmanager
def stores(directory: Path, database: str) -> Iterator[Arena]:
    """A mock cluster of Kafka, and a Redis behind a proxy as the broker of a Celery task."""
    with (
        RedisServer(**DURABLE_REDIS) as redis,
        Proxy(redis.port) as proxy,
        arena(directory, database=database) as there,
    ):
        there.site_redis, there.proxy = redis, proxy
        file = directory / "cluster.address"
        there.enlist_python("cluster", "tests.torture.targets.cluster", FORWARDED + "cluster", str(file))
        there.enlist_python("watcher", "tests.torture.targets.redis", FORWARDED + "redis", str(redis.port))
        there.await_ready(*there.crew)
        addresses = {"cluster": KAFKA + file.read_text(), "redis": f"redis://127.0.0.1:{proxy.port}/0"}
        _populate(there, addresses)
        yield there


@contextlib.contextmanager
def rabbit(directory: Path, database: str) -> Iterator[Arena]:
    """A RabbitMQ for an Amqp target and for a Celery task, with a consumer of both queues."""
    with RabbitServer() as server, arena(directory, database=database) as there:
        there.site_rabbit = server
        queues = [FORWARDED + name for name in ("rabbit", "rabbit-celery")]
        there.enlist_python("site", "tests.torture.targets.rabbit", server.url(), *queues)
        _populate(there, dict.fromkeys(("rabbit", "rabbit-celery"), server.url()))
        yield there
