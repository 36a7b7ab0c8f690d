"""What the shop does, each in one transaction together with the promise about time that belongs to it."""

import secrets
from collections.abc import Iterable
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delaytasks import cancel, schedule

from .models import Customer, Order, OrderLine, Payment, Product, Refund


class OutOfStock(Exception):
    """Not enough of a product is left; nothing was ordered."""


class TooLate(Exception):
    """The order is no longer open; nothing was paid."""


@transaction.atomic
def place_order(
    customer: Customer,
    items: Iterable[tuple[Product, int]],
    *,
    pay_within: timedelta | None = None,
    external_id: str | None = None,
) -> Order:
    """A new open order that has taken its stock and will be closed when `pay_within` is over.

    items        products with quantities, each product once
    pay_within   default: SHOP_PAY_WITHIN_SECONDS

    Raises OutOfStock.
    """
    pay_within = timedelta(seconds=settings.SHOP_PAY_WITHIN_SECONDS) if pay_within is None else pay_within
    now = timezone.now()
    order = Order.objects.create(customer=customer, created_at=now, pay_by=now + pay_within, external_id=external_id)
    for product, quantity in sorted(items, key=lambda item: item[0].pk):  # the same order everywhere: no deadlock
        take_from_stock(product, quantity)
        OrderLine.objects.create(order=order, product=product, quantity=quantity, price=product.price)
        order.total += quantity * product.price
    order.save(update_fields=["total"])
    schedule("order.close", key=order.key, delay=pay_within, body={"order": order.pk})
    return order


def take_from_stock(product: Product, quantity: int) -> None:
    left = Product.objects.filter(pk=product.pk, stock__gte=quantity)
    if not left.update(stock=F("stock") - quantity):
        raise OutOfStock(f"{quantity} x {product.name} were asked for; there are not so many.")


@transaction.atomic
def pay_order(order_id: int) -> Payment:
    """The payment of an open order; its close is called off in the same commit, as payment.timeout tells.

    An order whose time is over and that nobody has closed yet can still be paid: whoever takes
    the row lock first has won, and the other side sees it.

    Raises TooLate when the order is closed or already paid.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.state != Order.State.OPEN:
        raise TooLate(f"{order} is {order.state}.")
    order.state = Order.State.PAID
    order.save(update_fields=["state"])
    payment = Payment.objects.create(order=order, amount=order.total)
    payment.timeout = cancel("order.close", key=order.key)
    return payment


@transaction.atomic
def ask_refund(order_id: int) -> Refund:
    """A pending refund of a paid order; the gateway will be asked about it until it is settled.

    Raises ValueError when the order is not paid or its refund was asked for before.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.state != Order.State.PAID or order.refunds.exists():
        raise ValueError(f"{order} is {order.state} with {order.refunds.count()} refunds: only a paid order, once.")
    refund = Refund.objects.create(
        order=order,
        amount=order.total,
        reference=f"R-{secrets.token_hex(8)}",
        ask_until=timezone.now() + timedelta(seconds=settings.SHOP_REFUND_GIVE_UP_SECONDS),
    )
    first = settings.SHOP_REFUND_LADDER_SECONDS[0]
    schedule("refund.check", key=refund.key, delay=first, body={"refund": refund.pk})
    return refund
