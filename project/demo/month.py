"""A month of the shop, lived in a minute: its own functions and handlers, with a clock that is set.

Customers order, pay, forget to, and want their money back; what falls due meanwhile is run by the engine as a worker
runs it. Nothing is written that the shop would not have written, but all of it says the time that the clock says.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from delaytasks import clock, consuming, dialect, engine, schedule, topics, watching, worker
from project.shop.models import Order, Product
from project.shop.play import DELIVERY, open_shop
from project.shop.services import OutOfStock, TooLate, ask_refund, pay_order, place_order

USING = "default"
DAYS = 30
MINUTE_MS, DAY_MS = 60_000, 86_400_000
PAY, REFUND, LAST_MOMENT = 0.62, 0.15, 0.05  # shares: of the orders, of the paid ones, and of payments that are late
BUSY = (1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 8, 10, 9, 8, 8, 9, 11, 14, 16, 15, 11, 6, 3)  # customers, by the hour
WEEKEND = 1.4  # times as many
LETTER = 0.08  # the share of those who paid who are asked how it was in a weekly letter, the others a day later
HERD = 130  # that a letter goes to, at least, if there are so many: all fall due at once
LETTER_AT = 10  # o'clock
REVIEW_MS = 40  # that the service which asks takes for each
CLOSED_DAYS_AGO = 7  # the mail provider was closed for a while when a letter was due, and many were asked again
CLOSED_MS = 3 * 60 * MINUTE_MS
QUIET_MS = (31 * MINUTE_MS, 20 * MINUTE_MS)  # before the end nobody came: nothing falls due while the demo reads
Say = Callable[[str], None]


class SetClock:
    """The time of the shop and of its database's statements, in this process: what it was set to."""

    def __init__(self, now_ms: int) -> None:
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Go on to this moment; never back."""
        self.now_ms = max(now_ms, getattr(self, "now_ms", 0))
        dialect.set_clock(self.now_ms)

    def now(self) -> datetime:
        return clock.from_ms(self.now_ms)


@contextmanager
def set_clock(now_ms: int) -> Iterator[SetClock]:
    """Inside the block it is as late as the clock says, for the engine and for the shop."""
    hand = SetClock(now_ms)

    class Then(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return hand.now()

    try:
        with patch.object(timezone, "datetime", Then):  # of which timezone.now() asks the time
            yield hand
    finally:
        dialect.set_clock(None)
        engine.clock.cache_clear()


class Month:
    """The month up to now. `rng` decides who comes when, who pays, and how late each job was begun."""

    def __init__(self, orders: int, rng: random.Random, say: Say) -> None:
        self._orders, self._rng, self._say = orders, rng, say
        self._letter = max(LETTER, HERD / (orders * PAY * 7 / DAYS))
        self._customers, self._products = open_shop()
        self._agenda: list[tuple[int, int, Callable[..., None], tuple]] = []
        self._count = itertools.count()
        self.did: Counter[str] = Counter()

    def live(self) -> None:
        """Live it. What falls due later than now stays pending."""
        self.end_ms = round(datetime.now(UTC).timestamp() * 1000)
        self.begin_ms = self.end_ms - DAYS * DAY_MS
        self._letter_ms = _next_hour(self.end_ms + MINUTE_MS * 60, LETTER_AT)
        for at_ms in self._arrivals():
            self._at(at_ms, self._customer_comes)
        with set_clock(self.begin_ms) as self.clock:
            day = 0
            while self._step():
                if (self.clock.now_ms - self.begin_ms) // (5 * DAY_MS) > day:
                    day += 1
                    self._say(f"  day {5 * day}: {self._told()}")
        self._say(f"  today: {self._told()}")

    def _told(self) -> str:
        return ", ".join(f"{self.did[what]:,} {what}" for what in ("ordered", "paid", "jobs run"))

    def _arrivals(self) -> list[int]:
        """When the customers come: more of them in the evening and at the weekend, none short before the end."""
        hours = [self.begin_ms + n * 3_600_000 for n in range(DAYS * 24)]
        weights = [
            BUSY[at.hour] * (WEEKEND if at.weekday() >= 5 else 1.0)
            for at in (clock.from_ms(each) for each in hours)
        ]  # fmt: skip
        times = [each + self._rng.randrange(3_600_000) for each in self._rng.choices(hours, weights, k=self._orders)]
        quiet_from, quiet_to = (self.end_ms - ms for ms in QUIET_MS)
        return sorted(quiet_from - MINUTE_MS if quiet_from <= each <= quiet_to else each for each in times)

    # One thing after the other

    def _at(self, at_ms: int, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._agenda, (at_ms, next(self._count), action, args))

    def _step(self) -> bool:
        """Do what is next: what somebody does, or what falls due. False when that lies ahead of us."""
        coming = self._agenda[0][0] if self._agenda else self.end_ms + 1
        due = watching.next_due_ms(USING)
        if min(coming, due or coming) > self.end_ms:
            return False
        if due is not None and due <= coming:
            self.clock.set(due + self._lateness_ms())
            self._run_what_is_due()
        else:
            _, _, action, args = heapq.heappop(self._agenda)
            self.clock.set(coming)
            action(*args)
        return True

    def _lateness_ms(self) -> int:
        """As a worker's is: some milliseconds, and now and then as long as the guard's tick."""
        return self._rng.randint(200, 1100) if self._rng.random() < 0.01 else round(self._rng.lognormvariate(1.8, 0.6))

    def _run_what_is_due(self) -> None:
        for topic in topics.handled():
            if watching.has_ready(USING, topic):
                self.did["jobs run"] += worker.run_topic(topic, using=USING, worker="shop@demo", ring=lambda _: None)
        self._ask_for_reviews()

    # Customers

    def _customer_comes(self) -> None:
        products = self._rng.sample(self._products, self._rng.randint(1, 2))
        items = [(product, self._rng.randint(1, 3)) for product in products]
        try:
            order = place_order(self._rng.choice(self._customers), items)
        except OutOfStock:
            Product.objects.update(stock=F("stock") + DELIVERY)
            order = place_order(self._rng.choice(self._customers), items)
        self.did["ordered"] += 1
        if self._rng.random() < PAY:
            late = self._rng.random() < LAST_MOMENT
            minutes = self._rng.uniform(29.9, 32) if late else min(29.0, self._rng.expovariate(1 / 6))
            self._at(self.clock.now_ms + round(minutes * MINUTE_MS), self._pays, order)

    def _pays(self, order: Order) -> None:
        try:
            with transaction.atomic():
                pay_order(order.pk)
                schedule("review.ask", key=f"review:{order.pk}", due_at=self._asked_at(), body={"order": order.pk})
        except TooLate:
            self.did["too late"] += 1
            return
        self.did["paid"] += 1
        if self._rng.random() < REFUND:
            self._at(self.clock.now_ms + self._rng.randint(1, 72) * 60 * MINUTE_MS, self._wants_money_back, order)

    def _wants_money_back(self, order: Order) -> None:
        ask_refund(order.pk)
        self.did["refunds"] += 1

    # The service that asks for reviews: in another language, over HTTP, in real life

    def _asked_at(self) -> datetime:
        if self._rng.random() > self._letter:
            return clock.from_ms(self.clock.now_ms + DAY_MS + self._rng.randrange(60 * MINUTE_MS))
        week_ms = 7 * DAY_MS
        return clock.from_ms(self._letter_ms - (self._letter_ms - self.clock.now_ms) // week_ms * week_ms)

    def _ask_for_reviews(self) -> None:
        while held := consuming.reserve("review.ask", 50, using=USING, worker="reviews@demo"):
            for each in held:
                self.clock.set(self.clock.now_ms + self._rng.randint(REVIEW_MS // 2, 2 * REVIEW_MS))
                self._ask_for_review(each)
                self.did["jobs run"] += 1

    def _ask_for_review(self, held: Any) -> None:
        closed_ms = self._letter_ms - CLOSED_DAYS_AGO * DAY_MS
        if 0 <= self.clock.now_ms - closed_ms < CLOSED_MS and held.failures < 4 and self._rng.random() < 0.4:
            consuming.release(held.id, held.attempt, using=USING, error="450: the mail provider is closed")
        elif self._rng.random() < 0.004:
            consuming.bury(held.id, held.attempt, using=USING, reason="550: no such address")
        else:
            consuming.finish(held.id, held.attempt, using=USING)


def catch_up() -> None:
    """Run what has fallen due since, as the shop's worker would have."""
    for topic in topics.handled():
        worker.run_topic(topic, using=USING, worker="shop@demo", ring=lambda _: None)


def _next_hour(ms: int, hour: int) -> int:
    """The next time that it is so many o'clock (UTC)."""
    at = clock.from_ms(ms).replace(minute=0, second=0, microsecond=0)
    at = at.replace(hour=hour) if at.hour < hour else at.replace(hour=hour) + timedelta(days=1)
    return clock.to_ms(at)
