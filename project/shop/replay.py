"""Replays a real order history at SPEED times its pace, and proves at the end that nothing went wrong."""

import heapq
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from threading import Event

from . import story
from .history import History, PastOrder
from .models import Customer, Order, Product
from .services import TooLate, pay_order, place_order
from .summary import Summary, count_states, orders_of

Say = Callable[[str], None]
PAY_WITHIN = timedelta(minutes=30)  # of the shop's time
CHATTY = 5.0  # orders a second up to which each one is told
PROGRESS_SECONDS = 2.0
WAIT_SECONDS = 60.0  # without any progress, after which the rest is given up
LONG_GAP_SECONDS = 10.0
LISTED = 20  # bad rows on the terminal; all of them are in the file

# An entry of the timeline: when (shop's time), 0 = purchase or 1 = payment, position, the order.
Entry = tuple[datetime, int, int, PastOrder]


def timeline(orders: list[PastOrder]) -> Iterator[Entry]:
    """Purchases and payments in the order in which they happened. `orders` is sorted by purchase."""
    purchases = ((order.purchased_at, 0, n, order) for n, order in enumerate(orders))
    paid = ((order.approved_at, 1, n, order) for n, order in enumerate(orders) if order.approved_at)
    return heapq.merge(purchases, sorted(paid, key=lambda entry: entry[:3]), key=lambda entry: entry[:3])


