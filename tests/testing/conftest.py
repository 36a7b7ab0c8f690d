"""Handlers for the tests of the kit."""

from collections.abc import Callable, Iterator
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone

from delaytasks import handlers
from project.shop.models import Product


@pytest.fixture
def register() -> Iterator[Callable[..., Any]]:
    """Register a handler until the end of the test: register("topic", function, **options)."""
    topics: list[str] = []

    def register_one(topic: str, function: Callable[..., Any] = lambda job: None, **options: Any) -> Any:
        topics.append(topic)
        return handlers.handler(topic, **options)(function)

    yield register_one
    for topic in topics:
        handlers.unregister(topic)
    handlers.clashes.clear()


@pytest.fixture
def ran(register: Callable[..., Any]) -> list[str]:
    """The keys of the jobs of topic "t" in the order of their runs."""
    keys: list[str] = []
    register("t", lambda job: keys.append(job.key))
    return keys


@pytest.fixture
def product(timeouts: Any) -> Product:
    return Product.objects.create(name="lamp", price=Decimal(10), stock=3)


@pytest.fixture(autouse=True)
def _real_clock_afterwards() -> Iterator[None]:
    """No test leaves the virtual clock behind for the other tests of its process."""
    yield
    assert vars(timezone)["datetime"] is datetime
