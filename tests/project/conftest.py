"""Fixtures for the tests of the shop."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Thread
from typing import Any

import pytest
from django.db import transaction

from delaytasks.models import Job
from delaytasks.polling.poll import Ladder, find_poll
from delaytasks.timeouts import applied_declarations
from project import settings as project_settings
from project.shop.gateway import FakeGateway, plan_for
from project.shop.models import Customer, Order, Product
from project.shop.services import place_order


@dataclass
class FakeRunningJob:
    """The part of RunningJob that the shop's handlers use."""

    body: dict[str, Any]
    attempt: int = 1
    calls: list[str] = field(default_factory=list)

    def finishing(self) -> AbstractContextManager[Any]:
        self.calls.append("finishing")
        return transaction.atomic()


@pytest.fixture
def running_job() -> Callable[..., FakeRunningJob]:
    """Return a factory of handler arguments: running_job(order=7) or running_job(refund=3, attempt=2)."""
    return lambda attempt=1, **body: FakeRunningJob(body, attempt)


@pytest.fixture(autouse=True)
def _declarations_applied() -> Iterator[None]:
    """Make, move and cancel the jobs of declared timeouts, as after `manage.py delaytasks timeouts apply`."""
    with applied_declarations.automatically():
        yield


@pytest.fixture
def customer(db: None) -> Customer:
    return Customer.objects.create(name="Ada", email="ada@shop.example")


@pytest.fixture
def tea(db: None) -> Product:
    return Product.objects.create(name="tea", price=Decimal("4.50"), stock=10)


@pytest.fixture
def cup(db: None) -> Product:
    return Product.objects.create(name="cup", price=Decimal("8.00"), stock=5)


@pytest.fixture
def order(customer: Customer, tea: Product) -> Order:
    """An open order of two packets of tea."""
    return place_order(customer, [(tea, 2)])


@pytest.fixture
def static_files(settings: Any) -> None:
    """Clients that are made from now on are served the static files of the apps, as in production."""
    settings.MIDDLEWARE = project_settings.MIDDLEWARE


@pytest.fixture
def live_job() -> Callable[[str, str], Job | None]:
    """Return a function that gets the live job of a topic and key, or None."""
    return lambda topic, key: Job.objects.filter(topic=topic, key=key, ended_at__isnull=True).first()


@pytest.fixture
def fake_gateway(settings: Any) -> Iterator[FakeGateway]:
    """Run a fake payment gateway for the shop. It hangs for one second at most."""
    gateway = FakeGateway(hang_seconds=1.0, quiet=True)
    thread = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    settings.SHOP_GATEWAY_URL = gateway.url
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 0.3
    yield gateway
    gateway.shutdown()
    thread.join()
    gateway.server_close()


@pytest.fixture
def refund_ladder(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that gives the refund check other delays, in seconds: refund_ladder(0.2, 0.4)."""
    found = find_poll("refund.check")
    assert found is not None
    until = found.ladder.until
    return lambda *seconds: monkeypatch.setattr(found, "ladder", Ladder.parse(seconds, until))


def reference_with(plan: tuple[str, ...]) -> str:
    """Return a reference for which the fake gateway follows this plan."""
    return next(f"R-{number}" for number in range(10_000) if plan_for(f"R-{number}") == plan)
