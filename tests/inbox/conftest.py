"""A topic that messages may use, and brokers: a cluster of Kafka, a RabbitMQ, and a scripted peer."""

import json
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

from delaytasks import handlers
from delaytasks.inbox import Inbox, declarations, declare
from delaytasks.inbox.messages import Received

from ..forwarding.conftest import _kafka_cluster, kafka, peer, rabbit  # noqa: F401  fixtures

TOPICS = ["shop.close", "shop.remind"]


@pytest.fixture
def topics() -> Iterator[list[str]]:
    """Topics with a handler."""
    for topic in TOPICS:
        handlers.handler(topic)(lambda job: None)
    yield TOPICS
    for topic in TOPICS:
        handlers.unregister(topic)
    handlers.clashes.clear()


@pytest.fixture
def name() -> str:
    """A name of the test's own, for topics of Kafka, queues and inboxes."""
    return f"in-{uuid4().hex[:8]}"


@pytest.fixture
def make_inbox(name: str, topics: list[str]) -> Iterator[Callable[..., Inbox]]:
    """Declare an inbox with the test's name until the end of the test."""

    def make(**options: Any) -> Inbox:
        return declare(name, **{"topics": topics, "dead_letter": f"{name}.dead", **options})

    yield make
    declarations.unregister(name)


def document(id: str = "m1", action: str = "schedule", **fields: Any) -> dict[str, Any]:
    """Return a message as JSON data."""
    terms = {"delay_seconds": 60} if action == "schedule" and "due_at" not in fields else {}
    return {"id": id, "action": action, "topic": "shop.close", "key": "order:1"} | terms | fields


def text(id: str = "m1", action: str = "schedule", **fields: Any) -> str:
    return json.dumps(document(id, action, **fields))


def received(body: Any, *, content_type: str = "", message_id: str = "", sent_ms: int | None = None, **headers: str):
    headers |= {"content-type": content_type} if content_type else {}  # as Kafka has it
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Received(raw, headers, content_type, message_id, sent_ms, None)
