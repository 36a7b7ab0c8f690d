"""Checking a refund with the gateway until it is decided or needs review."""

import itertools
from datetime import timedelta

import pytest
from django.db import connection

from delaytasks.outcomes import ErrorCode
from project.shop import gateway
from project.shop.gateway import FAILED, HANG, PENDING, SETTLED
from project.shop.models import Refund
from project.shop.services import pay_order, request_refund
from project.shop.timeouts import check_refund

from ..conftest import reference_with


@pytest.fixture
def refund(order):
    """A pending refund of a paid order."""
    pay_order(order.pk)
    return request_refund(order.pk)


def follow_plan(refund, plan):
    """Give the refund a reference for which the fake gateway follows this plan."""
    refund.reference = reference_with(plan)
    refund.save()
    return refund


def test_requesting_a_refund_schedules_its_first_check(refund, live_job, settings):
    job = live_job("refund.check", f"refund:{refund.pk}")

    first = timedelta(seconds=settings.SHOP_REFUND_LADDER_SECONDS[0])
    assert job is not None
    assert abs(job.due_at - refund.created_at - first) < timedelta(seconds=1)
    assert refund.state == Refund.State.PENDING


def test_only_a_paid_order_can_be_refunded_and_only_once(order):
    with pytest.raises(ValueError, match="must be paid and without one"):
        request_refund(order.pk)
    pay_order(order.pk)
    request_refund(order.pk)
    with pytest.raises(ValueError, match="with 1 refunds"):
        request_refund(order.pk)


@pytest.mark.parametrize(
    ("plan", "state"), [((SETTLED,), Refund.State.SETTLED), ((PENDING, FAILED), Refund.State.FAILED)]
)
def test_a_decision_of_the_gateway_ends_the_refund(refund, running_job, fake_gateway, plan, state):
    follow_plan(refund, plan)

    job = running_job(refund=refund.pk)
    results = [check_refund(job) for _ in plan]

    refund.refresh_from_db()
    assert results == [False] * (len(plan) - 1) + [True]
    assert refund.state == state
    assert refund.ended_at is not None
    assert job.calls == ["finishing"]


def test_a_refund_stays_pending_while_the_gateway_hangs(refund, running_job, fake_gateway):
    follow_plan(refund, (HANG, PENDING, SETTLED))

    assert check_refund(running_job(refund=refund.pk)) is False


def test_a_refund_stays_pending_while_the_gateway_is_down(refund, running_job, settings):
    settings.SHOP_GATEWAY_URL = "http://127.0.0.1:1"  # nothing listens on port 1

    assert check_refund(running_job(refund=refund.pk)) is False


@pytest.fixture
def states(monkeypatch) -> list[str]:
    """What the gateway answers, one after the other; then pending."""
    answers: list[str] = []
    monkeypatch.setattr(gateway, "get_refund_state", lambda reference: answers.pop(0) if answers else PENDING)
    return answers


def seconds_between(runs, start):
    times = [start, *(run.at for run in runs)]
    return [round((later - earlier).total_seconds()) for earlier, later in itertools.pairwise(times)]


def test_a_pending_refund_is_checked_after_growing_delays_and_a_crash_skips_none(timeouts, order, states):
    pay_order(order.pk)
    start = timeouts.now
    request_refund(order.pk)
    first = timeouts.advance(seconds=40)
    assert seconds_between(first, start) == [5, 30]
    timeouts.die_in("refund.check")
    rest = timeouts.advance(hours=5)
    assert rest.outcomes["died"] == 1
    assert seconds_between(rest, first[-1].at) == [120, 30, 0, 600, 1800, 7200, 7200], "30: the TTR"


def test_a_refund_without_a_decision_in_time_needs_review(timeouts, order, states, settings):
    pay_order(order.pk)
    start = timeouts.now
    refund = request_refund(order.pk)
    give_up = timedelta(seconds=settings.SHOP_REFUND_GIVE_UP_SECONDS)
    assert not timeouts.advance(give_up - timedelta(seconds=1)).outcomes.get("finished")
    refund.refresh_from_db()
    assert refund.state == Refund.State.PENDING
    (last,) = timeouts.advance(seconds=1)
    refund.refresh_from_db()
    assert (last.at, last.error) == (start + give_up, ErrorCode.GAVE_UP)
    assert refund.state == Refund.State.NEEDS_REVIEW


def test_a_decision_at_the_deadline_counts(timeouts, order, states, settings):
    pay_order(order.pk)
    refund = request_refund(order.pk)
    timeouts.advance(seconds=settings.SHOP_REFUND_GIVE_UP_SECONDS - 1)
    states.append(SETTLED)
    timeouts.advance(seconds=1)
    refund.refresh_from_db()
    assert refund.state == Refund.State.SETTLED


def test_a_decision_after_the_refund_needs_review_changes_nothing(refund):
    refund.end(Refund.State.NEEDS_REVIEW)
    refund.end(Refund.State.SETTLED)

    refund.refresh_from_db()
    assert refund.state == Refund.State.NEEDS_REVIEW


@pytest.mark.usefixtures("transactional_db")
def test_no_transaction_is_open_during_the_call_to_the_gateway(refund, running_job, monkeypatch):
    in_transaction = []

    def get_refund_state(reference):
        in_transaction.append(connection.in_atomic_block)
        return SETTLED

    monkeypatch.setattr(gateway, "get_refund_state", get_refund_state)

    check_refund(running_job(refund=refund.pk))

    assert in_transaction == [False]
