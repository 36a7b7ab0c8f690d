"""Replay an order history at SPEED times its original pace, then check the result."""

import heapq
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Event

from ..shop.models import Customer, Order, Product
from ..shop.services import OrderNotOpen, pay_order, place_order
from . import narrator
from .order_csv import History, PastOrder
from .summary import Summary, count_states, replay_orders

Echo = Callable[[str], None]
PAY_WITHIN = timedelta(minutes=30)  # in the shop's time, which runs at SPEED
VERBOSE_RATE = 5.0  # maximum number of orders per second at which each event is printed
PROGRESS_SECONDS = 2.0
WAIT_SECONDS = 60.0  # without progress, after which the replay stops waiting for open orders
LONG_GAP_SECONDS = 10.0
MAX_LISTED = 20  # bad rows in the terminal; the report file has all of them

# (time in the shop's time, 0 = purchase or 1 = payment, position, order)
Entry = tuple[datetime, int, int, PastOrder]


def timeline(orders: list[PastOrder]) -> Iterator[Entry]:
    """Yield purchases and payments in chronological order. `orders` must be sorted by purchase time."""
    purchases = ((order.purchased_at, 0, n, order) for n, order in enumerate(orders))
    payments = ((order.approved_at, 1, n, order) for n, order in enumerate(orders) if order.approved_at)
    return heapq.merge(purchases, sorted(payments, key=lambda entry: entry[:3]), key=lambda entry: entry[:3])


