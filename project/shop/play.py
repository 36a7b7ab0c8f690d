"""The show: customers come, order, and pay or forget to. Everything else is done by the shop's real parts."""

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
from django.db.models import F
from django.utils import timezone

from delaytasks import clock
from delaytasks.models import Job, JobEvent
from delaytasks.states import Outcome

from . import story
from .models import Customer, Order, Product, Refund
from .services import OutOfStock, TooLate, ask_refund, pay_order, place_order

Say = Callable[[str], None]
POLL_SECONDS = 0.2
PAUSE_SECONDS = (1.0, 3.0)  # between two customers
PAY = 0.5  # the share of the orders that are paid
LAST_MOMENT = 0.08  # the share that is paid at the very moment the order is due to be closed
REFUND = 0.4  # the share of the paid orders whose customer wants the money back
DELIVERY = 50

PRODUCTS = {"tea pot": "24.90", "two cups": "12.00", "a pound of tea": "18.50", "sugar bowl": "9.80", "tray": "31.00"}
CUSTOMERS = ("Ada", "Ben", "Chloé", "Dario", "Emine", "Farid", "Grete", "Hiro")


def open_shop() -> tuple[list[Customer], list[Product]]:
    """The shop's customers and products; made at the first run, found again later."""
    customers = [
        Customer.objects.get_or_create(email=f"customer{number}@shop.example", defaults={"name": name})[0]
        for number, name in enumerate(CUSTOMERS, 1)
    ]
    products = [
        Product.objects.get_or_create(name=name, defaults={"price": Decimal(price), "stock": DELIVERY})[0]
        for name, price in PRODUCTS.items()
    ]
    return customers, products


class Play:
    """One run of the show, until `stop` is set. `rng` decides who orders what and who pays."""

    def __init__(self, say: Say, stop: Event, rng: random.Random) -> None:
        self._say, self._stop, self._rng = say, stop, rng
        self._customers, self._products = open_shop()
        self._events = story.EventReader()
        self._agenda: list[tuple[float, int, Callable[..., None], tuple]] = []
        self._count = itertools.count()
        live = Job.objects.filter(ended_at__isnull=True)
        self._was_there = Order.objects.count(), Refund.objects.count(), live.count()
        self._did: Counter[str] = Counter()
        self._late_ms: list[int] = []

    def run(self, watch: Callable[[], None] = lambda: None) -> int:
        """Play until stopped, then a line of totals; `watch` is called at each look around. Always 0."""
        self._teller = story.Teller(since_ms=int(time.time() * 1000))
        pay_within = story.length(timedelta(seconds=settings.SHOP_PAY_WITHIN_SECONDS))
        self._say(f"An order has {pay_within} to be paid here. Times are {timezone.get_current_timezone_name()}.")
        self._tell_what_was_there()
        self._at(0, self._customer_comes)
        while not self._stop.is_set():
            try:
                self._tell_news()
                self._do_what_is_next()
            except OperationalError as error:
                self._say(f"the database did not answer ({error}); the shop goes on when it does")
                connection.close()
                self._stop.wait(1)
            watch()
            self._stop.wait(POLL_SECONDS)
        self._tell_news()
        self._say(self.totals())
        return 0

    def totals(self) -> str:
        """One line about this run."""
        did = self._did
        parts = [
            f"{did['placed']} placed",
            f"{did['paid']} paid",
            f"{did['too late']} paid too late",
            f"{did['closed']} closed unpaid",
            f"{Order.objects.filter(state=Order.State.OPEN).count()} still open",
            f"refunds asked: {did['refunds']}",
        ]
        if self._late_ms:
            middle, worst = statistics.median(self._late_ms), max(self._late_ms)
            parts.append(f"closes {middle:.0f} ms late at the median, {worst} ms at most")
        return "Orders in this run: " + ", ".join(parts) + "."

    def _at(self, delay_seconds: float, action: Callable[..., None], *args: object) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + delay_seconds, next(self._count), action, args))

    def _do_what_is_next(self) -> None:
        now = time.monotonic()  # what is put on the agenda meanwhile waits for the next look
        while self._agenda and self._agenda[0][0] <= now and not self._stop.is_set():
            _, _, action, args = heapq.heappop(self._agenda)
            action(*args)

    def _customer_comes(self) -> None:
        self._at(self._rng.uniform(*PAUSE_SECONDS), self._customer_comes)
        products = self._rng.sample(self._products, self._rng.randint(1, 2))
        items = [(product, self._rng.randint(1, 3)) for product in products]
        try:
            order = place_order(self._rng.choice(self._customers), items)
        except OutOfStock:
            self._take_delivery()
            return
        self._did["placed"] += 1
        self._tell(f"{order}: will be closed at {story.at(order.pay_by)} unless it is paid")
        self._maybe_pay(order)

    def _maybe_pay(self, order: Order) -> None:
        pay_within = settings.SHOP_PAY_WITHIN_SECONDS
        chance = self._rng.random()
        if chance < LAST_MOMENT:
            self._at((order.pay_by - timezone.now()).total_seconds(), self._pay, order.pk)
        elif chance < PAY:
            self._at(self._rng.uniform(0.1, 0.9) * pay_within, self._pay, order.pk)

    def _pay(self, order_id: int) -> None:
        try:
            pay_order(order_id)
        except TooLate as refusal:
            self._did["too late"] += 1
            self._tell(f"order {order_id}: a payment came too late. {refusal}")
            return
        self._did["paid"] += 1
        if self._rng.random() < REFUND:
            self._at(self._rng.uniform(1, 5), self._want_money_back, order_id)

    def _want_money_back(self, order_id: int) -> None:
        refund = ask_refund(order_id)
        self._did["refunds"] += 1
        first = timezone.now() + timedelta(seconds=settings.SHOP_REFUND_LADDER_SECONDS[0])
        self._tell(f"{refund} of order {order_id}: the gateway will be asked at {story.at(first)}, until it is settled")

    def _take_delivery(self) -> None:
        ours = [product.pk for product in self._products]
        Product.objects.filter(pk__in=ours).update(stock=F("stock") + DELIVERY)
        self._tell(f"the shelf was empty: {DELIVERY} more of everything were delivered")

    def _tell_what_was_there(self) -> None:
        orders, refunds, waiting = self._was_there
        if orders:
            self._say(f"Found again: {orders} orders, {refunds} refunds, {waiting} jobs still to run.")

    def _tell_news(self) -> None:
        while events := self._events.read():
            for event in events:
                self._note(event)
                self._say(f"{story.at(clock.from_ms(event.done_ms))}  {self._teller.tell(event)}")

    def _note(self, event: JobEvent) -> None:
        if event.job.topic != "order.close" or event.outcome != Outcome.FINISHED:
            return
        closed = Order.objects.filter(pk=story.row_of(event, "order"), state=Order.State.CLOSED)
        self._did["closed"] += closed.count()
        if event.late_ms is not None and event.due_ms >= self._teller.since_ms:  # before, the shop was shut
            self._late_ms.append(event.late_ms)

    def _tell(self, sentence: str) -> None:
        self._say(f"{story.at(timezone.now())}  {sentence}")
