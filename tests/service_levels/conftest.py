"""A test sees its own service levels alone. The calendar is open on weekdays from 9 to 17 in Berlin."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db.models import Q

from delaytasks import Calendar, sla
from delaytasks.calendars import hours, registry
from delaytasks.db import calendar_days
from delaytasks.service_levels.service_level import ServiceLevel, SlaEvent
from tests.timeouts.app.models import Order
from tests.timeouts.conftest import _own_declarations  # noqa: F401  a fixture

MONDAY = datetime(2026, 1, 5, 8, tzinfo=UTC)  # 9:00 in Berlin: the calendar opens
HOUR = timedelta(hours=1)
TOPIC = "order.answer"


@pytest.fixture
def office() -> Iterator[Calendar]:
    name = "office of the tests of service levels"
    yield Calendar(name, tz="Europe/Berlin", hours={"mon-fri": "09:00-17:00"})
    registry.unregister(name)
    calendar_days.clear_cache()


@pytest.fixture
def told() -> list[tuple[Any, float]]:
    """The events of the service level of the test: (primary key, part)."""
    return []


@pytest.fixture
def declare(office: Calendar, told: list[tuple[Any, float]]) -> Callable[..., ServiceLevel[Any]]:
    """Declare 8 working hours for an order to be done, with warnings at a half and at nine tenths."""

    def declare(**options: Any) -> ServiceLevel[Any]:
        def answer(order: Order, event: SlaEvent) -> None:
            told.append((order.pk, event.part))

        terms: dict[str, Any] = {
            "calendar": office, "target": hours(8), "start": Q(state__in=["open", "late"]), "pause": Q(state="wait"),
            "stop": Q(state="done"), "warn": [0.5, 0.9], "topic": TOPIC,
        }  # fmt: skip
        return sla(Order, **terms | options)(answer)

    return declare


@pytest.fixture
def level(declare: Callable[..., ServiceLevel[Any]]) -> ServiceLevel[Any]:
    return declare()


def at(hour: float) -> datetime:
    """Return the moment so many hours after Monday 9:00."""
    return MONDAY + hour * HOUR


def write(order: Order, state: str) -> None:
    order.state = state
    order.save()
