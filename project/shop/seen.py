"""What the storefront shows: orders with what became of their timeout and their refund, in a fixed number of queries.

An order and its job change in one commit, but are read in two statements. So the jobs are read
first: an order may then be newer than its job is shown, and never the other way round, which would
tell of a timeout that is gone while its order still seems open.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import Prefetch
from django.utils.translation import get_language, gettext_lazy, ngettext, pgettext_lazy
from django.utils.translation import gettext as _

from delaytasks import engine, words
from delaytasks.clock import to_ms
from delaytasks.models import Job
from delaytasks.states import State

from .models import Order, OrderLine, Product, Refund

SHOWN = 12  # orders in a list
SHELF = 12  # products

LABELS: dict[str, Any] = {
    Order.State.OPEN: pgettext_lazy("an order is", "open"),
    Order.State.PAID: pgettext_lazy("an order is", "paid"),
    Order.State.CLOSED: pgettext_lazy("an order is", "closed"),
    Refund.State.PENDING: gettext_lazy("refund asked for"),
    Refund.State.SETTLED: gettext_lazy("refunded"),
    Refund.State.FAILED: gettext_lazy("refund failed"),
    Refund.State.NEEDS_A_PERSON: gettext_lazy("refund: a person looks"),
}
OPEN_WITHOUT_TIMEOUT = {  # an open order whose timeout is over is nothing that the shop itself does
    State.CANCELLED: gettext_lazy("Its timeout was called off by staff: it stays open until it is paid."),
    State.DEAD: gettext_lazy("Its timeout failed for good: staff have to look."),
}
PAID_AND = {
    State.CANCELLED: gettext_lazy("Its timeout was called off."),
    State.RESERVED: gettext_lazy("Its timeout was already running; it finds the order paid and leaves it alone."),
    State.FINISHED: gettext_lazy("Its timeout had already begun to run, found the order paid and left it alone."),
    State.DEAD: gettext_lazy("Its timeout had failed for good before."),
}
REFUND_IS = {
    Refund.State.SETTLED: gettext_lazy("The money is on its way back."),
    Refund.State.FAILED: gettext_lazy("The gateway refused."),
    Refund.State.NEEDS_A_PERSON: gettext_lazy("The gateway did not decide in time: a person looks into it."),
}


@dataclass(frozen=True)
class SeenOrder:
    """An order as its card shows it. close, check: the newest job of its timeout and of its refund."""

    order: Order
    close: Job | None
    refund: Refund | None
    check: Job | None
    now_ms: int

    @property
    def state(self) -> str:
        """The order's state, or its refund's once there is one."""
        return self.refund.state if self.refund else self.order.state

    @property
    def label(self) -> str:
        return str(LABELS[self.state])

    @property
    def job(self) -> Job | None:
        """The job that this order is about now."""
        return self.check or self.close

    @property
    def awaited(self) -> Job | None:
        """The job that the customer waits for: the close of an open order, the next question about a refund."""
        if self.order.state == Order.State.OPEN:
            job = self.close
        else:
            job = self.check if self.state == Refund.State.PENDING else None
        return job if job and job.ended_at is None else None

    @property
    def due_ms(self) -> int | None:
        return self.awaited.due_ms if self.awaited else None

    @property
    def left_ms(self) -> int:
        return max(0, (self.due_ms or 0) - self.now_ms)

    @property
    def whole_ms(self) -> int:
        """What the countdown began with: until the job's due time, which staff may have moved since."""
        return max(1, (self.due_ms or 0) - to_ms(self.order.created_at))

    @property
    def can_pay(self) -> bool:
        """Also while its timeout runs: whoever has the row lock first wins."""
        return self.order.state == Order.State.OPEN

    @property
    def can_ask_back(self) -> bool:
        return self.order.state == Order.State.PAID and self.refund is None

    @property
    def sentence(self) -> str:
        """What became of its timeout; "" while it counts down."""
        if self.order.state == Order.State.CLOSED:
            return self._closed()
        if self.can_pay and self.awaited:
            return ""
        told = OPEN_WITHOUT_TIMEOUT if self.can_pay else PAID_AND
        return str(told.get(State(self.close.state), "")) if self.close else ""

    def _closed(self) -> str:
        job = self.close
        if job is None or job.reserved_at is None or job.attempt > 1:  # its last attempt alone would be measured
            return _("Nobody paid: closed. What it held is back on the shelf.")
        late = words.span(to_ms(job.reserved_at) - job.due_ms)
        return _("Nobody paid: closed %(span)s after its time. What it held is back on the shelf.") % {"span": late}

    @property
    def asked(self) -> str:
        """How often the gateway has been asked about the refund; "" without one."""
        if self.check is None:
            return ""
        times = self.check.attempt - (self.check.state == State.RESERVED)
        if not times:
            return _("The gateway is asked about the refund.")
        return ngettext("The gateway was asked once.", "The gateway was asked %(n)d times.", times) % {"n": times}

    @property
    def refund_sentence(self) -> str:
        return str(REFUND_IS.get(Refund.State(self.refund.state), "")) if self.refund else ""

    @property
    def said(self) -> str:
        """What a screen reader says when its state has changed."""
        parts = [self.refund_sentence, self.asked] if self.refund else [self.sentence]
        first = _("%(order)s: %(state)s.") % {"order": name(self.order), "state": self.label}
        return " ".join([first, *filter(None, parts)])

    @property
    def version(self) -> str:
        """Changes whenever the card would look different, the countdown aside."""
        jobs = [(job.pk, job.state, job.attempt, job.due_ms) if job else None for job in (self.close, self.check)]
        return digest(self.order.pk, self.order.state, self.state, *jobs)


