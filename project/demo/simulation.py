"""Simulate customers who place orders and pay or do not pay. The shop's real processes do everything else."""

import heapq
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from threading import Event

from django.conf import settings
from django.db import OperationalError, connection
from django.db.models import F, Max
from django.utils import timezone

from delaytasks import clock
from delaytasks.models import Job, JobEvent
from delaytasks.states import Outcome

from ..shop.models import Customer, Order, Product, Refund
from ..shop.services import OrderNotOpen, OutOfStock, deliver_order, pay_order, place_order, request_refund
from .examples import ROUND_SECONDS, Examples
from .narrator import EventReader, Narrator, format_duration, format_time

Echo = Callable[[str], None]
POLL_SECONDS = 0.2
PAUSE_SECONDS = (1.0, 3.0)  # between two customers
PAID_SHARE = 0.5  # of the orders
LAST_MOMENT_SHARE = 0.08  # of the orders: paid exactly when the close is due
REFUND_SHARE = 0.4  # of the paid orders
DELIVERY = 50  # units added to each product when one is out of stock

PRODUCTS = {"tea pot": "24.90", "two cups": "12.00", "a pound of tea": "18.50", "sugar bowl": "9.80", "tray": "31.00"}
CUSTOMERS = ("Ada", "Ben", "Chloé", "Dario", "Emine", "Farid", "Grete", "Hiro")


def ensure_shop() -> tuple[list[Customer], list[Product]]:
    """Return the shop's customers and products; create them at the first run."""
    customers = [
        Customer.objects.get_or_create(email=f"customer{number}@shop.example", defaults={"name": name})[0]
        for number, name in enumerate(CUSTOMERS, 1)
    ]
    products = [
        Product.objects.get_or_create(name=name, defaults={"price": Decimal(price), "stock": DELIVERY})[0]
        for name, price in PRODUCTS.items()
    ]
    return customers, products


