"""The shop's models: customers order products; an order is open until it is paid or closed; a paid one can be refunded.

Constraints exclude a closed order without a time, negative stock and two payments for one order. services.py and
timeouts.py change the rows. Carts, devices, lessons and sellers are in modules of their own.
"""

from collections.abc import Iterable
from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from .carts import Cart
from .devices import Device
from .lessons import Lesson
from .sellers import Seller

__all__ = [
    "Cart", "Customer", "Device", "Lesson", "Message", "Order", "OrderLine", "Payment", "Product", "Refund", "Seller",
]  # fmt: skip


class Customer(models.Model):
    name = models.CharField(_("name"), max_length=100)
    email = models.EmailField(_("email"), unique=True)
    phone = models.CharField(
        _("phone"), max_length=32, blank=True, default="", db_default="", help_text=_("for text messages")
    )
    card = models.CharField(
        _("stored card"), max_length=32, blank=True, default="", db_default="",
        help_text=_("open orders are paid with it automatically"),
    )  # fmt: skip
    seen_at = models.DateTimeField(
        _("last seen at"), null=True, blank=True, help_text=_("members only; empty: not a member")
    )

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")

    def __str__(self) -> str:
        return self.name


class Product(models.Model):
    name = models.CharField(_("name"), max_length=100, unique=True)
    price = models.DecimalField(_("price"), max_digits=10, decimal_places=2)
    stock = models.PositiveIntegerField(
        _("stock"), help_text=_("units that can still be ordered; those in open orders are not included")
    )
    seller = models.ForeignKey(
        Seller, models.PROTECT, related_name="products", verbose_name=_("seller"), null=True, blank=True
    )

    class Meta:
        verbose_name = _("product")
        verbose_name_plural = _("products")

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    class State(models.TextChoices):
        OPEN = "open", pgettext_lazy("state of an order", "Open")
        PAID = "paid", pgettext_lazy("state of an order", "Paid")
        CLOSED = "closed", pgettext_lazy("state of an order", "Closed")

    customer = models.ForeignKey(Customer, models.PROTECT, related_name="orders", verbose_name=_("customer"))
    state = models.CharField(_("state"), max_length=6, choices=State.choices, default=State.OPEN)
    total = models.DecimalField(_("total"), max_digits=10, decimal_places=2, default=Decimal(0))
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    pay_by = models.DateTimeField(_("pay by"), help_text=_("the order is closed at this time unless it is paid"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)
    delivered_at = models.DateTimeField(_("delivered at"), null=True, blank=True)
    external_id = models.CharField(_("external id"), max_length=255, unique=True, null=True, blank=True)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(state="closed", closed_at__isnull=False)
                | Q(state__in=["open", "paid"], closed_at__isnull=True),
                name="shop_order_closed_has_a_time",
            ),
        ]

    def __str__(self) -> str:
        return _("order %(number)s") % {"number": self.pk}

    @property
    def key(self) -> str:
        """The key of the order's jobs."""
        return f"order:{self.pk}"

    def close(self) -> None:
        """Close the order and return its stock. The order must be open; the caller must hold its row lock."""
        self.state = Order.State.CLOSED
        self.closed_at = timezone.now()
        self.save(update_fields=["state", "closed_at"])
        for line in self.lines.order_by("product_id"):  # always in this order, to avoid deadlocks
            Product.objects.filter(pk=line.product_id).update(stock=F("stock") + line.quantity)


class OrderLine(models.Model):
    order = models.ForeignKey(Order, models.CASCADE, related_name="lines", verbose_name=_("order"))
    product = models.ForeignKey(Product, models.PROTECT, related_name="lines", verbose_name=_("product"))
    quantity = models.PositiveIntegerField(_("quantity"))
    price = models.DecimalField(_("price"), max_digits=10, decimal_places=2)

    class Meta:
        verbose_name = _("order line")
        verbose_name_plural = _("order lines")
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["order", "product"], name="shop_line_once_per_product"),
            models.CheckConstraint(condition=Q(quantity__gt=0), name="shop_line_of_something"),
        ]

    def __str__(self) -> str:
        return f"{self.quantity} x {self.product}"


