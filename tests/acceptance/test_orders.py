"""The product's first sentence, end to end: an order that nobody pays closes itself; a paid one does not."""

from decimal import Decimal

from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Customer, Order, Product
from project.shop.services import pay_order, place_order

from .world import World


def test_an_unpaid_order_closes_and_gives_its_stock_back_and_a_paid_one_does_not(world: World, settings) -> None:
    settings.SHOP_PAY_WITHIN_SECONDS = 2
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
    assert 0 <= event.late_ms < 3000  # the machine may be busy; an idle one is late by milliseconds


def test_an_order_that_is_paid_while_it_waits_stays_open_to_nobody_else(world: World, settings) -> None:
    settings.SHOP_PAY_WITHIN_SECONDS = 2
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
