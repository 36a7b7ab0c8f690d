"""The shop: customers order products; an order is open until it is paid or closed; money can go back.

The constraints say what can never be: an order that is closed without a time, a stock below zero,
two payments for one order. The rules that move these rows are in services.py and timeouts.py.
"""

from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy


class Customer(models.Model):
    name = models.CharField(_("name"), max_length=100)
    email = models.EmailField(_("email"), unique=True)

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")

    def __str__(self) -> str:
        return self.name


class Product(models.Model):
    name = models.CharField(_("name"), max_length=100, unique=True)
    price = models.DecimalField(_("price"), max_digits=10, decimal_places=2)
    stock = models.PositiveIntegerField(
        _("stock"), help_text=_("what can still be ordered; an open order has taken its part")
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
    pay_by = models.DateTimeField(_("pay by"), help_text=_("when it will be closed unless it is paid"))
    closed_at = models.DateTimeField(_("closed at"), null=True, blank=True)
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
        """The key of its jobs."""
        return f"order:{self.pk}"

    def close(self) -> None:
        """Close it and give its stock back. The caller holds the row lock and has seen that the order is open."""
        self.state = Order.State.CLOSED
        self.closed_at = timezone.now()
        self.save(update_fields=["state", "closed_at"])
        for line in self.lines.order_by("product_id"):  # the same order everywhere: no deadlock
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
    timeout: str = ""  # set on what pay_order() returns: what cancel() answered about the order's close

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
        NEEDS_A_PERSON = "needs a person", _("Needs A Person")

    order = models.ForeignKey(Order, models.PROTECT, related_name="refunds", verbose_name=_("order"))
    amount = models.DecimalField(_("amount"), max_digits=10, decimal_places=2)
    state = models.CharField(_("state"), max_length=14, choices=State.choices, default=State.PENDING)
    reference = models.CharField(
        _("reference"), max_length=64, unique=True, help_text=_("what the payment gateway calls it")
    )
    created_at = models.DateTimeField(_("created at"), default=timezone.now)
    ask_until = models.DateTimeField(_("ask until"), help_text=_("after this, a person looks into it"))
    ended_at = models.DateTimeField(_("ended at"), null=True, blank=True)

    class Meta:
        verbose_name = _("refund")
        verbose_name_plural = _("refunds")

    def __str__(self) -> str:
        return _("refund %(number)s") % {"number": self.pk}

    @property
    def key(self) -> str:
        """The key of its jobs."""
        return f"refund:{self.pk}"

    def end(self, state: State) -> None:
        """Settled, failed or for a person: from pending only, so that a second answer changes nothing."""
        pending = Refund.objects.filter(pk=self.pk, state=Refund.State.PENDING)
        pending.update(state=state, ended_at=timezone.now())
