"""What a replay has come to, asked of the database: the counts, how late the closes were, and what must hold."""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from django.db.models import Count, F, Q, QuerySet, Sum
from django.db.models.functions import Coalesce

from delaytasks.models import JobEvent
from delaytasks.states import Outcome

from .models import Order, Product


def orders_of(replay: str) -> QuerySet[Order]:
    return Order.objects.filter(external_id__startswith=f"{replay}:")


def count_states(replay: str) -> dict[str, int]:
    found = dict(orders_of(replay).order_by().values_list("state").annotate(Count("pk")))
    return {state.value: found.get(state.value, 0) for state in Order.State}


def closes_late_ms(replay: str) -> list[int]:
    """How long after its due time each close of the replay began, in ms, sorted."""
    keys = [f"order:{pk}" for pk in orders_of(replay).values_list("pk", flat=True)]
    late: list[int] = []
    for start in range(0, len(keys), 500):  # SQLite takes a limited number of values in one statement
        some = keys[start : start + 500]
        events = JobEvent.objects.filter(job__topic="order.close", job__key__in=some, outcome=Outcome.FINISHED)
        late += [event.late_ms for event in events if event.late_ms is not None]
    return sorted(late)


def missing_stock(product: Product, at_start: int) -> int:
    """Pieces that are neither on the shelf nor in an open or paid order; negative: given back more than once."""
    held = Sum("lines__quantity", filter=Q(lines__order__state__in=[Order.State.OPEN, Order.State.PAID]))
    there = F("stock") + Coalesce(held, 0)  # in one statement: both at the same moment
    return at_start - Product.objects.annotate(there=there).values_list("there", flat=True).get(pk=product.pk)


@dataclass
class Summary:
    """The result of one replay."""

    states: dict[str, int]
    late_ms: list[int]
    paid_and_closed: int
    missing_stock: int
    too_late: Counter[str]  # payments that found their order closed: late "in the history", or only "here"
    finished: bool  # False: it was stopped before its end

    @classmethod
    def of(cls, replay: str, product: Product, at_start: int, *, too_late: Counter[str], finished: bool) -> "Summary":
        paid_and_closed = orders_of(replay).filter(closed_at__isnull=False, payment__isnull=False).count()
        lost = missing_stock(product, at_start)
        return cls(count_states(replay), closes_late_ms(replay), paid_and_closed, lost, too_late, finished)

    def lines(self) -> Iterator[str]:
        yield f"{sum(self.states.values()):,} orders placed."
        yield f"{self.states['paid']:,} paid in time: their closes were called off."
        yield f"{self.states['closed']:,} closed: nobody had paid them in time."
        if late := self.too_late.total():
            yield f"{late:,} payments came too late: their orders stay closed.{self.why_late()}"
        if self.states["open"]:
            yield f"{self.states['open']:,} still open{'.' if self.finished else ': their jobs wait for the next run.'}"
        if self.late_ms:
            yield (
                f"The closes began {at_share(self.late_ms, 0.5):,} ms late at the median, "
                f"{at_share(self.late_ms, 0.99):,} ms at the 99th percentile, {self.late_ms[-1]:,} ms at most."
            )
        for words, failed in self.checks():
            yield f"{'FAILED' if failed else 'checked'}: {words}{f' ({failed:,})' if failed else ''}."

    def why_late(self) -> str:
        here = self.too_late["here"]
        if not here:
            return ""
        return f" {here:,} of them were in time in the history: at this SPEED the close was quicker here."

    def checks(self) -> Iterator[tuple[str, int]]:
        """What must hold, with the number of cases that break it."""
        yield "no order was both paid in time and closed", self.paid_and_closed
        yield "no order was closed before its time", sum(1 for ms in self.late_ms if ms < 0)
        yield "every close gave its stock back exactly once", abs(self.missing_stock)
        if self.finished:
            yield "no order was left open", self.states["open"]

    def holds(self) -> bool:
        return not any(failed for _, failed in self.checks())


def at_share(ordered: list[int], share: float) -> int:
    """The value that `share` of the sorted list does not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]
