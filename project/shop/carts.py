"""Carts: a customer who leaves one behind gets a text message. The handler is remind_of_cart() in timeouts.py."""

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Cart(models.Model):
    """A product that a customer has chosen but not ordered. Ordering it deletes the row, which cancels its timeout."""

    customer = models.OneToOneField("shop.Customer", models.CASCADE, related_name="cart", verbose_name=_("customer"))
    product = models.ForeignKey("shop.Product", models.CASCADE, related_name="carts", verbose_name=_("product"))
    quantity = models.PositiveIntegerField(_("quantity"), default=1)
    changed_at = models.DateTimeField(_("changed at"), default=timezone.now)

    class Meta:
        verbose_name = _("cart")
        verbose_name_plural = _("carts")

    def __str__(self) -> str:
        return _("cart of %(customer)s") % {"customer": self.customer}
