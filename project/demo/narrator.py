"""Describe job events in plain words for the terminal. Only reads new JobEvent rows; no job depends on it."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.utils import timezone

from delaytasks import clock
from delaytasks.models import JobEvent
from delaytasks.outcomes import error_text
from delaytasks.states import Outcome

from ..shop.models import Order, Refund

# The last LOOKBACK ids are read again: PostgreSQL assigns ids before the commit, so a lower id can appear later.
LOOKBACK = 200
BATCH_SIZE = 500
MAX_DIGITS = 19  # of ids that fit into a column


class EventReader:
    """Reads each event that is committed after the reader was created, once and roughly in the order of ids."""

    def __init__(self) -> None:
        newest = JobEvent.objects.order_by("-id").values_list("id", flat=True)[:LOOKBACK]
        self._seen = set(newest)
        self._last = max(self._seen, default=0)

    def read(self) -> list[JobEvent]:
        """Return at most BATCH_SIZE new events. Call again until the list is empty."""
        unread = JobEvent.objects.filter(id__gt=self._last - LOOKBACK).exclude(id__in=self._seen)
        events = list(unread.select_related("job").order_by("id")[:BATCH_SIZE])
        self._seen.update(event.id for event in events)
        self._last = max(self._seen, default=0)
        self._seen = {id for id in self._seen if id > self._last - LOOKBACK}
        return events


def format_time(time: datetime) -> str:
    return timezone.localtime(time).strftime("%H:%M:%S")


def format_duration(duration: timedelta) -> str:
    """Return "1.2 ms", "6.2 s", "30 min", "5 h 9 min" or "212 days"."""
    seconds = duration.total_seconds()
    if seconds < 0.1:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 100:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    if seconds < 7200:
        return f"{seconds / 60:.1f}".removesuffix(".0") + " min"
    if seconds < 2 * 86_400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60)} min"
    return f"{seconds / 86_400:,.0f} days"


_REFUND_TEXTS = {
    Refund.State.SETTLED: "settled by the gateway",
    Refund.State.FAILED: "declined by the gateway",
    Refund.State.NEEDS_REVIEW: "no decision in time, needs review",
}
_OUTCOME_TEXTS = {  # {next}: " at 12:30:00", or empty if the next due time is unknown
    Outcome.FINISHED: "finished",
    Outcome.FAILED: "failed, will be retried{next}",
    Outcome.SNOOZED: "was snoozed, runs again{next}",
    Outcome.RELEASED: "was released",
    Outcome.EXPIRED: "exceeded its TTR or lost its worker, runs again",
    Outcome.SCHEDULED: "was scheduled to run{next}",
    Outcome.RESCHEDULED: "was rescheduled to run{next}",
    Outcome.CANCELLED: "was cancelled",
    Outcome.SKIPPED: "was skipped",
    Outcome.RETRIED: "will be retried{next}",
    Outcome.DEAD: "is dead: no attempts left",
}


def object_id(event: JobEvent, name: str) -> int:
    """Return the id of the order or refund in the job's key; 0 if there is none, as HTTP clients may use any key.

    name   "order" or "refund"
    """
    prefix, _, number = event.job.key.partition(":")
    return int(number) if prefix == name and number.isdecimal() and len(number) < MAX_DIGITS else 0


@dataclass(frozen=True)
class Narrator:
    """Describes events of a shop that started at `since_ms` (since 1970) and runs at `speed` times real time."""

    since_ms: int
    speed: float = 1.0

    def describe(self, event: JobEvent) -> str:
        """Return one line about an event."""
        describe = {
            ("order.close", Outcome.FINISHED): self._close_finished,
            ("order.close", Outcome.CANCELLED): self._close_cancelled,
            ("order.close", Outcome.SKIPPED): self._close_skipped,
            ("refund.check", Outcome.FINISHED): self._check_finished,
            ("refund.check", Outcome.SNOOZED): self._check_snoozed,
        }.get((event.job.topic, Outcome(event.outcome)))
        return (describe(event) if describe else None) or self._other_event(event)

    def _close_finished(self, event: JobEvent) -> str | None:
        order = Order.objects.filter(pk=object_id(event, "order")).first()
        if order is None:
            return None
        time_to_pay = self._format_duration(order.pay_by - order.created_at)
        return f"{order} closed: not paid within {time_to_pay}; {self._format_lateness(event)}"

    def _close_skipped(self, event: JobEvent) -> str | None:
        order = Order.objects.filter(pk=object_id(event, "order"), state=Order.State.PAID).first()
        return None if order is None else f"{order} was paid as its close fell due; it stays paid"

    def _close_cancelled(self, event: JobEvent) -> str | None:
        paid = Order.objects.select_related("payment").filter(state=Order.State.PAID)
        order = paid.filter(pk=object_id(event, "order")).first()
        if order is None or event.actor:
            return None
        return f"{order} paid after {self._format_duration(order.payment.paid_at - order.created_at)}; close cancelled"

    def _check_finished(self, event: JobEvent) -> str | None:
        refund = Refund.objects.filter(pk=object_id(event, "refund")).first()
        if refund is None or refund.state not in _REFUND_TEXTS:
            return None
        return f"{refund}: {_REFUND_TEXTS[Refund.State(refund.state)]}; {self._format_lateness(event)}"

    def _check_snoozed(self, event: JobEvent) -> str:
        waited_ms = event.ran_ms or 0
        wait = f" after a wait of {waited_ms / 1000:.1f} s" if waited_ms > 1000 else ""
        refund_id = object_id(event, "refund")
        return f"refund {refund_id}: no decision by the gateway{wait}; next check{self._format_next(event)}"

    def _other_event(self, event: JobEvent) -> str:
        """Describe an event that has no text of its own, such as a failure or a change by staff or HTTP clients."""
        text = _OUTCOME_TEXTS[Outcome(event.outcome)].format(next=self._format_next(event))
        by = f" by {event.actor}" if event.actor else ""
        message = error_text(event.error).strip()
        error = f" ({message.splitlines()[-1][:120]})" if message else ""
        return f"{event.job.key.replace(':', ' ')}: {event.job.topic} {text}{by}{error}"

    def _format_next(self, event: JobEvent) -> str:
        return "" if event.next_due_ms is None else f" at {format_time(clock.from_ms(event.next_due_ms))}"

    def _format_duration(self, real: timedelta) -> str:
        return format_duration(timedelta(seconds=min(real.total_seconds() * self.speed, 1e12)))

    def _format_lateness(self, event: JobEvent) -> str:
        if event.due_ms < self.since_ms:
            return "it fell due while the shop was not running"
        ms = event.late_ms or 0
        return f"{ms} ms late" if ms < 10_000 else f"{ms / 1000:.1f} s late"
