"""Views of the storefront. They read through selectors.py and change orders only through services.py.

All actions are forms that redirect. Live updates (countdowns, other customers' orders, the workers' results) come
from now(), which shop.js polls every two seconds.
"""

from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST, require_safe

from . import selectors, services
from .forms import MAX_QUANTITY, OrderForm, payment_time_choices, valid_payment_time
from .models import Order
from .session import ShopSession
from .templatetags.shop import product_name

# Scripts, styles and images come from this site only; none are inline.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

NOT_PAID_REASONS: dict[str, Any] = {
    Order.State.PAID: gettext_lazy("%(order)s is already paid."),
    Order.State.CLOSED: gettext_lazy("%(order)s was not paid: its time to pay is over and it is closed."),
}


@never_cache
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """Show the products, this session's orders and the newest orders of others."""
    keep = valid_payment_time(request.GET.get("keep"))
    context = {
        "storefront": get_storefront(request),
        "times": payment_time_choices(),
        "keep": keep,
        "max_quantity": MAX_QUANTITY,
    }
    response = render(request, "shop/home.html", context)
    response["Content-Security-Policy"] = POLICY
    return response


@never_cache
@require_GET
def now(request: HttpRequest) -> JsonResponse:
    """Return the content of the page as HTML fragments, or only the time if it has not changed.

    since    query parameter: the version that the page shows
    version  the current version
    now      the current time by the database's clock, which jobs use, in ms since 1970
    lists    id of each list -> its elements as (id, version, html)
    pieces   elements outside of the lists, as (id, version, html)
    """
    storefront = get_storefront(request)
    data: dict[str, Any] = {"now": storefront.now_ms, "version": storefront.version}
    if request.GET.get("since") != storefront.version:
        data["lists"] = {
            "mine": render_cards(storefront, mine=True),
            "others": render_cards(storefront, mine=False),
            "upcoming": [
                (
                    card.id,
                    card.version,
                    render_to_string("shop/upcoming.html", {"card": card, "staff": storefront.staff}),
                )
                for card in storefront.upcoming_cards
            ],
        }
        data["pieces"] = [
            (f"stock-{product.pk}", str(product.stock), render_to_string("shop/stock.html", {"product": product}))
            for product in storefront.products
        ]
    return JsonResponse(data)


def get_storefront(request: HttpRequest) -> selectors.Storefront:
    staff = request.user.is_staff and request.user.has_perm("delaytasks.view_job")
    return selectors.get_storefront(ShopSession(request.session).orders, staff=staff)


def render_cards(storefront: selectors.Storefront, *, mine: bool) -> list[tuple[str, str, str]]:
    """Return (id, version, html) of each card: those of the visitor's own orders if `mine`, else the others."""
    context = {"mine": mine, "staff": storefront.staff}
    return [
        (f"order-{card.order.pk}", card.version, render_to_string("shop/order.html", {"card": card, **context}))
        for card in (storefront.mine if mine else storefront.others)
    ]


@require_POST
def place(request: HttpRequest) -> HttpResponseRedirect:
    """Order one product as this session's guest."""
    form, session = OrderForm(request.POST), ShopSession(request.session)
    if not form.is_valid():
        messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
        return redirect_home(request)
    product, quantity = form.cleaned_data["product"], form.cleaned_data["quantity"]
    try:
        order = services.place_order(session.customer(), [(product, quantity)], pay_within=form.pay_within())
    except services.OutOfStock:
        messages.error(
            request,
            _("Not ordered: there is not enough “%(product)s” in stock.") % {"product": product_name(product)},
        )
        return redirect_home(request)
    session.add(order)
    return redirect_home(request, order.pk)


@require_POST
def pay(request: HttpRequest, order_id: int) -> HttpResponseRedirect:
    """Pay an order of this session. Its card then shows what happened to its timeout."""
    order = get_own_order(request, order_id)
    try:
        services.pay_order(order.pk)
    except services.OrderNotOpen:
        order.refresh_from_db()
        messages.warning(request, NOT_PAID_REASONS[order.state] % {"order": selectors.order_title(order)})
    else:
        messages.success(request, _("%(order)s is paid.") % {"order": selectors.order_title(order)})
    return redirect_home(request, order.pk)


@require_POST
def request_refund(request: HttpRequest, order_id: int) -> HttpResponseRedirect:
    """Request the refund of a paid order of this session."""
    order = get_own_order(request, order_id)
    try:
        services.request_refund(order.pk)
    except ValueError:
        messages.warning(request, _("Only a paid order can be refunded, and only once."))
    return redirect_home(request, order.pk)


def get_own_order(request: HttpRequest, order_id: int) -> Order:
    """Return an order of this session. Raises Http404 if the session does not have the order."""
    order = Order.objects.filter(pk=order_id).first() if order_id in ShopSession(request.session).orders else None
    if order is None:
        raise Http404
    return order


def redirect_home(request: HttpRequest, order_id: int | None = None) -> HttpResponseRedirect:
    """Redirect to the home page, at this order or at the visitor's orders. The chosen time to pay is kept."""
    keep = valid_payment_time(request.POST.get("keep"))
    fragment = f"order-{order_id}" if order_id else "yours"
    return HttpResponseRedirect(reverse("shop:home", query={"keep": keep}, fragment=fragment))
