"""Tickets: a service level and a timeout.

answer_ticket     8 working hours to answer a ticket; the clock is paused while the shop waits for the customer. After 4
                  and after 7.2 hours staff are reminded.
escalate_ticket   a ticket that is still open 24 hours after it was created is escalated, also outside office hours.

Saving a ticket with another state, here or in the admin, pauses, resumes or stops its clock.
"""

from datetime import timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Q
from django.utils import timezone

from delaytasks import Calendar, RunningJob, sla, timeout
from delaytasks.calendars import hours
from delaytasks.service_levels import SlaEvent

from .models import Customer, Ticket

OFFICE = Calendar("shop office", tz="Europe/Berlin", hours={"mon-fri": "09:00-17:00"})


@sla(
    Ticket,
    calendar=OFFICE,
    target=hours(8),
    start=Q(state=Ticket.State.OPEN),
    pause=Q(state=Ticket.State.WAITING),
    stop=Q(state=Ticket.State.ANSWERED),
    warn=[0.5, 0.9],
    topic="ticket.answer",
)
def answer_ticket(ticket: Ticket, event: SlaEvent) -> None:
    """Record a warning (the ticket has waited long) or the breach (it has waited too long)."""
    field = "overdue_at" if event.is_breach else "reminded_at"
    setattr(ticket, field, timezone.now())
    ticket.save(update_fields=[field])


@timeout(
    Ticket,
    on="created_at",
    after=timedelta(seconds=settings.SHOP_ESCALATION_SECONDS),
    while_=Q(state=Ticket.State.OPEN, escalated_at=None),
    topic="ticket.escalate",
)
def escalate_ticket(ticket: Ticket, job: RunningJob) -> None:
    ticket.escalated_at = timezone.now()
    ticket.save(update_fields=["escalated_at"])


class TicketAnswered(Exception):
    """The ticket is answered already. Nothing was changed."""


def open_ticket(customer: Customer, title: str) -> Ticket:
    return Ticket.objects.create(customer=customer, title=title)


def ask_customer(ticket_id: int) -> Ticket:
    """Set a ticket to waiting for the customer, which pauses its clock. Raises TicketAnswered."""
    return _change(ticket_id, Ticket.State.WAITING)


def customer_replied(ticket_id: int) -> Ticket:
    """Set a ticket to open after the customer's reply, which resumes its clock. Raises TicketAnswered."""
    return _change(ticket_id, Ticket.State.OPEN)


def answer(ticket_id: int) -> Ticket:
    """Set a ticket to answered, which stops its clock. Raises TicketAnswered."""
    return _change(ticket_id, Ticket.State.ANSWERED)


@transaction.atomic
def _change(ticket_id: int, state: Ticket.State) -> Ticket:
    ticket = Ticket.objects.select_for_update().get(pk=ticket_id)
    if ticket.state == Ticket.State.ANSWERED:
        raise TicketAnswered(f"Ticket {ticket.pk} is answered already.")
    ticket.state = state
    ticket.save(update_fields=["state"])
    return ticket
