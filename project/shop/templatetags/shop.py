"""How the storefront writes money, lengths of time and names."""

from decimal import Decimal

from django import template
from django.utils import formats
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import slugify
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from .. import seen
from ..models import Customer, Order, Product

register = template.Library()
GOODS = {  # as play.py stocks them
    "tea pot": gettext_lazy("tea pot"),
    "two cups": gettext_lazy("two cups"),
    "a pound of tea": gettext_lazy("a pound of tea"),
    "sugar bowl": gettext_lazy("sugar bowl"),
    "tray": gettext_lazy("tray"),
}
DRAWN = {"tea-pot", "two-cups", "a-pound-of-tea", "sugar-bowl", "tray"}  # in static/shop/things.svg


@register.filter
def money(amount: Decimal) -> str:
    return _("€%(amount)s") % {"amount": formats.number_format(amount, 2)}


@register.filter
def drawing(product_name: str) -> str:
    """The drawing of a product; any other is a parcel."""
    slug = slugify(product_name)
    return slug if slug in DRAWN else "parcel"


@register.filter
def goods(product: Product) -> str:
    """The name of a product, in the reader's language if it is one that the shop began with."""
    return str(GOODS.get(product.name, product.name))


@register.filter
def who(customer: Customer) -> str:
    """The name of a customer; a guest's in the reader's language."""
    guest, _space, code = customer.name.partition(" ")
    return _("Guest %(code)s") % {"code": code} if guest == "Guest" and code else customer.name


@register.filter
def title(order: Order) -> str:
    return seen.name(order)


@register.simple_tag
def countdown(order: seen.SeenOrder) -> SafeString:
    """The time that is left, as it was when the page was made; shop.js makes it run."""
    seconds = -(-order.left_ms // 1000)
    minutes, hours = seconds // 60 % 60, seconds // 3600
    text = f"{hours}:{minutes:02d}:{seconds % 60:02d}" if hours else f"{minutes}:{seconds % 60:02d}"
    return format_html('<span class="clock" role="timer">{}</span>', text)
