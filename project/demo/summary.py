"""The result of a replay, from the database: counts, lateness of the closes, and checks."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from delaytasks.models import JobEvent
from delaytasks.states import Outcome

from ..shop.models import Order, Product


def replay_orders(replay: str) -> QuerySet[Order]:
    return Order.objects.filter(external_id__startswith=f"{replay}:")


def count_states(replay: str) -> dict[str, int]:
    counts = dict(replay_orders(replay).order_by().values_list("state").annotate(Count("pk")))
    return {state.value: counts.get(state.value, 0) for state in Order.State}


def close_lateness_ms(replay: str) -> list[int]:
    """Return how late each close of the replay began, in ms after its due time, sorted."""
    keys = [f"order:{pk}" for pk in replay_orders(replay).values_list("pk", flat=True)]
    late_ms: list[int] = []
    for start in range(0, len(keys), 500):  # SQLite limits the number of parameters
        batch = keys[start : start + 500]
        events = JobEvent.objects.filter(job__topic="order.close", job__key__in=batch, outcome=Outcome.FINISHED)
        late_ms += [event.late_ms for event in events if event.late_ms is not None]
    return sorted(late_ms)


def missing_stock(product: Product, initial_stock: int) -> int:
    """Return the number of units that are neither in stock nor in an open or paid order.

    The number is negative if units were returned to the stock twice.
    """
    ordered = Sum("lines__quantity", filter=Q(lines__order__state__in=[Order.State.OPEN, Order.State.PAID]))
    total = F("stock") + Coalesce(ordered, 0)  # one statement: both numbers are from the same moment
    return initial_stock - Product.objects.annotate(total=total).values_list("total", flat=True).get(pk=product.pk)


@dataclass
class Summary:
    """The result of one replay.

    too_late    number of payments of closed orders: "in the history" they were late as well, "here" only in the replay
    completed   False if the replay was stopped early
    """

    states: dict[str, int]
    late_ms: list[int]
    paid_and_closed: int
    missing_stock: int
    too_late: Counter[str]
    completed: bool

    @classmethod
    def collect(
        cls, replay: str, product: Product, initial_stock: int, *, too_late: Counter[str], completed: bool
    ) -> "Summary":
        paid_and_closed = replay_orders(replay).filter(closed_at__isnull=False, payment__isnull=False).count()
        missing = missing_stock(product, initial_stock)
        return cls(count_states(replay), close_lateness_ms(replay), paid_and_closed, missing, too_late, completed)

    def lines(self) -> Iterator[str]:
        yield f"{sum(self.states.values()):,} orders placed."
        yield f"{self.states['paid']:,} paid in time: their closes were cancelled."
        yield f"{self.states['closed']:,} closed: not paid in time."
        if late := self.too_late.total():
            yield f"{late:,} payments came too late: their orders stay closed.{self._late_here()}"
        if self.states["open"]:
            yield f"{self.states['open']:,} still open{'.' if self.completed else ': their jobs run next time.'}"
        if self.late_ms:
            yield (
                f"Closes began {percentile(self.late_ms, 0.5):,} ms late at the median, "
                f"{percentile(self.late_ms, 0.99):,} ms at the 99th percentile, {self.late_ms[-1]:,} ms at most."
            )
        for rule, failures in self.checks():
            yield f"{'FAILED' if failures else 'passed'}: {rule}{f' ({failures:,})' if failures else ''}."

    def _late_here(self) -> str:
        here = self.too_late["here"]
        if not here:
            return ""
        return f" {here:,} of them were in time in the history: at this SPEED the close came first."

    def checks(self) -> Iterator[tuple[str, int]]:
        """Yield each rule with its number of violations."""
        yield "no order was both paid in time and closed", self.paid_and_closed
        yield "no order was closed early", sum(1 for ms in self.late_ms if ms < 0)
        yield "every close returned its stock exactly once", abs(self.missing_stock)
        if self.completed:
            yield "no order was left open", self.states["open"]

    def passed(self) -> bool:
        return not any(failures for _, failures in self.checks())


def percentile(values: list[int], share: float) -> int:
    """Return the smallest of the sorted values that at least `share` of them do not exceed."""
    return values[max(0, math.ceil(len(values) * share) - 1)]
