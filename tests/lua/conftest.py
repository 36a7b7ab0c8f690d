"""A fresh bucket for each test, on the session's Redis."""

import contextlib
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.lua.bench import Bench
from tests.servers import RedisServer


@contextlib.contextmanager
def fresh_bench(server: RedisServer) -> Iterator[Bench]:
    """A bucket on an empty prefix, which is removed afterwards."""
    if not server.process or server.process.poll() is not None:
        server.start()  # the test before stopped it
    with contextlib.closing(server.client()) as client:
        bench = Bench(client, f"t{uuid4().hex[:12]}")
        try:
            yield bench
        finally:
            for key in client.scan_iter(f"*{bench.keys.prefix}*", count=10_000):
                client.delete(key)


@pytest.fixture
def bench(redis_server: RedisServer) -> Iterator[Bench]:
    with fresh_bench(redis_server) as made:
        yield made


@pytest.fixture
def heard(bench: Bench) -> Iterator[Callable[[], list[str]]]:
    """What was published on the movers' channel since the last call; it waits for nothing but the server's order."""
    with contextlib.closing(bench.client.pubsub()) as pubsub:
        pubsub.subscribe(bench.keys.channel)

        def until_told() -> list[str]:
            bench.client.publish(bench.keys.channel, "that was all")
            told: list[str] = []
            while True:
                message = pubsub.get_message(timeout=5)
                assert message is not None, "the server did not pass on its own message"
                if message["data"] == "that was all":
                    return told
                if message["type"] == "message":
                    told.append(message["data"])

        yield until_told
