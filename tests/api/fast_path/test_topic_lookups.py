"""Consumers of a topic without a handler: whether the topic exists is asked once for all of them."""

import asyncio
import threading
from typing import Any

import pytest

from delaytasks.api.batching.batchers import FallBack
from delaytasks.api.fast_path import endpoints

MANY = 50


class Lookups:
    """Look-ups that end when all requests have asked. Only the topic "known" exists, and "broken" fails."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.all_have_asked = threading.Event()

    def has_row(self, topic: str, using: str) -> bool:
        self.topics.append(topic)
        assert self.all_have_asked.wait(10)
        if topic == "broken":
            raise ValueError(topic)
        return topic == "known"

    def ask(self, topic: str) -> list[Any]:
        """Return what MANY requests that arrive together get: None or an exception. The first client goes away."""
        return asyncio.run(self._ask(topic))

    async def _ask(self, topic: str) -> list[Any]:
        self.all_have_asked.clear()
        asking = [asyncio.create_task(endpoints._require_known(topic, "default")) for _ in range(MANY)]
        await asyncio.sleep(0)
        asking[0].cancel()
        self.all_have_asked.set()
        return await asyncio.gather(*asking, return_exceptions=True)


@pytest.fixture
def lookups(monkeypatch: pytest.MonkeyPatch) -> Lookups:
    lookups = Lookups()
    monkeypatch.setattr(endpoints, "_has_row", lookups.has_row)
    monkeypatch.setattr(endpoints, "_known_until", {})
    return lookups


@pytest.mark.parametrize(
    ("topic", "kind"), [("known", type(None)), ("unknown", FallBack), ("broken", ValueError)], ids=str
)
def test_requests_that_arrive_together_share_one_query_and_its_answer(topic: str, kind: Any, lookups: Lookups) -> None:
    first, *others = lookups.ask(topic)
    assert isinstance(first, asyncio.CancelledError)
    assert {type(each) for each in others} == {kind}
    assert lookups.topics == [topic]
    assert endpoints._looked_up == {}


def test_a_known_topic_is_not_asked_for_again_and_an_unknown_one_is(lookups: Lookups) -> None:
    for topic in ("known", "known", "unknown", "unknown"):
        lookups.ask(topic)
    assert lookups.topics == ["known", "unknown", "unknown"]
