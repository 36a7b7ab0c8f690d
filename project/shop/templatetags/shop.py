"""Template filters and tags of the storefront: money, names and countdowns."""

from decimal import Decimal

from django import template
from django.utils import formats
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import selectors, upcoming
from ..models import Customer, Order, Product

register = template.Library()
PRODUCT_NAMES = {  # the products of project/demo/simulation.py
    "tea pot": gettext_lazy("tea pot"),
    "two cups": gettext_lazy("two cups"),
    "a pound of tea": gettext_lazy("a pound of tea"),
    "sugar bowl": gettext_lazy("sugar bowl"),
    "tray": gettext_lazy("tray"),
}
DRAWINGS = {"tea-pot", "two-cups", "a-pound-of-tea", "sugar-bowl", "tray"}  # in static/shop/things.svg


@register.filter
def money(amount: Decimal) -> str:
    return _("€%(amount)s") % {"amount": formats.number_format(amount, 2)}


@register.filter
def drawing(name: str) -> str:
    """Return the id of a product's drawing in things.svg, or "parcel" if the product has none. name: its name."""
    slug = slugify(name)
    return slug if slug in DRAWINGS else "parcel"


@register.filter
def product_name(product: Product) -> str:
    """Return the name of a product, translated if it is one of PRODUCT_NAMES."""
    return str(PRODUCT_NAMES.get(product.name, product.name))


@register.filter
def customer_name(customer: Customer) -> str:
    """Return the name of a customer. The name of a guest is translated."""
    guest, _space, code = customer.name.partition(" ")
    return _("Guest %(code)s") % {"code": code} if guest == "Guest" and code else customer.name


@register.filter
def order_title(order: Order) -> str:
    return selectors.order_title(order)


@register.simple_tag
def countdown(card: selectors.OrderCard | upcoming.Card) -> SafeString:
    """Render the remaining time at the moment of the response; shop.js counts it down."""
    seconds = -(-card.remaining_ms // 1000)
    minutes, hours = seconds // 60 % 60, seconds // 3600
    text = f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
    return format_html('<span class="clock" role="timer">{}</span>', text)
