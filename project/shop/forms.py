"""Forms of the storefront."""

from datetime import timedelta

from django import forms
from django.conf import settings

from delaytasks import formatting

from .models import Product

MAX_QUANTITY = 20  # of one product, in one order
EXTRA_CHOICES_SECONDS = (120.0, 900.0)  # long enough to inspect the job before it runs


def payment_time_choices() -> list[tuple[str, str]]:
    """Return the times to pay that a visitor can choose, shortest first, as (seconds, label)."""
    choices = sorted({settings.SHOP_PAY_WITHIN_SECONDS, *EXTRA_CHOICES_SECONDS})
    return [(f"{seconds:g}", formatting.duration(int(seconds * 1000))) for seconds in choices]


def valid_payment_time(seconds: str | None) -> str:
    """Return `seconds` if it is one of the choices, otherwise SHOP_PAY_WITHIN_SECONDS."""
    default = f"{settings.SHOP_PAY_WITHIN_SECONDS:g}"
    return seconds if seconds in dict(payment_time_choices()) else default


class OrderForm(forms.Form):
    product = forms.ModelChoiceField(Product.objects.all())
    quantity = forms.IntegerField(min_value=1, max_value=MAX_QUANTITY)
    keep = forms.ChoiceField(choices=payment_time_choices)

    def pay_within(self) -> timedelta:
        return timedelta(seconds=float(self.cleaned_data["keep"]))
