"""End to end: an unpaid order is closed in time; a paid one is not."""

from decimal import Decimal

import pytest
from django.core.management import call_command

from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Customer, Order, Product
from project.shop.services import pay_order, place_order

from ..support.installation import World


@pytest.fixture(autouse=True)
def _applied(world: World) -> None:
    """The shop's declared timeouts are in force, as after a deployment."""
    call_command("delaytasks", "timeouts", "apply", verbosity=0)


@pytest.mark.on_both
def test_an_unpaid_order_is_closed_and_its_stock_returned_and_a_paid_one_is_not(world: World, settings) -> None:
    settings.SHOP_PAY_WITHIN_SECONDS = 5
    customer = Customer.objects.create(name="Ada", email="ada@example.com")
    product = Product.objects.create(name="Clock", price=Decimal("12.50"), stock=10)
    world.start_all()

    unpaid = place_order(customer, [(product, 3)])
    paid = place_order(customer, [(product, 4)])
    pay_order(paid.pk)

    def closed() -> bool:
        unpaid.refresh_from_db()
        return unpaid.state == Order.State.CLOSED

    world.until(closed, seconds=15, what="the unpaid order to close")
    product.refresh_from_db()
    paid.refresh_from_db()
    assert product.stock == 6
    assert paid.state == Order.State.PAID
    assert Job.objects.get(key=paid.key).state == State.CANCELLED
    assert world.outcomes(paid.key) == [("cancelled", 0)]
    assert world.outcomes(unpaid.key) == [("finished", 1)]
    event = Job.objects.get(key=unpaid.key).events.get()
    assert 0 <= event.late_ms < 15_000  # milliseconds on an idle machine; this one may be busy


def test_of_many_orders_exactly_the_unpaid_ones_are_closed(world: World, settings) -> None:
    settings.SHOP_PAY_WITHIN_SECONDS = 5
    customer = Customer.objects.create(name="Ada", email="ada@example.com")
    product = Product.objects.create(name="Clock", price=Decimal("12.50"), stock=100)
    world.start_all()
    orders = [place_order(customer, [(product, 1)]) for _ in range(20)]
    for order in orders[::2]:
        pay_order(order.pk)

    world.until(
        lambda: Order.objects.filter(state=Order.State.CLOSED).count() == 10, seconds=15, what="ten orders to close"
    )
    assert set(Order.objects.filter(state=Order.State.PAID).values_list("pk", flat=True)) == {o.pk for o in orders[::2]}
    product.refresh_from_db()
    assert product.stock == 90
    assert not Job.objects.filter(ended_at__isnull=True).exists()
