"""Tickets of the shop: their service level, the escalation, and the countdown in the admin."""

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib import admin

from delaytasks import Calendar
from delaytasks.admin.service_levels import countdown
from delaytasks.calendars import registry
from delaytasks.clock import to_ms
from delaytasks.service_levels import SlaStatus
from project.shop import tickets
from project.shop.models import Customer, Ticket

MONDAY = datetime(2026, 1, 5, 8, tzinfo=UTC)  # 9:00 in Berlin: the office opens
FRIDAY = MONDAY + timedelta(days=4, hours=6)  # 15:00
HOUR = timedelta(hours=1)
pytestmark = pytest.mark.timeouts(start=MONDAY)


@pytest.fixture
def ticket(timeouts: Any) -> Ticket:
    return tickets.open_ticket(Customer.objects.create(name="Ann", email="ann@shop.example"), "Where is it?")


def test_a_ticket_must_be_answered_within_eight_working_hours(ticket: Ticket, timeouts: Any) -> None:
    timeouts.advance(hours=4)
    ticket.refresh_from_db()
    assert (ticket.reminded_at, ticket.overdue_at) == (timeouts.now, None)
    tickets.ask_customer(ticket.pk)
    timeouts.advance(hours=19)  # Tuesday 8:00
    tickets.customer_replied(ticket.pk)
    timeouts.advance(hours=5, seconds=-1)
    ticket.refresh_from_db()
    assert ticket.overdue_at is None
    timeouts.advance(seconds=1)
    ticket.refresh_from_db()
    assert ticket.overdue_at == timeouts.now == MONDAY + 28 * HOUR


def test_an_answered_ticket_is_left_alone(ticket: Ticket, timeouts: Any) -> None:
    timeouts.advance(hours=1)
    tickets.answer(ticket.pk)
    assert not timeouts.advance(days=7)
    assert tickets.answer_ticket.remaining(ticket) == 7 * HOUR
    with pytest.raises(tickets.TicketAnswered):
        tickets.ask_customer(ticket.pk)


def test_a_ticket_that_is_open_after_a_day_goes_up_once(ticket: Ticket, timeouts: Any) -> None:
    tickets.ask_customer(ticket.pk)
    timeouts.advance(hours=30)
    ticket.refresh_from_db()
    assert ticket.escalated_at is None  # it is the customer's turn
    tickets.customer_replied(ticket.pk)
    timeouts.run_due()
    ticket.refresh_from_db()
    assert ticket.escalated_at == timeouts.now
    timeouts.assert_not_scheduled("ticket.escalate", subject=ticket)


# -- the admin ----------------------------------------------------------------------------------


def shown(client: Any, path: str) -> list[tuple[str, int, list[list[int]], str]]:
    """Return (badge, ms left, open hours, text) of each countdown on a page."""
    page = client.get(f"/admin/shop/ticket/{path}").content.decode()
    pattern = (
        r'dt-state dt-\w+">(\w+)</span> <span class="dt-sla" '
        r'[^>]*data-left-ms="(-?\d+)"[^>]* data-open="(.*?)" [^>]*>(.*?)<'
    )
    return [(badge, int(left), json.loads(spans), text) for badge, left, spans, text in re.findall(pattern, page)]


def test_the_list_and_the_page_count_down_in_open_hours(admin_client: Any, ticket: Ticket, timeouts: Any) -> None:
    timeouts.advance(hours=1)
    for path in ("", f"{ticket.pk}/change/"):
        [(badge, left, spans, text)] = shown(admin_client, path)
        assert (badge, left, text) == ("running", 7 * 3_600_000, "7:00:00")
        assert spans[0] == [to_ms(MONDAY + HOUR), to_ms(MONDAY + 8 * HOUR)]
        assert spans[1] == [to_ms(MONDAY + 24 * HOUR), to_ms(MONDAY + 32 * HOUR)]


def test_the_countdown_of_a_paused_ticket_stands_still(admin_client: Any, ticket: Ticket, timeouts: Any) -> None:
    timeouts.advance(minutes=1)
    tickets.ask_customer(ticket.pk)
    timeouts.advance(days=3)
    assert shown(admin_client, "") == [("paused", 8 * 3_600_000 - 60_000, [], "7:59:00")]


def test_staff_pause_a_ticket_by_saving_it(admin_client: Any, ticket: Ticket, timeouts: Any) -> None:
    fields = {"customer": ticket.customer_id, "title": ticket.title, "state": "waiting"}
    assert admin_client.post(f"/admin/shop/ticket/{ticket.pk}/change/", fields).status_code == 302
    status = tickets.answer_ticket.status(ticket)
    assert status is not None
    assert status.state == "paused"


def test_a_breached_ticket_shows_the_time_since(admin_client: Any, ticket: Ticket, timeouts: Any) -> None:
    timeouts.advance(hours=24, minutes=90)
    [(badge, _, _, text)] = shown(admin_client, "")
    assert (badge, text) == ("breached", "-1:30:00")


def test_the_list_asks_once_for_all_tickets(
    admin_client: Any, ticket: Ticket, timeouts: Any, django_assert_max_num_queries: Any
) -> None:
    shown(admin_client, "")
    for number in range(20):
        tickets.open_ticket(ticket.customer, f"Question {number}")
    with django_assert_max_num_queries(9):
        assert len(shown(admin_client, "")) == 21


def test_the_pages_load_the_script(admin_client: Any, ticket: Ticket) -> None:
    for path in ("", f"{ticket.pk}/change/"):
        assert "delaytasks/sla.js" in admin_client.get(f"/admin/shop/ticket/{path}").content.decode()


def test_the_page_that_adds_a_ticket_may_name_the_field(admin_client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin.site.get_model_admin(Ticket), "fields", ["title", "sla_status"])
    assert admin_client.get("/admin/shop/ticket/add/").status_code == 200


def test_a_list_of_paused_tickets_asks_for_no_open_hours(
    admin_client: Any, ticket: Ticket, timeouts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tickets.ask_customer(ticket.pk)
    monkeypatch.delattr(countdown, "open_spans")
    assert [badge for badge, *_ in shown(admin_client, "")] == ["paused"]


def test_a_new_ticket_and_one_without_a_clock_have_no_countdown(admin_client: Any, timeouts: Any) -> None:
    assert shown(admin_client, "add/") == []
    customer = Customer.objects.create(name="Bob", email="bob@shop.example")
    answered = Ticket.objects.create(customer=customer, title="Known", state=Ticket.State.ANSWERED)
    assert shown(admin_client, "") == shown(admin_client, f"{answered.pk}/change/") == []


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0:00:00"), (28_799_999, "7:59:59"), (-999, "0:00:00"), (-3_661_000, "-1:01:01")]
)
def test_digits(ms: int, text: str) -> None:
    assert countdown.digits(ms) == text


def test_open_hours_that_never_end_or_are_not_limited() -> None:
    calendar = Calendar("always, for tickets", tz="UTC", hours={"mon-sun": "00:00-24:00"}, editable=False)
    registry.unregister(calendar.name)
    now_ms = to_ms(FRIDAY)
    days_ms = 60 * 24 * 3_600_000
    assert countdown.open_spans(calendar, now_ms) == countdown.open_spans(None, now_ms) == [(now_ms, now_ms + days_ms)]
    status = SlaStatus("stopped", HOUR, HOUR, None)
    assert 'data-open="[]"' in countdown.html(status, [(1, 2)], now_ms, "")
    assert "ticket.answer" in countdown.html(status, [], now_ms, "ticket.answer")
