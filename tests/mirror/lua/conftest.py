"""A fresh bucket for each test, on the session's Redis."""

import contextlib
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from tests.mirror.lua.bucket import Bucket
from tests.support.servers import RedisServer


@contextlib.contextmanager
def fresh_bucket(server: RedisServer) -> Iterator[Bucket]:
    """A bucket with an empty prefix; its keys are deleted afterwards."""
    if not server.process or server.process.poll() is not None:
        server.start()  # another test stopped it
    with contextlib.closing(server.client()) as client:
        bucket = Bucket(client, f"t{uuid4().hex[:12]}")
        try:
            yield bucket
        finally:
            for key in client.scan_iter(f"*{bucket.keys.prefix}*", count=10_000):
                client.delete(key)


@pytest.fixture
def bucket(redis_server: RedisServer) -> Iterator[Bucket]:
    with fresh_bucket(redis_server) as bucket:
        yield bucket


@pytest.fixture
def published(bucket: Bucket) -> Iterator[Callable[[], list[str]]]:
    """Returns the messages on the movers' channel since the last call. A last message of its own marks the end."""
    with contextlib.closing(bucket.client.pubsub()) as pubsub:
        pubsub.subscribe(bucket.keys.channel)

        def read_all() -> list[str]:
            bucket.client.publish(bucket.keys.channel, "end")
            messages: list[str] = []
            while True:
                message = pubsub.get_message(timeout=5)
                assert message is not None, "the server did not deliver the last message"
                if message["data"] == "end":
                    return messages
                if message["type"] == "message":
                    messages.append(message["data"])

        yield read_all