class Simulation:
    """One run of the simulation, until `stop` is set. `rng` decides who orders what and who pays."""

    def __init__(self, echo: Echo, stop: Event, rng: random.Random) -> None:
        self._echo, self._stop, self._rng = echo, stop, rng
        self._customers, self._products = ensure_shop()
        self._events = EventReader()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple]] = []
        self._sequence = itertools.count()
        live = Job.objects.filter(ended_at__isnull=True)
        self._existing = Order.objects.count(), Refund.objects.count(), live.count()
        self._last_existing = Order.objects.aggregate(last=Max("pk"))["last"] or 0
        self._too_late = 0
        self._late_ms: list[int] = []

    def run(self, on_poll: Callable[[], None] = lambda: None) -> int:
        """Run until stopped, then print the totals. Call `on_poll` in each iteration. Always returns 0."""
        self._narrator = Narrator(since_ms=int(time.time() * 1000))
        pay_within = format_duration(timedelta(seconds=settings.SHOP_PAY_WITHIN_SECONDS))
        self._echo(f"Orders must be paid within {pay_within}. Times are {timezone.get_current_timezone_name()}.")
        self._report_existing()
        self._examples = Examples(self._customers, self._products, self._echo_now)
        self._at(0, self._place_order)
        self._at(0, self._play_examples)
        while not self._stop.is_set():
            try:
                self._report_events()
                self._run_due_actions()
            except OperationalError as error:
                self._echo(f"The database does not respond ({error}); trying again.")
                connection.close()
                self._stop.wait(1)
            on_poll()
            self._stop.wait(POLL_SECONDS)
        self._report_events()
        self._echo(self.totals())
        return 0

    def totals(self) -> str:
        """Return one line with the totals of the orders placed in this run, also by visitors of the shop."""
        orders = Order.objects.filter(pk__gt=self._last_existing)
        counts = Counter(orders.values_list("state", flat=True))
        parts = [
            f"{counts.total()} placed",
            f"{counts[Order.State.PAID]} paid",
            f"{self._too_late} paid too late",
            f"{counts[Order.State.CLOSED]} closed unpaid",
            f"{counts[Order.State.OPEN]} still open",
            f"{Refund.objects.filter(order__in=orders).count()} refunds requested",
        ]
        if self._late_ms:
            median, worst = statistics.median(self._late_ms), max(self._late_ms)
            parts.append(f"closes {median:.0f} ms late at the median, {worst} ms at most")
        return "Orders in this run: " + ", ".join(parts) + "."

    def _at(self, delay_seconds: float, action: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + delay_seconds, next(self._sequence), action, args))

    def _run_due_actions(self) -> None:
        now = time.monotonic()  # actions added meanwhile wait for the next iteration
        while self._agenda and self._agenda[0][0] <= now and not self._stop.is_set():
            _, _, action, args = heapq.heappop(self._agenda)
            action(*args)

    def _place_order(self) -> None:
        self._at(self._rng.uniform(*PAUSE_SECONDS), self._place_order)
        products = self._rng.sample(self._products, self._rng.randint(1, 2))
        items = [(product, self._rng.randint(1, 3)) for product in products]
        try:
            order = place_order(self._rng.choice(self._customers), items)
        except OutOfStock:
            self._restock()
            return
        self._echo_now(f"{order}: will be closed at {format_time(order.pay_by)} unless it is paid")
        self._maybe_pay(order)

    def _maybe_pay(self, order: Order) -> None:
        pay_within = settings.SHOP_PAY_WITHIN_SECONDS
        chance = self._rng.random()
        if chance < LAST_MOMENT_SHARE:
            self._at((order.pay_by - timezone.now()).total_seconds(), self._pay, order.pk)
        elif chance < PAID_SHARE:
            self._at(self._rng.uniform(0.1, 0.9) * pay_within, self._pay, order.pk)

    def _pay(self, order_id: int) -> None:
        if Order.objects.filter(pk=order_id, state=Order.State.PAID).exists():
            return  # with the stored card
        try:
            pay_order(order_id)
        except OrderNotOpen as error:
            self._too_late += 1
            self._echo_now(f"order {order_id}: payment too late. {error}")
            return
        if self._rng.random() < REFUND_SHARE:
            self._at(self._rng.uniform(1, 5), self._request_refund, order_id)
        else:
            self._at(1, deliver_order, order_id)

    def _play_examples(self) -> None:
        self._at(ROUND_SECONDS, self._play_examples)
        self._examples.play()

    def _request_refund(self, order_id: int) -> None:
        refund = request_refund(order_id)
        first_check = timezone.now() + timedelta(seconds=settings.SHOP_REFUND_LADDER_SECONDS[0])
        self._echo_now(
            f"{refund} of order {order_id} requested; first check with the gateway at {format_time(first_check)}"
        )

    def _restock(self) -> None:
        ids = [product.pk for product in self._products]
        Product.objects.filter(pk__in=ids).update(stock=F("stock") + DELIVERY)
        self._echo_now(f"out of stock: {DELIVERY} units of each product delivered")

    def _report_existing(self) -> None:
        orders, refunds, jobs = self._existing
        if orders:
            self._echo(f"Existing data: {orders} orders, {refunds} refunds, {jobs} live jobs.")

    def _report_events(self) -> None:
        while events := self._events.read():
            for event in events:
                self._measure(event)
                self._echo(f"{format_time(clock.from_ms(event.done_ms))}  {self._narrator.describe(event)}")

    def _measure(self, event: JobEvent) -> None:
        """Note how late an order was closed, if that fell due during this run."""
        is_close = event.job.topic == "order.close" and event.outcome == Outcome.FINISHED
        if is_close and event.late_ms is not None and event.due_ms >= self._narrator.since_ms:
            self._late_ms.append(event.late_ms)

    def _echo_now(self, text: str) -> None:
        self._echo(f"{format_time(timezone.now())}  {text}")
