"""What happened to the shop's promises, in plain words. Reads JobEvent rows as they appear; it is not the queue."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from delaytasks import clock
from delaytasks.models import JobEvent
from delaytasks.states import Outcome

from .models import Order, Refund

# PostgreSQL hands out ids before the commit, so a lower one may appear after a higher one.
LOOK_BACK = 200
AT_ONCE = 500


class EventReader:
    """The events since it was made, each once, roughly in their order."""

    def __init__(self) -> None:
        newest = JobEvent.objects.order_by("-id").values_list("id", flat=True)[:LOOK_BACK]
        self._seen = set(newest)
        self._last = max(self._seen, default=0)

    def read(self) -> list[JobEvent]:
        """What is new, at most AT_ONCE: call again until it is empty."""
        found = JobEvent.objects.filter(id__gt=self._last - LOOK_BACK).exclude(id__in=self._seen)
        events = list(found.select_related("job").order_by("id")[:AT_ONCE])
        self._seen.update(event.id for event in events)
        self._last = max(self._seen, default=0)
        self._seen = {id for id in self._seen if id > self._last - LOOK_BACK}
        return events


def at(moment: datetime) -> str:
    return timezone.localtime(moment).strftime("%H:%M:%S")


def length(time: timedelta) -> str:
    """ "1.2 ms", "6.2 s", "30 min", "5 h 9 min", "212 days"."""
    seconds = time.total_seconds()
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 7200:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    if seconds < 2 * 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{seconds / 86_400:,.0f} days"


_REFUND_WORDS = {
    Refund.State.SETTLED: "the gateway says settled: done",
    Refund.State.FAILED: "the gateway says failed: done",
    Refund.State.NEEDS_A_PERSON: "no decision in time: marked for a person",
}
_OTHER_WORDS = {  # with "{next}" where the next due time is known and told
    Outcome.FINISHED: "finished",
    Outcome.FAILED: "failed, tried again{next}",
    Outcome.SNOOZED: "is asked again{next}",
    Outcome.RELEASED: "was given back",
    Outcome.EXPIRED: "outlived its TTR, or its worker died; it runs again",
    Outcome.SCHEDULED: "was scheduled, runs{next}",
    Outcome.RESCHEDULED: "was moved, runs{next}",
    Outcome.CANCELLED: "was called off",
    Outcome.RETRIED: "is tried again{next}",
    Outcome.DEAD: "is dead: its attempts are used up",
}


def row_of(event: JobEvent, name: str) -> int:
    """The id of the order or refund that a job is about; 0 if its body, which callers over HTTP choose, has none."""
    body = event.job.body
    found = body.get(name) if isinstance(body, dict) else None
    return found if isinstance(found, int) else 0


@dataclass(frozen=True)
class Teller:
    """Puts events into sentences, for a shop that is open since `since_ms` and whose time runs at `speed`."""

    since_ms: int
    speed: float = 1.0

    def tell(self, event: JobEvent) -> str:
        """One sentence about an event."""
        special = {
            ("order.close", Outcome.FINISHED): self._close_finished,
            ("order.close", Outcome.CANCELLED): self._close_called_off,
            ("refund.check", Outcome.FINISHED): self._check_finished,
            ("refund.check", Outcome.SNOOZED): self._check_snoozed,
        }.get((event.job.topic, Outcome(event.outcome)))
        return (special(event) if special else None) or self._anything(event)

    def _close_finished(self, event: JobEvent) -> str | None:
        order = Order.objects.filter(pk=row_of(event, "order")).first()
        if order is None:
            return None
        if order.state == Order.State.PAID:
            return f"{order} was paid just as its time was over: it stays paid"
        return f"{order} closed: its {self._length(order.pay_by - order.created_at)} were over; {self._late(event)}"

    def _close_called_off(self, event: JobEvent) -> str | None:
        paid = Order.objects.select_related("payment").filter(state=Order.State.PAID)
        order = paid.filter(pk=row_of(event, "order")).first()
        if order is None or event.actor:
            return None
        return f"{order} paid after {self._length(order.payment.paid_at - order.created_at)}: its close was called off"

    def _check_finished(self, event: JobEvent) -> str | None:
        refund = Refund.objects.filter(pk=row_of(event, "refund")).first()
        if refund is None or refund.state not in _REFUND_WORDS:
            return None
        return f"{refund}: {_REFUND_WORDS[Refund.State(refund.state)]}; {self._late(event)}"

    def _check_snoozed(self, event: JobEvent) -> str:
        asked_ms = event.ran_ms or 0
        waited = f" after {asked_ms / 1000:.1f} s of waiting" if asked_ms > 1000 else ""
        return f"refund {row_of(event, 'refund')}: no decision yet{waited}; asked again{self._next(event)}"

    def _anything(self, event: JobEvent) -> str:
        """The sentence for what has none of its own: failures, and what people did in the admin."""
        words = _OTHER_WORDS[Outcome(event.outcome)].format(next=self._next(event))
        by = f" by {event.actor}" if event.actor else ""
        error = f" ({event.error.strip().splitlines()[-1][:120]})" if event.error.strip() else ""
        return f"{event.job.key.replace(':', ' ')}: {event.job.topic} {words}{by}{error}"

    def _next(self, event: JobEvent) -> str:
        return "" if event.next_due_ms is None else f" at {at(clock.from_ms(event.next_due_ms))}"

    def _length(self, real: timedelta) -> str:
        return length(timedelta(seconds=min(real.total_seconds() * self.speed, 1e12)))

    def _late(self, event: JobEvent) -> str:
        if event.due_ms < self.since_ms:
            return "it fell due while the shop was shut"
        ms = event.late_ms or 0
        return f"{ms} ms late" if ms < 10_000 else f"{ms / 1000:.1f} s late"