class Payment(models.Model):
    order = models.OneToOneField(Order, models.PROTECT, related_name="payment", verbose_name=_("order"))
    amount = models.DecimalField(_("amount"), max_digits=10, decimal_places=2)
    paid_at = models.DateTimeField(_("paid at"), default=timezone.now)

    class Meta:
        verbose_name = _("payment")
        verbose_name_plural = _("payments")

    def __str__(self) -> str:
        return _("payment of order %(number)s") % {"number": self.order_id}


class Refund(models.Model):
    class State(models.TextChoices):
        PENDING = "pending", _("Pending")
        SETTLED = "settled", _("Settled")
        FAILED = "failed", _("Failed")
        NEEDS_REVIEW = "needs a person", _("Needs review")

    order = models.ForeignKey(Order, models.PROTECT, related_name="refunds", verbose_name=_("order"))
    amount = models.DecimalField(_("amount"), max_digits=10, decimal_places=2)
    state = models.CharField(_("state"), max_length=14, choices=State.choices, default=State.PENDING)
    reference = models.CharField(
        _("reference"), max_length=64, unique=True, help_text=_("identifies the refund at the payment gateway")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    ask_until = models.DateTimeField(_("check until"), help_text=_("after this time, staff review the refund"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)

    class Meta:
        verbose_name = _("refund")
        verbose_name_plural = _("refunds")

    def __str__(self) -> str:
        return _("refund %(number)s") % {"number": self.pk}

    @property
    def key(self) -> str:
        """The key of the refund's jobs."""
        return f"refund:{self.pk}"

    def end(self, state: State) -> None:
        """End a pending refund in this state. A refund that has already ended does not change."""
        pending = Refund.objects.filter(pk=self.pk, state=Refund.State.PENDING)
        pending.update(state=state, ended_at=timezone.now())


class Message(models.Model):
    """An email or text message of the shop, written in one transaction with the end of the job that sends it."""

    class Kind(models.TextChoices):
        LESSON = "lesson", _("Your lesson starts soon")
        REVIEW = "review", _("How did you like your order?")
        ABSENCE = "absence", _("We have not seen you for a while")
        CART = "cart", _("Your cart is waiting for you")
        OFFER = "offer", _("You have not offered anything for a while")

    kind = models.CharField(_("message"), max_length=8, choices=Kind.choices)
    to = models.CharField(_("to"), max_length=254, help_text=_("an email address or a phone number"))
    about = models.CharField(_("about"), max_length=64, help_text=_("the key of the job that sent it"))
    sent_at = models.DateTimeField(_("sent at"), default=timezone.now)

    class Meta:
        verbose_name = _("message")
        verbose_name_plural = _("messages")

    def __str__(self) -> str:
        return self.get_kind_display()

    @staticmethod
    def send(kind: "Message.Kind", about: str, to: Iterable[str]) -> None:
        """Write one message to each recipient. about: the key of the job that sends it."""
        Message.objects.bulk_create([Message(kind=kind, about=about, to=each) for each in to])


class Ticket(models.Model):
    """A customer's question. tickets.py has its service level."""

    class State(models.TextChoices):
        OPEN = "open", pgettext_lazy("state of a ticket", "Open")
        WAITING = "waiting", pgettext_lazy("state of a ticket", "Waiting for the customer")
        ANSWERED = "answered", pgettext_lazy("state of a ticket", "Answered")

    customer = models.ForeignKey(Customer, models.PROTECT, related_name="tickets", verbose_name=_("customer"))
    title = models.CharField(_("title"), max_length=200)
    state = models.CharField(_("state"), max_length=8, choices=State.choices, default=State.OPEN)
    created_at = models.DateTimeField(_("created at"), default=timezone.now, editable=False)
    reminded_at = models.DateTimeField(_("reminded at"), null=True, editable=False)
    overdue_at = models.DateTimeField(_("overdue since"), null=True, editable=False)
    escalated_at = models.DateTimeField(_("escalated at"), null=True, editable=False)

    class Meta:
        verbose_name = _("ticket")
        verbose_name_plural = _("tickets")

    def __str__(self) -> str:
        return _("ticket %(number)s") % {"number": self.pk}
