"""Asking the gateway about a refund, until it is settled or a person has to look."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from delaytasks import Snooze
from project.shop import gateway
from project.shop.gateway import FAILED, HANG, PENDING, SETTLED
from project.shop.models import Refund
from project.shop.services import ask_refund, pay_order
from project.shop.timeouts import check_refund, next_rung

from .conftest import reference_with


@pytest.fixture
def refund(order):
    """A pending refund of a paid order."""
    pay_order(order.pk)
    return ask_refund(order.pk)


def answered(refund, plan):
    """The same refund, under a reference that the stand-in answers by this plan."""
    refund.reference = reference_with(plan)
    refund.save()
    return refund


def test_asking_for_a_refund_promises_to_check_it(refund, live_job, settings):
    job = live_job("refund.check", f"refund:{refund.pk}")

    first = timedelta(seconds=settings.SHOP_REFUND_LADDER_SECONDS[0])
    assert job is not None
    assert abs(job.due_at - refund.created_at - first) < timedelta(seconds=1)
    assert refund.state == Refund.State.PENDING


def test_only_a_paid_order_is_refunded_and_only_once(order):
    with pytest.raises(ValueError, match="only a paid order, once"):
        ask_refund(order.pk)
    pay_order(order.pk)
    ask_refund(order.pk)
    with pytest.raises(ValueError, match="with 1 refunds"):
        ask_refund(order.pk)


@pytest.mark.parametrize(
    ("plan", "state"), [((SETTLED,), Refund.State.SETTLED), ((PENDING, FAILED), Refund.State.FAILED)]
)
def test_what_the_gateway_decided_ends_the_refund(refund, handed, stand_in, plan, state):
    answered(refund, plan)

    job = handed(refund=refund.pk)
    answers = [check_refund(job) for _ in plan]

    refund.refresh_from_db()
    assert [isinstance(answer, Snooze) for answer in answers] == [True] * (len(plan) - 1) + [False]
    assert refund.state == state
    assert refund.ended_at is not None
    assert job.finished == ["opened"]


def test_a_pending_refund_is_asked_about_again_a_little_later_each_time(refund, handed, stand_in, settings):
    settings.SHOP_REFUND_LADDER_SECONDS = [5, 30, 120]
    answered(refund, (PENDING,))

    delays = [check_refund(handed(refund=refund.pk, attempt=attempt)).delay for attempt in (1, 2, 3, 40)]

    refund.refresh_from_db()
    assert delays == [30, 120, 120, 120]
    assert refund.state == Refund.State.PENDING


def test_the_ladder_may_have_one_rung(settings):
    settings.SHOP_REFUND_LADDER_SECONDS = [7]
    assert [next_rung(attempt) for attempt in (1, 2)] == [7, 7]


def test_a_gateway_that_hangs_has_not_decided(refund, handed, stand_in):
    answered(refund, (HANG, PENDING, SETTLED))

    assert isinstance(check_refund(handed(refund=refund.pk)), Snooze)


def test_a_gateway_that_is_down_has_not_decided(refund, handed, settings):
    settings.SHOP_GATEWAY_URL = "http://127.0.0.1:1"  # nobody listens on port 1

    assert isinstance(check_refund(handed(refund=refund.pk)), Snooze)


def test_an_undecided_refund_whose_time_is_over_is_for_a_person(refund, handed, stand_in):
    answered(refund, (PENDING,))
    Refund.objects.filter(pk=refund.pk).update(ask_until=timezone.now() - timedelta(seconds=1))

    job = handed(refund=refund.pk, attempt=9)
    answer = check_refund(job)

    refund.refresh_from_db()
    assert answer is None
    assert refund.state == Refund.State.NEEDS_A_PERSON
    assert job.finished == ["opened"]


def test_a_decision_that_arrives_after_a_person_took_over_changes_nothing(refund):
    refund.end(Refund.State.NEEDS_A_PERSON)
    refund.end(Refund.State.SETTLED)

    refund.refresh_from_db()
    assert refund.state == Refund.State.NEEDS_A_PERSON


@pytest.mark.django_db(transaction=True)
def test_no_transaction_is_open_while_the_gateway_is_asked(refund, handed, monkeypatch):
    open_meanwhile = []

    def ask(reference):
        open_meanwhile.append(connection.in_atomic_block)
        return SETTLED

    monkeypatch.setattr(gateway, "ask", ask)

    check_refund(handed(refund=refund.pk))

    assert open_meanwhile == [False]
