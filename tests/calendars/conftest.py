"""Calendars of a test are unregistered after it."""

from collections.abc import Iterator

import pytest

from delaytasks.calendars import registry


@pytest.fixture(autouse=True)
def _forget_calendars() -> Iterator[None]:
    known = set(registry.names())
    yield
    for name in set(registry.names()) - known:
        registry.unregister(name)