class Replay:
    """One replay. Its random name is the prefix of its orders' external ids, so a history can be replayed again."""

    def __init__(self, history: History, speed: float, echo: Echo, stop: Event, report_dir: Path) -> None:
        self._history, self._speed, self._echo, self._stop = history, speed, echo, stop
        self._report_dir = report_dir
        self.name = f"replay-{secrets.token_hex(4)}"
        self._orders: dict[str, Order] = {}  # by id in the file
        self._too_late: Counter[str] = Counter()
        self._behind_seconds = 0.0
        self._reported_at = 0.0
        self._events = narrator.EventReader()
        self._first = history.orders[0].purchased_at
        self._last = max(max(o.purchased_at + PAY_WITHIN, o.approved_at or self._first) for o in history.orders)
        self._pay_within = PAY_WITHIN / speed
        self._verbose = len(history.orders) / max(self._seconds_until(self._last), 0.001) <= VERBOSE_RATE

    def run(self, on_poll: Callable[[], None] = lambda: None) -> int:
        """Replay until done or stopped, then print the summary. Return 0, or 1 if a check failed.

        on_poll   called repeatedly, at least every few seconds
        """
        self._narrator = narrator.Narrator(since_ms=int(time.time() * 1000), speed=self._speed)
        self._announce()
        self._list_bad_rows()
        count = len(self._history.orders)
        self._customer = Customer.objects.create(name="Replay", email=f"{self.name}@shop.example")
        self._product = Product.objects.create(name=self.name, price=Decimal(10), stock=count)
        self._began = time.monotonic()
        for moment, is_payment, _, past in timeline(self._history.orders):
            if not self._wait_until(moment, on_poll):
                break
            (self._pay if is_payment else self._place)(past)
        self._wait_for_closes(on_poll)
        return self._summarize(count)

    # The shop's clock

    def _seconds_until(self, moment: datetime) -> float:
        """Return the real seconds from the start of the replay to a time in the shop."""
        return (moment - self._first).total_seconds() / self._speed

    def _shop_time(self) -> str:
        elapsed_seconds = min(
            (time.monotonic() - self._began) * self._speed, (self._last - self._first).total_seconds()
        )
        return f"{self._first + timedelta(seconds=elapsed_seconds):%Y-%m-%d %H:%M:%S}"

    def _wait_until(self, moment: datetime, on_poll: Callable[[], None]) -> bool:
        """Wait until a time in the shop and report progress meanwhile. Return False if the replay is stopped."""
        gap_seconds = self._began + self._seconds_until(moment) - time.monotonic()
        if gap_seconds > LONG_GAP_SECONDS:
            gap = narrator.format_duration(timedelta(seconds=gap_seconds))
            self._echo(f"{self._shop_time()}  next event at {moment:%Y-%m-%d %H:%M:%S}, in {gap}")
        while not self._stop.is_set():
            remaining_seconds = self._began + self._seconds_until(moment) - time.monotonic()
            self._report_progress(on_poll)
            if remaining_seconds <= 0:
                self._behind_seconds = max(self._behind_seconds, -remaining_seconds)
                return True
            self._stop.wait(min(remaining_seconds, 0.2))
        return False

    # Actions

    def _place(self, past: PastOrder) -> None:
        order = place_order(
            self._customer,
            [(self._product, 1)],
            pay_within=self._pay_within,
            external_id=f"{self.name}:{past.order_id}",
        )
        self._orders[past.order_id] = order
        if self._verbose:
            pay_by = past.purchased_at + PAY_WITHIN
            self._echo(f"{self._shop_time()}  {order}: will be closed at {pay_by:%H:%M:%S} unless it is paid")

    def _pay(self, past: PastOrder) -> None:
        in_time = past.approved_at is not None and past.approved_at <= past.purchased_at + PAY_WITHIN
        try:
            pay_order(self._orders[past.order_id].pk)
        except OrderNotOpen as error:
            self._too_late["here" if in_time else "in the history"] += 1
            if self._verbose:
                self._echo(f"{self._shop_time()}  payment too late: {error}")

    def _wait_for_closes(self, on_poll: Callable[[], None]) -> None:
        """Wait until no order is open. Give up after WAIT_SECONDS without progress, counted from the last due time."""
        open_orders, since = -1, self._began + self._seconds_until(self._last)
        while not self._stop.is_set() and time.monotonic() - since < WAIT_SECONDS:
            self._report_progress(on_poll)
            count = replay_orders(self.name).filter(state=Order.State.OPEN).count()
            if count == 0:
                break
            if count != open_orders:
                open_orders, since = count, max(since, time.monotonic())
            self._stop.wait(0.2)
        self._reported_at = 0.0
        self._report_progress(on_poll)

    # Output

    def _announce(self) -> None:
        count, takes_seconds = len(self._history.orders), self._seconds_until(self._last)
        self._echo(
            f"Replaying {count:,} orders from {self._history.path}: {self._first:%Y-%m-%d %H:%M} to "
            f"{self._last:%Y-%m-%d %H:%M}, at {self._speed:,.10g} times the original pace."
        )
        self._echo(
            f"This takes about {narrator.format_duration(timedelta(seconds=takes_seconds))}; 30 minutes to pay take "
            f"{narrator.format_duration(self._pay_within)} here. Ctrl-C stops the replay and prints a summary."
        )

    def _list_bad_rows(self) -> None:
        bad = self._history.bad_rows
        if not bad:
            return
        self._echo(f"{len(bad):,} rows of the file are invalid:")
        for problem in bad[:MAX_LISTED]:
            self._echo(f"  {problem}")
        self._report_dir.mkdir(parents=True, exist_ok=True)
        report = self._report_dir / f"{self.name}-bad-rows.txt"
        report.write_text("".join(f"{problem}\n" for problem in bad), encoding="utf-8")
        self._echo(f"  {'... ' if len(bad) > MAX_LISTED else ''}full list: {report}")

    def _report_progress(self, on_poll: Callable[[], None]) -> None:
        now = time.monotonic()
        if now - self._reported_at < (0.2 if self._verbose else PROGRESS_SECONDS):
            return
        self._reported_at = now
        on_poll()
        if self._verbose:
            keys = {order.key for order in self._orders.values()}
            for event in self._events.read():
                if event.job.key in keys:
                    self._echo(f"{self._shop_time()}  {self._narrator.describe(event)}")
        else:
            states = count_states(self.name)
            self._echo(f"{self._shop_time()}  " + ", ".join(f"{count:,} {state}" for state, count in states.items()))

    def _summarize(self, initial_stock: int) -> int:
        completed = not self._stop.is_set()
        summary = Summary.collect(self.name, self._product, initial_stock, too_late=self._too_late, completed=completed)
        self._echo(f"Summary of {self._history.path}{'' if completed else ', stopped early'}:")
        for line in summary.lines():
            self._echo(f"  {line}")
        if self._history.bad_rows:
            self._echo(f"  {len(self._history.bad_rows):,} rows of the file were invalid; see above.")
        if self._behind_seconds > 1:
            self._echo(
                f"  The replay fell up to {narrator.format_duration(timedelta(seconds=self._behind_seconds))} behind: "
                "this machine cannot place orders at this SPEED."
            )
        return 0 if summary.passed() else 1
