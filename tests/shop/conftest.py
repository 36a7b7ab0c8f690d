"""What the tests of the shop share."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from decimal import Decimal
from threading import Thread
from typing import Any

import pytest
from django.db import transaction

from delaytasks.models import Job
from project.shop.gateway import Gateway, plan_of
from project.shop.models import Customer, Order, Product
from project.shop.services import place_order


@dataclass
class HandedJob:
    """What a handler gets, as far as the shop's handlers look at it."""

    body: dict[str, Any]
    attempt: int = 1
    finished: list[str] = field(default_factory=list)

    def finishing(self) -> AbstractContextManager[Any]:
        self.finished.append("opened")
        return transaction.atomic()


@pytest.fixture
def handed() -> Callable[..., HandedJob]:
    """Makes the job that a handler is called with: handed(order=7) or handed(refund=3, attempt=2)."""
    return lambda attempt=1, **body: HandedJob(body, attempt)


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
def live_job() -> Callable[[str, str], Job | None]:
    """The live job of a topic and key, or None."""
    return lambda topic, key: Job.objects.filter(topic=topic, key=key, ended_at__isnull=True).first()


@pytest.fixture
def stand_in(settings: Any) -> Iterator[Gateway]:
    """A running payment gateway that the shop asks. It hangs for a second at most."""
    gateway = Gateway(hang_seconds=1.0, quiet=True)
    thread = Thread(target=gateway.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    settings.SHOP_GATEWAY_URL = gateway.url
    settings.SHOP_GATEWAY_TIMEOUT_SECONDS = 0.3
    yield gateway
    gateway.shutdown()
    thread.join()
    gateway.server_close()


def reference_with(plan: tuple[str, ...]) -> str:
    """A reference that the stand-in answers in this way."""
    return next(f"R-{number}" for number in range(10_000) if plan_of(f"R-{number}") == plan)
