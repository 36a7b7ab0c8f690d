"""The shop's operations. Each one changes its rows and their jobs in one transaction.

Most timeouts are declared in timeouts.py: creating an order makes the job that closes it, and paying it cancels it.
"""

import secrets
from collections.abc import Iterable
from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delaytasks import schedule

from .models import Cart, Customer, Order, OrderLine, Payment, Product, Refund, Seller


class OutOfStock(Exception):
    """There is not enough of a product in stock. Nothing was ordered."""


class OrderNotOpen(Exception):
    """The order is closed or already paid. Nothing was paid."""


@transaction.atomic
def place_order(
    customer: Customer,
    items: Iterable[tuple[Product, int]],
    *,
    pay_within: timedelta | None = None,
    external_id: str | None = None,
) -> Order:
    """Create an open order, which is closed after `pay_within`, and take its stock.

    items        products with quantities, each product once
    pay_within   default: SHOP_PAY_WITHIN_SECONDS

    Raises OutOfStock.
    """
    pay_within = timedelta(seconds=settings.SHOP_PAY_WITHIN_SECONDS) if pay_within is None else pay_within
    now = timezone.now()
    order = Order.objects.create(customer=customer, created_at=now, pay_by=now + pay_within, external_id=external_id)
    for product, quantity in sorted(items, key=lambda item: item[0].pk):  # always in this order, to avoid deadlocks
        take_from_stock(product, quantity)
        OrderLine.objects.create(order=order, product=product, quantity=quantity, price=product.price)
        order.total += quantity * product.price
    order.save(update_fields=["total"])
    return order


def take_from_stock(product: Product, quantity: int) -> None:
    available = Product.objects.filter(pk=product.pk, stock__gte=quantity)
    if not available.update(stock=F("stock") - quantity):
        raise OutOfStock(f"Not enough in stock for {quantity} x {product.name}.")


@transaction.atomic
def pay_order(order_id: int) -> Payment:
    """Pay an open order. This cancels its close in the same transaction.

    An overdue order that is not closed yet can still be paid: the row lock decides whether the payment or the close
    comes first. The other one then reads the new state of the order.

    Raises OrderNotOpen if the order is closed or already paid.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.state != Order.State.OPEN:
        raise OrderNotOpen(f"{order} is {order.state}.")
    order.state = Order.State.PAID
    order.save(update_fields=["state"])
    return Payment.objects.create(order=order, amount=order.total)


@transaction.atomic
def request_refund(order_id: int) -> Refund:
    """Create a pending refund of a paid order and schedule its first check with the gateway.

    Raises ValueError if the order is not paid or already has a refund.
    """
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.state != Order.State.PAID or order.refunds.exists():
        raise ValueError(
            f"{order} is {order.state} with {order.refunds.count()} refunds: must be paid and without one."
        )
    refund = Refund.objects.create(
        order=order,
        amount=order.total,
        reference=f"R-{secrets.token_hex(8)}",
        ask_until=timezone.now() + timedelta(seconds=settings.SHOP_REFUND_GIVE_UP_SECONDS),
    )
    delay = settings.SHOP_REFUND_LADDER_SECONDS[0]
    schedule("refund.check", subject=refund, delay=delay, body={"refund": refund.pk})
    return refund


@transaction.atomic
def deliver_order(order_id: int) -> None:
    """Record that a paid order was delivered just now. Raises ValueError if it is not paid or was delivered before."""
    order = Order.objects.select_for_update().get(pk=order_id)
    if order.state != Order.State.PAID or order.delivered_at is not None:
        raise ValueError(f"{order} is {order.state}, delivered at {order.delivered_at}: must be paid and on its way.")
    order.delivered_at = timezone.now()
    order.save(update_fields=["delivered_at"])


def record_visit(customer: Customer) -> None:
    """Record that a member was seen just now."""
    customer.seen_at = timezone.now()
    customer.save(update_fields=["seen_at"])


@transaction.atomic
def put_in_cart(customer: Customer, product: Product, quantity: int = 1) -> Cart:
    """Replace the content of the customer's cart."""
    content = {"product": product, "quantity": quantity, "changed_at": timezone.now()}
    return Cart.objects.update_or_create(customer=customer, defaults=content)[0]


@transaction.atomic
def order_cart(cart: Cart) -> Order:
    """Order the content of a cart and empty it. Raises OutOfStock, and Cart.DoesNotExist if it was ordered before."""
    cart = Cart.objects.select_for_update().get(pk=cart.pk)
    order = place_order(cart.customer, [(cart.product, cart.quantity)])
    cart.delete()
    return order


@transaction.atomic
def offer_product(seller: Seller, product: Product) -> None:
    """Record that a seller offers a product from now on."""
    product.seller = seller
    product.save(update_fields=["seller"])
    seller.offered_at = timezone.now()
    seller.save(update_fields=["offered_at"])
