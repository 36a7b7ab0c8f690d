"""What the storefront accepts."""

from datetime import timedelta

from django import forms
from django.conf import settings

from delaytasks import words

from .models import Product

MOST = 20  # of one product, in one order
OFFERED_SECONDS = (120.0, 900.0)  # beside the shop's own rule: time enough to look at the job before it runs


def times_to_pay() -> list[tuple[str, str]]:
    """The lengths of time that an order can be kept for, shortest first: (seconds as text, words)."""
    offered = sorted({settings.SHOP_PAY_WITHIN_SECONDS, *OFFERED_SECONDS})
    return [(f"{seconds:g}", words.span(int(seconds * 1000))) for seconds in offered]


def chosen_time(wish: str | None) -> str:
    """`wish` if it is offered, else the shop's own rule."""
    own = f"{settings.SHOP_PAY_WITHIN_SECONDS:g}"
    return wish if wish in dict(times_to_pay()) else own


class OrderForm(forms.Form):
    product = forms.ModelChoiceField(Product.objects.all())
    quantity = forms.IntegerField(min_value=1, max_value=MOST)
    keep = forms.ChoiceField(choices=times_to_pay)

    def pay_within(self) -> timedelta:
        return timedelta(seconds=float(self.cleaned_data["keep"]))
