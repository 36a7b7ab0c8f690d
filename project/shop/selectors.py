"""The data of the storefront: orders with the state of their timeout and refund, in a fixed number of queries.

An order and its job change in one transaction but are read by two statements. Jobs are read first, so that an
order may be newer than its job but never older: an open order is never shown without its timeout.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch
from django.utils.translation import get_language, gettext_lazy, ngettext, pgettext_lazy
from django.utils.translation import gettext as _

from delaytasks import databases, formatting
from delaytasks.clock import to_ms
from delaytasks.models import Job
from delaytasks.states import State

from . import upcoming
from .digests import digest
from .models import Order, OrderLine, Product, Refund

MAX_ORDERS = 12  # in each list
MAX_PRODUCTS = 12

LABELS: dict[str, Any] = {
    Order.State.OPEN: pgettext_lazy("an order is", "open"),
    Order.State.PAID: pgettext_lazy("an order is", "paid"),
    Order.State.CLOSED: pgettext_lazy("an order is", "closed"),
    Refund.State.PENDING: gettext_lazy("refund pending"),
    Refund.State.SETTLED: gettext_lazy("refunded"),
    Refund.State.FAILED: gettext_lazy("refund failed"),
    Refund.State.NEEDS_REVIEW: gettext_lazy("refund under review"),
}
OPEN_ORDER_TEXTS = {  # an order stays open after its timeout only if staff or a defect ended the timeout
    State.CANCELLED: gettext_lazy("Staff cancelled the timeout: the order stays open until it is paid."),
    State.DEAD: gettext_lazy("The timeout failed permanently: staff must check the order."),
}
PAID_ORDER_TEXTS = {
    State.CANCELLED: gettext_lazy("The timeout was cancelled."),
    State.RESERVED: gettext_lazy("The timeout was already running; it finds the order paid and changes nothing."),
    State.FINISHED: gettext_lazy("The timeout was already running; it found the order paid and changed nothing."),
    State.DEAD: gettext_lazy("The timeout had already failed permanently."),
}
REFUND_TEXTS = {
    Refund.State.SETTLED: gettext_lazy("The money is on its way back."),
    Refund.State.FAILED: gettext_lazy("The payment gateway declined the refund."),
    Refund.State.NEEDS_REVIEW: gettext_lazy("The payment gateway did not decide in time: staff review the refund."),
}


@dataclass(frozen=True)
class OrderCard:
    """An order with its refund and its jobs, as shown on its card.

    close   the newest job that closes the order
    check   the newest job that checks its refund
    """

    order: Order
    close: Job | None
    refund: Refund | None
    check: Job | None
    now_ms: int

    @property
    def state(self) -> str:
        """The state of the refund if there is one, otherwise the state of the order."""
        return self.refund.state if self.refund else self.order.state

    @property
    def label(self) -> str:
        return str(LABELS[self.state])

    @property
    def job(self) -> Job | None:
        """The job that the card links to."""
        return self.check or self.close

    @property
    def pending_job(self) -> Job | None:
        """The job of the countdown: the close of an open order or the next check of a pending refund."""
        if self.order.state == Order.State.OPEN:
            job = self.close
        else:
            job = self.check if self.state == Refund.State.PENDING else None
        return job if job and job.ended_at is None else None

    @property
    def due_ms(self) -> int | None:
        return self.pending_job.due_ms if self.pending_job else None

    @property
    def remaining_ms(self) -> int:
        return max(0, (self.due_ms or 0) - self.now_ms)

    @property
    def total_ms(self) -> int:
        """The full length of the countdown in ms, up to the job's due time, which staff may have changed."""
        return max(1, (self.due_ms or 0) - to_ms(self.order.created_at))

    @property
    def can_pay(self) -> bool:
        """True for an open order, even while its timeout runs: the row lock decides which comes first."""
        return self.order.state == Order.State.OPEN

    @property
    def can_refund(self) -> bool:
        return self.order.state == Order.State.PAID and self.refund is None

    @property
    def timeout_text(self) -> str:
        """The outcome of the timeout; "" during the countdown."""
        if self.order.state == Order.State.CLOSED:
            return self._closed_text()
        if self.can_pay and self.pending_job:
            return ""
        texts = OPEN_ORDER_TEXTS if self.can_pay else PAID_ORDER_TEXTS
        return str(texts.get(State(self.close.state), "")) if self.close else ""

    def _closed_text(self) -> str:
        job = self.close
        if job is None or job.reserved_at is None or job.attempt > 1:  # lateness is known for a first attempt only
            return _("Not paid in time: the order is closed and its items are back in stock.")
        late = formatting.duration(to_ms(job.reserved_at) - job.due_ms)
        return _("Not paid in time: closed %(span)s after the deadline. Its items are back in stock.") % {"span": late}

    @property
    def check_text(self) -> str:
        """The number of completed refund checks; "" without a refund."""
        if self.check is None:
            return ""
        checks = self.check.polls + (self.check.state == State.FINISHED)
        if not checks:
            return _("The payment gateway has not been asked yet.")
        text = ngettext("The payment gateway was asked once.", "The payment gateway was asked %(n)d times.", checks)
        return text % {"n": checks}

    @property
    def refund_text(self) -> str:
        return str(REFUND_TEXTS.get(Refund.State(self.refund.state), "")) if self.refund else ""

    @property
    def announcement(self) -> str:
        """The text for screen readers when the state changes."""
        texts = [self.refund_text, self.check_text] if self.refund else [self.timeout_text]
        summary = _("%(order)s: %(state)s.") % {"order": order_title(self.order), "state": self.label}
        return " ".join([summary, *filter(None, texts)])

    @property
    def version(self) -> str:
        """A version tag that changes when anything on the card changes, except the countdown."""
        jobs = [(job.pk, job.state, job.attempt, job.due_ms) if job else None for job in (self.close, self.check)]
        return digest(self.order.pk, self.order.state, self.state, *jobs)


