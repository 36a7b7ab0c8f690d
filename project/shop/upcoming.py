"""The next lessons and the newest tickets on the storefront, each with its timeout."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Q
from django.utils import formats, timezone
from django.utils.translation import gettext as _

from delaytasks.clock import from_ms
from delaytasks.models import Job

from .digests import digest
from .models import Lesson, Ticket

MAX_CARDS = 3  # lessons, and as many tickets
TIMEOUTS: dict[type[Lesson | Ticket], str] = {Lesson: "lesson.remind", Ticket: "ticket.escalate"}


@dataclass(frozen=True)
class Card:
    """A lesson or a ticket, as shown on its card.

    kind   "lesson" or "ticket"
    job    its live timeout; None if the class was reminded, or the ticket was escalated or waits for the customer
    """

    kind: str
    row: Lesson | Ticket
    job: Job | None
    now_ms: int

    @property
    def id(self) -> str:
        return f"{self.kind}-{self.row.pk}"

    @property
    def title(self) -> str:
        return str(self.row)  # not the title of a ticket, which only its customer may see

    @property
    def label(self) -> str:
        """When the lesson starts, or the state of the ticket, in lower case as the state of an order."""
        if isinstance(self.row, Ticket):
            return self.row.get_state_display().lower()
        return formats.date_format(timezone.localtime(self.row.starts_at), "SHORT_DATETIME_FORMAT")

    @property
    def note(self) -> str:
        """A text if the ticket was escalated, otherwise ""."""
        went_up = isinstance(self.row, Ticket) and self.row.escalated_at is not None
        return _("Not answered in time: the ticket was escalated.") if went_up else ""

    @property
    def due_ms(self) -> int | None:
        return self.job.due_ms if self.job else None

    @property
    def remaining_ms(self) -> int:
        return max(0, (self.due_ms or 0) - self.now_ms)

    @property
    def version(self) -> str:
        """A version tag that changes when anything on the card changes, except the countdown."""
        return digest(self.title, self.label, self.note, self.due_ms, self.job.pk if self.job else None)


def get_cards(now_ms: int) -> list[Card]:
    """Return the next lessons, and then the newest tickets that are not answered, in three queries."""
    lessons = Lesson.objects.filter(cancelled=False, starts_at__gt=from_ms(now_ms)).order_by("starts_at", "pk")
    tickets = Ticket.objects.exclude(state=Ticket.State.ANSWERED).order_by("-pk")
    rows = [*lessons[:MAX_CARDS], *tickets[:MAX_CARDS]]
    jobs = _live_jobs(rows)
    return [Card(kind, row, jobs.get((topic, key)), now_ms) for row, kind, topic, key in _described(rows)]


def _described(rows: list[Any]) -> Iterator[tuple[Any, str, str, str]]:
    for row in rows:
        kind = row._meta.model_name
        yield row, kind, TIMEOUTS[type(row)], f"{kind}:{row.pk}"


def _live_jobs(rows: list[Any]) -> dict[tuple[str, str], Job]:
    wanted = Q()
    for _row, _kind, topic, key in _described(rows):
        wanted |= Q(topic=topic, key=key)
    jobs = Job.objects.live().filter(wanted).defer("body", "error")
    return {(job.topic, job.key): job for job in jobs} if rows else {}
