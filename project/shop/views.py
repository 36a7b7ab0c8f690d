"""The storefront. It looks (seen.py) and calls services.py; it moves no order by itself.

Everything works by forms, each answered by a redirect. What moves without them (countdowns, what
others order, what the workers do) comes from now(), which shop.js asks every other second.
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

from delaytasks import CancelResult

from . import seen, services
from .forms import MOST, OrderForm, chosen_time, times_to_pay
from .models import Order
from .templatetags.shop import goods
from .visits import Visit

# All that the page needs comes from this site, and nothing of it is written into the page.
POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"

TIMEOUT_WAS: dict[str, Any] = {  # what cancel() answered when the order was paid
    CancelResult.CANCELLED: gettext_lazy("its timeout was called off"),
    CancelResult.RUNNING: gettext_lazy("its timeout was already running: it finds the order paid and leaves it alone"),
    CancelResult.ALREADY_FINISHED: gettext_lazy("its timeout had ended before"),
    CancelResult.UNKNOWN: gettext_lazy("it had no timeout"),
}
NOT_PAID_BECAUSE: dict[str, Any] = {
    Order.State.PAID: gettext_lazy("%(order)s was paid before."),
    Order.State.CLOSED: gettext_lazy("%(order)s was not paid: its time was over, and it is closed."),
}


@never_cache
@require_safe
def home(request: HttpRequest) -> HttpResponse:
    """The shelf, this browser's orders and everybody else's newest ones."""
    keep = chosen_time(request.GET.get("keep"))
    context = {"sight": look(request), "times": times_to_pay(), "keep": keep, "most": MOST}
    response = render(request, "shop/home.html", context)
    response["Content-Security-Policy"] = POLICY
    return response


@never_cache
@require_GET
def now(request: HttpRequest) -> JsonResponse:
    """What the page shows, in pieces of HTML; without them if it is still what `since` names.

    since   the version that the page shows
    now     ms since 1970 by the clock that jobs run by
    lists   id of a list -> its elements as (id, version, html); pieces: the same, outside of a list
    """
    sight = look(request)
    answer: dict[str, Any] = {"now": sight.now_ms, "version": sight.version}
    if request.GET.get("since") != sight.version:
        answer["lists"] = {"mine": cards(sight, mine=True), "others": cards(sight, mine=False)}
        answer["pieces"] = [
            (f"stock-{product.pk}", str(product.stock), render_to_string("shop/stock.html", {"product": product}))
            for product in sight.products
        ]
    return JsonResponse(answer)


def look(request: HttpRequest) -> seen.Sight:
    staff = request.user.is_staff and request.user.has_perm("delaytasks.view_job")
    return seen.look(Visit(request.session).orders, staff=staff)


def cards(sight: seen.Sight, *, mine: bool) -> list[tuple[str, str, str]]:
    context = {"mine": mine, "staff": sight.staff}
    return [
        (f"order-{one.order.pk}", one.version, render_to_string("shop/order.html", {"seen": one, **context}))
        for one in (sight.mine if mine else sight.others)
    ]


@require_POST
def place(request: HttpRequest) -> HttpResponseRedirect:
    """One product, ordered by this browser's guest."""
    form, visit = OrderForm(request.POST), Visit(request.session)
    if not form.is_valid():
        messages.error(request, " ".join(str(error) for errors in form.errors.values() for error in errors))
        return back(request)
    product, quantity = form.cleaned_data["product"], form.cleaned_data["quantity"]
    try:
        order = services.place_order(visit.customer(), [(product, quantity)], pay_within=form.pay_within())
    except services.OutOfStock:
        messages.error(
            request,
            _("Nothing was ordered: there are not so many left of “%(product)s”.") % {"product": goods(product)},
        )
        return back(request)
    visit.remember(order)
    return back(request, order.pk)


@require_POST
def pay(request: HttpRequest, order_id: int) -> HttpResponseRedirect:
    """Pay an order of this browser, and say what became of its timeout."""
    order = own_order(request, order_id)
    try:
        payment = services.pay_order(order.pk)
    except services.TooLate:
        order.refresh_from_db()
        messages.warning(request, NOT_PAID_BECAUSE[order.state] % {"order": seen.name(order)})
    else:
        answer = payment.timeout
        told = {"order": seen.name(order), "timeout": TIMEOUT_WAS[answer], "answer": answer}
        messages.success(request, _("%(order)s is paid; %(timeout)s (cancel() answered “%(answer)s”).") % told)
    return back(request, order.pk)


@require_POST
def ask_back(request: HttpRequest, order_id: int) -> HttpResponseRedirect:
    """Ask for the money of a paid order of this browser."""
    order = own_order(request, order_id)
    try:
        services.ask_refund(order.pk)
    except ValueError:
        messages.warning(request, _("Only a paid order is refunded, and only once."))
    return back(request, order.pk)


def own_order(request: HttpRequest, order_id: int) -> Order:
    """The order, if this browser has placed it. Raises Http404."""
    order = Order.objects.filter(pk=order_id).first() if order_id in Visit(request.session).orders else None
    if order is None:
        raise Http404
    return order


def back(request: HttpRequest, order_id: int | None = None) -> HttpResponseRedirect:
    """To the first page, at the order in question; the chosen time to pay stays chosen."""
    keep, place = chosen_time(request.POST.get("keep")), f"order-{order_id}" if order_id else "yours"
    return HttpResponseRedirect(reverse("shop:home", query={"keep": keep}, fragment=place))
