"""The memory of bodies that REST framework leaves in reference cycles is freed after some megabytes of them."""

import gc
from collections.abc import Iterator
from typing import Any

import pytest

from delaytasks.api.limits import garbage
from tests.api.rest_client import Rest


@pytest.fixture
def collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of objects that each collection freed; none comes by itself."""
    freed: list[int] = []
    collect = gc.collect
    monkeypatch.setattr(garbage, "_bytes", 0)
    monkeypatch.setattr(garbage.gc, "collect", lambda: freed.append(collect()))
    gc.disable()
    yield freed
    gc.enable()


def values_alive() -> int:
    """Return the number of large lists in the memory."""
    return sum(type(each) is list and len(each) > 10_000 for each in gc.get_objects())


def test_values_of_refused_bodies_are_freed(rest: Rest, collections: list[int], monkeypatch: Any) -> None:
    body = b'{"jobs":[' + b'{"a":"b"},' * 20_000 + b"0]}"
    monkeypatch.setattr(garbage, "COLLECT_BYTES", 5 * len(body))
    alive = []
    for _ in range(12):
        rest.client.post("/api/jobs/", body)
        alive.append(values_alive())
    assert len(collections) == 2
    assert all(collections)
    assert max(alive) <= 6


def test_small_bodies_cost_no_collection(rest: Rest, collections: list[int]) -> None:
    for n in range(30):
        rest.make(f"k{n}")
    assert collections == []
