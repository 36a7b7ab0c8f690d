"""The storefront shows lessons and tickets with their timeouts."""

from typing import Any

import pytest
from django.test import Client

from delaytasks.models import Job
from delaytasks.testing import Timeouts, hours, minutes
from project.shop import tickets, upcoming
from project.shop.models import Customer, Lesson, Ticket


@pytest.fixture
def lesson(timeouts: Timeouts) -> Lesson:
    return Lesson.objects.create(title="Brewing tea", starts_at=timeouts.now + hours(2))


@pytest.fixture
def ticket(timeouts: Timeouts, customer: Customer) -> Ticket:
    return tickets.open_ticket(customer, "A secret of the customer")


def cards(client: Client) -> dict[str, str]:
    """Return the HTML of each card by its id."""
    return {id: html for id, _, html in client.get("/now/").json()["lists"]["upcoming"]}


def test_a_lesson_counts_down_to_the_reminder_of_its_class(client: Client, lesson: Lesson) -> None:
    due_ms = Job.objects.get(topic="lesson.remind").due_ms
    for html in (client.get("/").content.decode(), cards(client)[f"lesson-{lesson.pk}"]):
        assert f'data-due="{due_ms}"' in html
        assert "Brewing tea" in html
        assert 'the class is reminded in <span class="clock" role="timer">1:45:00</span>' in html


def test_the_countdown_follows_a_lesson_that_moves(client: Client, lesson: Lesson) -> None:
    before = client.get("/now/").json()["version"]
    lesson.starts_at += minutes(10)
    lesson.save()
    assert client.get("/now/").json()["version"] != before
    assert "1:55:00" in cards(client)[f"lesson-{lesson.pk}"]


def test_a_lesson_whose_class_was_reminded_has_no_countdown(client: Client, lesson: Lesson, timeouts: Timeouts) -> None:
    timeouts.advance(hours=1, minutes=45)
    assert "data-due" not in cards(client)[f"lesson-{lesson.pk}"]
    timeouts.advance(minutes=15)
    assert cards(client) == {}


def test_a_cancelled_lesson_is_not_shown(client: Client, lesson: Lesson) -> None:
    Lesson.objects.update(cancelled=True)
    assert cards(client) == {}


def test_an_open_ticket_counts_down_until_it_is_escalated(client: Client, ticket: Ticket, timeouts: Timeouts) -> None:
    html = cards(client)[f"ticket-{ticket.pk}"]
    assert "is escalated in" in html
    assert '<span class="state">open</span>' in html
    assert "24:00:00" in html
    assert "secret" not in client.get("/").content.decode()
    timeouts.advance(hours=24)
    html = cards(client)[f"ticket-{ticket.pk}"]
    assert "Not answered in time: the ticket was escalated." in html
    assert "data-due" not in html


def test_a_ticket_that_is_answered_leaves_the_page(client: Client, ticket: Ticket) -> None:
    Ticket.objects.filter(pk=ticket.pk).update(state=Ticket.State.ANSWERED)
    assert cards(client) == {}


def test_only_staff_get_links_to_the_jobs(admin_client: Client, client: Client, lesson: Lesson, ticket: Ticket) -> None:
    for job in Job.objects.filter(topic__in=upcoming.TIMEOUTS.values()):
        link = f"/admin/delaytasks/job/{job.pk}/change/"
        assert link in "".join(cards(admin_client).values())
        assert link not in "".join(cards(client).values())


def test_the_number_of_cards_and_queries_is_limited(
    client: Client, timeouts: Timeouts, customer: Customer, django_assert_num_queries: Any
) -> None:
    for number in range(5):
        Lesson.objects.create(title=f"Lesson {number}", starts_at=timeouts.now + hours(number + 1))
        tickets.open_ticket(customer, "?")
    with django_assert_num_queries(3):
        found = upcoming.get_cards(0)
    assert [card.title for card in found[:3]] == ["Lesson 0", "Lesson 1", "Lesson 2"]
    assert len(found) == 6
