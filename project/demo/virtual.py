"""`make run ORDERS=file.csv SPEED=virtual`: replay an order history in virtual time, with the test kit.

Two years take less than a minute, because nothing waits: the clock jumps from one action of a customer to the next, and
jobs that fall due in between run. Needs no Redis, no worker and no broker; the shop has its own database, which is
emptied first.

A job that is due at the time of an action runs before the action. So an order is paid if it was approved before its 30
minutes were over, and closed if it was approved exactly then, later or never.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

from .order_csv import History, PastOrder

if TYPE_CHECKING:
    from delaytasks.testing import Timeouts

    from .summary import Summary

Echo = Callable[[str], None]
NAME = "replay-virtual"
PROGRESS_SECONDS = 2.0


def expected_split(orders: list[PastOrder]) -> dict[str, int]:
    """Return the expected number of orders by state, computed from the times in the history."""
    from .replay import PAY_WITHIN

    paid = sum(1 for o in orders if o.approved_at is not None and o.approved_at < o.purchased_at + PAY_WITHIN)
    return {"open": 0, "paid": paid, "closed": len(orders) - paid}


def main(history: History, folder: Path, echo: Echo, stop: Event) -> int:
    """Replay in a database of its own, and print a summary. Return 0, or 1 if a check failed or it was stopped."""
    from .__main__ import prepare

    prepare(folder)
    from .narrator import format_duration  # these import models: after Django has loaded the apps
    from .replay import MAX_LISTED

    began, span = time.monotonic(), history.orders[-1].purchased_at - history.orders[0].purchased_at
    echo(f"Replaying {len(history.orders):,} orders of {format_duration(span)} from {history.path} in virtual time.")
    with clock(history) as timeouts:
        summary = replay(history, timeouts, echo, stop)
    echo(f"Summary of {history.path}, after {time.monotonic() - began:.0f} s:")
    for line in summary.lines():
        echo(f"  {line}")
    for problem in history.bad_rows[:MAX_LISTED]:
        echo(f"  invalid row: {problem}")
    if history.bad_rows:
        echo(f"  {len(history.bad_rows):,} rows of the file were invalid.")
    if stop.is_set():
        echo("  Stopped early: the numbers of paid and closed orders are not compared.")
        return 1
    expected = expected_split(history.orders)
    is_exact = summary.states == expected
    echo(f"  {'passed' if is_exact else 'FAILED'}: the states are as computed from the history, {expected}.")
    return 0 if is_exact and summary.passed() else 1


@contextmanager
def clock(history: History) -> "Iterator[Timeouts]":
    """Yield the test kit, with its clock at the first purchase.

    It does not reconcile: the shop's changes send signals, and each reconciliation would compare all orders.
    """
    from delaytasks.testing import Timeouts

    with Timeouts(start=history.orders[0].purchased_at, reconciles=False) as timeouts:
        yield timeouts


def replay(history: History, timeouts: "Timeouts", echo: Echo, stop: Event) -> "Summary":
    """Place and pay each order at its time. Return the summary."""
    from ..shop.models import Customer, Order, Product
    from ..shop.services import OrderNotOpen, pay_order, place_order
    from .replay import PAY_WITHIN, timeline
    from .summary import Summary, count_states

    customer = Customer.objects.create(name="Replay", email=f"{NAME}@shop.example")
    product = Product.objects.create(name=NAME, price=Decimal(10), stock=len(history.orders))
    orders: dict[str, Order] = {}
    too_late: Counter[str] = Counter()
    reported_at = time.monotonic()
    for moment, is_payment, _, past in timeline(history.orders):
        if stop.is_set():
            break
        timeouts.advance_to(moment)
        if is_payment:
            try:
                pay_order(orders[past.order_id].pk)
            except OrderNotOpen:
                too_late["in the history"] += 1
        else:
            orders[past.order_id] = place_order(
                customer, [(product, 1)], pay_within=PAY_WITHIN, external_id=f"{NAME}:{past.order_id}"
            )
        if time.monotonic() - reported_at > PROGRESS_SECONDS:
            reported_at = time.monotonic()
            states = ", ".join(f"{count:,} {state}" for state, count in count_states(NAME).items())
            echo(f"{moment:%Y-%m-%d %H:%M}  {states}")
    if not stop.is_set():
        timeouts.reconcile()
        timeouts.advance(PAY_WITHIN)
    return Summary.collect(NAME, product, len(history.orders), too_late=too_late, completed=not stop.is_set())