def order_title(order: Order) -> str:
    return _("Order %(number)d") % {"number": order.pk}


@dataclass(frozen=True)
class Storefront:
    """The content of the page at now_ms, which is by the database's clock, in ms since 1970."""

    mine: list[OrderCard]
    others: list[OrderCard]
    products: list[Product]
    upcoming_cards: list[upcoming.Card]
    now_ms: int
    staff: bool

    @property
    def version(self) -> str:
        """A version tag that changes when anything on the page changes, except the countdowns."""
        orders = [card.version for card in [*self.mine, *self.others]]
        stock = [(product.pk, product.stock) for product in self.products]
        others = [(card.id, card.version) for card in self.upcoming_cards]
        return digest(get_language(), self.staff, len(self.mine), orders, stock, others)


def get_storefront(order_ids: Sequence[int], *, staff: bool) -> Storefront:
    """Return the storefront for a visitor: at most MAX_ORDERS orders of the visitor and of others, newest first.

    order_ids   the visitor's orders
    staff       whether the visitor may view jobs in the admin, so that cards link to them
    """
    my_ids = list(order_ids[:MAX_ORDERS])
    newest = Order.objects.exclude(pk__in=my_ids).order_by("-pk")
    other_ids = list(newest.values_list("pk", flat=True)[:MAX_ORDERS])
    now_ms = databases.now_ms(databases.alias())
    cards = _get_cards([*my_ids, *other_ids], now_ms)
    products = list(Product.objects.order_by("pk")[:MAX_PRODUCTS])
    mine = [cards[pk] for pk in my_ids if pk in cards]
    others = [cards[pk] for pk in other_ids]
    return Storefront(mine, others, products, upcoming.get_cards(now_ms), now_ms, staff)


def _get_cards(order_ids: list[int], now_ms: int) -> dict[int, OrderCard]:
    closes = _newest_jobs("order.close", (Order(pk=pk).key for pk in order_ids))
    lines = Prefetch("lines", OrderLine.objects.select_related("product").order_by("pk"))
    orders = list(Order.objects.filter(pk__in=order_ids).select_related("customer").prefetch_related(lines, "refunds"))
    refunds = {order.pk: next(iter(order.refunds.all()), None) for order in orders}
    checks = _newest_jobs("refund.check", (refund.key for refund in refunds.values() if refund))
    cards = {}
    for order in orders:
        refund = refunds[order.pk]
        check = checks.get(refund.key) if refund else None
        cards[order.pk] = OrderCard(order, closes.get(order.key), refund, check, now_ms)
    return cards


def _newest_jobs(topic: str, keys: Iterable[str]) -> dict[str, Job]:
    jobs = Job.objects.filter(topic=topic, key__in=list(keys)).defer("body", "error").order_by("pk")
    return {job.key: job for job in jobs}
