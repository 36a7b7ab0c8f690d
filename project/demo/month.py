"""Simulate a month of the shop in a minute, with the shop's own functions and handlers on a virtual clock.

Customers place orders, pay or do not pay, and request refunds. Due jobs run as in a worker. The tables get the same
rows as in real operation, with the times of the virtual clock.
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

from delaytasks import clock, databases, handlers, schedule
from delaytasks.db import dialects, lookups
from delaytasks.testing import engine
from delaytasks.worker import leases, runner
from project.demo.simulation import DELIVERY, ensure_shop
from project.shop.models import Order, Product
from project.shop.services import OrderNotOpen, OutOfStock, pay_order, place_order, request_refund

USING = "default"
DAYS = 30
MINUTE_MS, DAY_MS = 60_000, 86_400_000
PAID_SHARE = 0.62  # of the orders
REFUND_SHARE = 0.15  # of the paid orders
LATE_SHARE = 0.05  # of the payments
HOURLY_WEIGHTS = (1, 1, 1, 1, 1, 2, 4, 6, 8, 9, 9, 8, 10, 9, 8, 8, 9, 11, 14, 16, 15, 11, 6, 3)  # customers by hour
WEEKEND_FACTOR = 1.4
WEEKLY_SHARE = 0.08  # of the paid orders: their reviews are requested in a weekly mailing, all others a day later
MIN_MAILING = 130  # minimum number of jobs in a mailing, if there are enough orders; all fall due at once
MAILING_HOUR = 10  # UTC
REVIEW_MS = 40  # a review job takes between half and twice as long
OUTAGE_DAYS_AGO = 7  # the mail provider is down during a mailing: many jobs are released and retried
OUTAGE_MS = 3 * 60 * MINUTE_MS
# No orders from 31 to 20 minutes before the end, so that no close falls due while the pipeline reads the tables.
QUIET_MS = (31 * MINUTE_MS, 20 * MINUTE_MS)
Echo = Callable[[str], None]


class VirtualClock:
    """The time that the shop and the database statements of this process use, in ms since 1970."""

    def __init__(self, now_ms: int) -> None:
        self.set(now_ms)

    def set(self, now_ms: int) -> None:
        """Advance the clock to this time. An earlier time than the current one has no effect."""
        self.now_ms = max(now_ms, getattr(self, "now_ms", 0))
        dialects.set_clock(self.now_ms)

    def now(self) -> datetime:
        return clock.from_ms(self.now_ms)


@contextmanager
def virtual_time(now_ms: int) -> Iterator[VirtualClock]:
    """Make the engine and the shop use a virtual clock inside the block."""
    virtual_clock = VirtualClock(now_ms)

    class VirtualDatetime(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Any:
            return virtual_clock.now()

    try:
        with patch.object(timezone, "datetime", VirtualDatetime):  # used by timezone.now()
            yield virtual_clock
    finally:
        dialects.set_clock(None)
        databases.clock.cache_clear()


class Month:
    """A simulation of the last month. `rng` decides who orders when, who pays and how late each job begins."""

    def __init__(self, orders: int, rng: random.Random, echo: Echo) -> None:
        self._orders, self._rng, self._echo = orders, rng, echo
        self._weekly_share = max(WEEKLY_SHARE, MIN_MAILING / (orders * PAID_SHARE * 7 / DAYS))
        self._customers, self._products = ensure_shop()
        self._agenda: list[tuple[int, int, Callable[..., None], tuple]] = []
        self._sequence = itertools.count()
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Simulate the month up to the current time. Jobs that fall due later stay pending."""
        self.end_ms = round(datetime.now(UTC).timestamp() * 1000)
        self.begin_ms = self.end_ms - DAYS * DAY_MS
        self._mailing_ms = _next_hour(self.end_ms + MINUTE_MS * 60, MAILING_HOUR)
        for at_ms in self._arrivals():
            self._at(at_ms, self._place_order)
        with virtual_time(self.begin_ms) as self.clock:
            day = 0
            while self._step():
                if (self.clock.now_ms - self.begin_ms) // (5 * DAY_MS) > day:
                    day += 1
                    self._echo(f"  day {5 * day}: {self._progress()}")
        self._echo(f"  today: {self._progress()}")

    def _progress(self) -> str:
        return ", ".join(f"{self.counts[name]:,} {name}" for name in ("ordered", "paid", "jobs run"))

    def _arrivals(self) -> list[int]:
        """Return the times of the orders in ms since 1970, sorted.

        There are more orders in the evening and at weekends, and none in the time of QUIET_MS.
        """
        hours = [self.begin_ms + n * 3_600_000 for n in range(DAYS * 24)]
        weights = [
            HOURLY_WEIGHTS[hour.hour] * (WEEKEND_FACTOR if hour.weekday() >= 5 else 1.0)
            for hour in (clock.from_ms(ms) for ms in hours)
        ]  # fmt: skip
        times = [ms + self._rng.randrange(3_600_000) for ms in self._rng.choices(hours, weights, k=self._orders)]
        quiet_from, quiet_to = (self.end_ms - ms for ms in QUIET_MS)
        return sorted(quiet_from - MINUTE_MS if quiet_from <= ms <= quiet_to else ms for ms in times)

    # Event loop

    def _at(self, at_ms: int, action: Callable[..., None], *args: Any) -> None:
        heapq.heappush(self._agenda, (at_ms, next(self._sequence), action, args))

    def _step(self) -> bool:
        """Run the next action, or the jobs that fall due before it. Return False if both are after the end."""
        next_action_ms = self._agenda[0][0] if self._agenda else self.end_ms + 1
        due = lookups.next_due_ms(USING)
        if min(next_action_ms, due or next_action_ms) > self.end_ms:
            return False
        if due is not None and due <= next_action_ms:
            self.clock.set(due + self._lateness_ms())
            self._run_due_jobs()
        else:
            _, _, action, args = heapq.heappop(self._agenda)
            self.clock.set(next_action_ms)
            action(*args)
        return True

    def _lateness_ms(self) -> int:
        """Return how late a worker begins a job, in ms: usually a few milliseconds, for 1 % of the jobs 200 to 1100."""
        return self._rng.randint(200, 1100) if self._rng.random() < 0.01 else round(self._rng.lognormvariate(1.8, 0.6))

    def _run_due_jobs(self) -> None:
        """Run the due jobs one by one, as the test kit does: a worker would take a run slot for each of them."""
        while (due := engine.next_due(USING, leases=False)) and due.at_ms <= self.clock.now_ms:
            if attempt := engine.claim(USING, due):
                engine.run(USING, attempt)
                self.counts["jobs run"] += 1
        self._run_review_jobs()

    # Customers

    def _place_order(self) -> None:
        products = self._rng.sample(self._products, self._rng.randint(1, 2))
        items = [(product, self._rng.randint(1, 3)) for product in products]
        try:
            order = place_order(self._rng.choice(self._customers), items)
        except OutOfStock:
            Product.objects.update(stock=F("stock") + DELIVERY)
            order = place_order(self._rng.choice(self._customers), items)
        self.counts["ordered"] += 1
        if self._rng.random() < PAID_SHARE:
            late = self._rng.random() < LATE_SHARE
            minutes = self._rng.uniform(29.9, 32) if late else min(29.0, self._rng.expovariate(1 / 6))
            self._at(self.clock.now_ms + round(minutes * MINUTE_MS), self._pay, order)

    def _pay(self, order: Order) -> None:
        try:
            with transaction.atomic():
                pay_order(order.pk)
                schedule("review.ask", key=f"review:{order.pk}", due_at=self._review_time(), body={"order": order.pk})
        except OrderNotOpen:
            self.counts["too late"] += 1
            return
        self.counts["paid"] += 1
        if self._rng.random() < REFUND_SHARE:
            self._at(self.clock.now_ms + self._rng.randint(1, 72) * 60 * MINUTE_MS, self._request_refund, order)

    def _request_refund(self, order: Order) -> None:
        request_refund(order.pk)
        self.counts["refunds"] += 1

    # The review service; in production a consumer over HTTP

    def _review_time(self) -> datetime:
        if self._rng.random() > self._weekly_share:
            return clock.from_ms(self.clock.now_ms + DAY_MS + self._rng.randrange(60 * MINUTE_MS))
        week_ms = 7 * DAY_MS
        return clock.from_ms(self._mailing_ms - (self._mailing_ms - self.clock.now_ms) // week_ms * week_ms)

    def _run_review_jobs(self) -> None:
        while jobs := leases.reserve("review.ask", 50, using=USING, worker="reviews@demo"):
            for job in jobs:
                self.clock.set(self.clock.now_ms + self._rng.randint(REVIEW_MS // 2, 2 * REVIEW_MS))
                self._run_review_job(job)
                self.counts["jobs run"] += 1

    def _run_review_job(self, job: Any) -> None:
        outage_ms = self._mailing_ms - OUTAGE_DAYS_AGO * DAY_MS
        if 0 <= self.clock.now_ms - outage_ms < OUTAGE_MS and job.failures < 4 and self._rng.random() < 0.4:
            leases.release(job.id, job.attempt, using=USING, error="450: mail provider unavailable")
        elif self._rng.random() < 0.004:
            leases.bury(job.id, job.attempt, using=USING, reason="550: no such address")
        else:
            leases.finish(job.id, job.attempt, using=USING)


def catch_up() -> None:
    """Run the jobs that fell due since the end of the simulation, as a worker does."""
    for topic in handlers.handled():
        runner.run_topic(topic, using=USING, worker="shop@demo", dispatch_topic=lambda _: None)


def _next_hour(ms: int, hour: int) -> int:
    """Return the next full hour after `ms` that is this hour of the day (UTC), in ms since 1970."""
    time = clock.from_ms(ms).replace(minute=0, second=0, microsecond=0)
    time = time.replace(hour=hour) if time.hour < hour else time.replace(hour=hour) + timedelta(days=1)
    return clock.to_ms(time)