class Replay:
    """One replay. Its orders have external ids that begin with the run's own name: a history can be replayed again."""

    def __init__(self, history: History, speed: float, say: Say, stop: Event, report_dir: Path) -> None:
        self._history, self._speed, self._say, self._stop = history, speed, say, stop
        self._report_dir = report_dir
        self.name = f"replay-{secrets.token_hex(4)}"
        self._orders: dict[str, Order] = {}  # by their id in the file
        self._too_late: Counter[str] = Counter()
        self._behind_seconds = 0.0
        self._told_at = 0.0
        self._events = story.EventReader()
        self._first = history.orders[0].purchased_at
        self._last = max(max(o.purchased_at + PAY_WITHIN, o.approved_at or self._first) for o in history.orders)
        self._pay_within = PAY_WITHIN / speed
        self._chatty = len(history.orders) / max(self._seconds_until(self._last), 0.001) <= CHATTY

    def run(self, watch: Callable[[], None] = lambda: None) -> int:
        """Replay all of it or until stopped, then the summary. 0, or 1 when a check of the summary failed."""
        self._teller = story.Teller(since_ms=int(time.time() * 1000), speed=self._speed)
        self._announce()
        self._list_bad_rows()
        count = len(self._history.orders)
        self._customer = Customer.objects.create(name="Replay", email=f"{self.name}@shop.example")
        self._product = Product.objects.create(name=self.name, price=Decimal(10), stock=count)
        self._began = time.monotonic()
        for moment, is_payment, _, past in timeline(self._history.orders):
            if not self._wait_until(moment, watch):
                break
            (self._pay if is_payment else self._place)(past)
        self._wait_for_the_rest(watch)
        return self._summarize(count)

    # The shop's clock

    def _seconds_until(self, moment: datetime) -> float:
        """Real seconds from the start of the replay to a moment of the shop's time."""
        return (moment - self._first).total_seconds() / self._speed

    def _shop_time(self) -> str:
        passed = min((time.monotonic() - self._began) * self._speed, (self._last - self._first).total_seconds())
        return f"{self._first + timedelta(seconds=passed):%Y-%m-%d %H:%M:%S}"

    def _wait_until(self, moment: datetime, watch: Callable[[], None]) -> bool:
        """Tell the news until the moment has come. False if the replay was stopped meanwhile."""
        gap_seconds = self._began + self._seconds_until(moment) - time.monotonic()
        if gap_seconds > LONG_GAP_SECONDS:
            gap = story.length(timedelta(seconds=gap_seconds))
            self._say(f"{self._shop_time()}  the next thing happens at {moment:%Y-%m-%d %H:%M:%S}, in {gap} from now")
        while not self._stop.is_set():
            rest = self._began + self._seconds_until(moment) - time.monotonic()
            self._tell_news(watch)
            if rest <= 0:
                self._behind_seconds = max(self._behind_seconds, -rest)
                return True
            self._stop.wait(min(rest, 0.2))
        return False

    # What happened in the history

    def _place(self, past: PastOrder) -> None:
        order = place_order(
            self._customer,
            [(self._product, 1)],
            pay_within=self._pay_within,
            external_id=f"{self.name}:{past.order_id}",
        )
        self._orders[past.order_id] = order
        if self._chatty:
            until = past.purchased_at + PAY_WITHIN
            self._say(f"{self._shop_time()}  {order}: will be closed at {until:%H:%M:%S} unless it is paid")

    def _pay(self, past: PastOrder) -> None:
        in_time = past.approved_at is not None and past.approved_at <= past.purchased_at + PAY_WITHIN
        try:
            pay_order(self._orders[past.order_id].pk)
        except TooLate as refusal:
            self._too_late["here" if in_time else "in the history"] += 1
            if self._chatty:
                self._say(f"{self._shop_time()}  a payment came too late: {refusal}")

    def _wait_for_the_rest(self, watch: Callable[[], None]) -> None:
        """Until no order of this replay is open; gives up when all are due and nothing moves for WAIT_SECONDS."""
        left, since = -1, self._began + self._seconds_until(self._last)
        while not self._stop.is_set() and time.monotonic() - since < WAIT_SECONDS:
            self._tell_news(watch)
            now_left = orders_of(self.name).filter(state=Order.State.OPEN).count()
            if now_left == 0:
                break
            if now_left != left:
                left, since = now_left, max(since, time.monotonic())
            self._stop.wait(0.2)
        self._told_at = 0.0
        self._tell_news(watch)

    # What is told

    def _announce(self) -> None:
        count, takes_seconds = len(self._history.orders), self._seconds_until(self._last)
        self._say(
            f"Replaying {count:,} orders from {self._history.path}: {self._first:%Y-%m-%d %H:%M} to "
            f"{self._last:%Y-%m-%d %H:%M}, at {self._speed:,.10g} times its pace."
        )
        self._say(
            f"This takes about {story.length(timedelta(seconds=takes_seconds))}; the shop's 30 minutes are "
            f"{story.length(self._pay_within)} here. Ctrl-C ends it with a summary of what was done."
        )

    def _list_bad_rows(self) -> None:
        bad = self._history.bad_rows
        if not bad:
            return
        self._say(f"{len(bad):,} rows of the file cannot be used:")
        for problem in bad[:LISTED]:
            self._say(f"  {problem}")
        self._report_dir.mkdir(parents=True, exist_ok=True)
        report = self._report_dir / f"{self.name}-bad-rows.txt"
        report.write_text("".join(f"{problem}\n" for problem in bad), encoding="utf-8")
        self._say(f"  {'... ' if len(bad) > LISTED else ''}all of them are listed in {report}")

    def _tell_news(self, watch: Callable[[], None]) -> None:
        now = time.monotonic()
        if now - self._told_at < (0.2 if self._chatty else PROGRESS_SECONDS):
            return
        self._told_at = now
        watch()
        if self._chatty:
            mine = {order.key for order in self._orders.values()}
            for event in self._events.read():
                if event.job.key in mine:
                    self._say(f"{self._shop_time()}  {self._teller.tell(event)}")
        else:
            states = count_states(self.name)
            self._say(f"{self._shop_time()}  " + ", ".join(f"{count:,} {state}" for state, count in states.items()))

    def _summarize(self, at_start: int) -> int:
        finished = not self._stop.is_set()
        summary = Summary.of(self.name, self._product, at_start, too_late=self._too_late, finished=finished)
        self._say(f"Summary of {self._history.path}{'' if finished else ', stopped before its end'}:")
        for line in summary.lines():
            self._say(f"  {line}")
        if self._history.bad_rows:
            self._say(f"  {len(self._history.bad_rows):,} rows of the file could not be used; they are listed above.")
        if self._behind_seconds > 1:
            self._say(
                f"  The replay fell up to {story.length(timedelta(seconds=self._behind_seconds))} behind: "
                "this machine cannot place the orders at this SPEED."
            )
        return 0 if summary.holds() else 1