def name(order: Order) -> str:
    return _("Order %(number)d") % {"number": order.pk}


def digest(*facts: object) -> str:
    return hashlib.blake2s(repr(facts).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Sight:
    """The whole page at one moment, by the database's clock."""

    mine: list[SeenOrder]
    others: list[SeenOrder]
    products: list[Product]
    now_ms: int
    staff: bool

    @property
    def version(self) -> str:
        """The same as long as nobody would see a difference."""
        orders = [seen.version for seen in [*self.mine, *self.others]]
        stock = [(product.pk, product.stock) for product in self.products]
        return digest(get_language(), self.staff, len(self.mine), orders, stock)


def look(mine: Sequence[int], *, staff: bool) -> Sight:
    """What a visitor with these orders sees, newest first: at most SHOWN of his and SHOWN of everybody else's.

    staff   may see jobs in the admin: the cards link to them
    """
    ours = list(mine[:SHOWN])
    newest = Order.objects.exclude(pk__in=ours).order_by("-pk")
    theirs = list(newest.values_list("pk", flat=True)[:SHOWN])
    now_ms = engine.now_ms(engine.alias())
    seen = _seen([*ours, *theirs], now_ms)
    products = list(Product.objects.order_by("pk")[:SHELF])
    return Sight([seen[pk] for pk in ours if pk in seen], [seen[pk] for pk in theirs], products, now_ms, staff)


def _seen(ids: list[int], now_ms: int) -> dict[int, SeenOrder]:
    closes = _newest_jobs("order.close", (Order(pk=pk).key for pk in ids))
    lines = Prefetch("lines", OrderLine.objects.select_related("product").order_by("pk"))
    orders = list(Order.objects.filter(pk__in=ids).select_related("customer").prefetch_related(lines, "refunds"))
    refunds = {order.pk: next(iter(order.refunds.all()), None) for order in orders}
    checks = _newest_jobs("refund.check", (refund.key for refund in refunds.values() if refund))
    seen = {}
    for order in orders:
        refund = refunds[order.pk]
        check = checks.get(refund.key) if refund else None
        seen[order.pk] = SeenOrder(order, closes.get(order.key), refund, check, now_ms)
    return seen


def _newest_jobs(topic: str, keys: Iterable[str]) -> dict[str, Job]:
    found = Job.objects.filter(topic=topic, key__in=list(keys)).defer("body", "error").order_by("pk")
    return {job.key: job for job in found}
