"""Declared timeouts in the test kit: in force without apply, on the virtual clock."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Q
from django.utils import timezone

from delaytasks import Snooze, handler, handlers, jobs_of, schedule, timeout
from delaytasks.testing import minutes
from delaytasks.timeouts import applied_declarations, reconcile

from .app.models import Order
from .conftest import HALF_HOUR


@pytest.fixture
def _closing() -> None:
    @timeout(Order, on="created_at", after=timedelta(minutes=30), while_=Q(state="open"), topic="declared.close")
    def close(order: Order, job: Any) -> None:
        Order.objects.filter(pk=order.pk).update(state="closed")


@pytest.mark.usefixtures("_closing")
def test_a_declared_timeout_runs_in_virtual_time(timeouts: Any) -> None:
    order = Order.objects.create(created_at=timeouts.now)
    timeouts.assert_scheduled("declared.close", subject=order, within=HALF_HOUR)
    assert not timeouts.advance(minutes=29, seconds=59)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    order.refresh_from_db()
    assert order.state == "closed"
    assert jobs_of(order).count() == 1


@pytest.fixture
def earlier_order(db: None, _closing: None) -> Order:
    return Order.objects.create(created_at=timezone.now())


def test_a_row_that_was_saved_before_the_kit_began_has_its_job(earlier_order: Order, timeouts: Any) -> None:
    """As after `timeouts apply`: rows of setUpTestData() and of earlier fixtures are there before the declarations."""
    timeouts.assert_scheduled("declared.close", subject=earlier_order, within=HALF_HOUR)


@pytest.mark.usefixtures("_closing")
def test_writes_without_signals_are_reconciled_as_by_workers(timeouts: Any) -> None:
    Order.objects.bulk_create([Order(created_at=timeouts.now) for _ in range(3)])
    timeouts.assert_not_scheduled("declared.close")
    timeouts.advance(minutes=10)
    Order.objects.filter(pk=Order.objects.first().pk).update(state="paid")
    Order.objects.filter(pk=Order.objects.last().pk).update(created_at=timeouts.now)
    timeouts.reconcile()
    assert timeouts.advance(minutes=25).outcomes == {"finished": 1}
    assert timeouts.advance(minutes=5).outcomes == {"finished": 1}


def test_a_due_time_that_a_snoozed_attempt_has_saved_does_not_wait_for_a_reconciliation(timeouts: Any) -> None:
    called: list[Any] = []

    @timeout(Order, on="created_at", topic="declared.close")
    def close(order: Order, job: Any) -> Snooze | None:
        called.append(timeouts.now)
        if len(called) == 2:
            return None
        order.created_at += minutes(1)
        order.save()
        return Snooze(7200)

    begins = timeouts.now
    Order.objects.create(created_at=begins)
    assert timeouts.advance(minutes=1).outcomes == {"snoozed": 1, "finished": 1}
    assert called == [begins, begins + minutes(1)]


@pytest.mark.usefixtures("_closing")
def test_what_a_handler_writes_without_a_signal_is_reconciled_within_one_advance(timeouts: Any) -> None:
    paid, late = [Order.objects.create(created_at=timeouts.now + HALF_HOUR) for _ in range(2)]
    begins, at = timeouts.now, {}

    @handler("bank.file")
    def read_the_banks_file(job: Any) -> None:
        Order.objects.filter(pk=paid.pk).update(state="paid")
        Order.objects.filter(pk=late.pk).update(created_at=begins)
        Order.objects.bulk_create([Order(created_at=begins - HALF_HOUR)])

    try:
        timeouts.advance(minutes=3)  # the first pass is at 0:00
        schedule("bank.file", "today", delay=minutes(8))  # at 0:11
        at = {f"{run.key} {run.outcome}": run.at - begins for run in timeouts.advance(hours=2)}
    finally:
        handlers.unregister("bank.file")
    assert at == {
        "today finished": minutes(11),
        f"order:{late.pk + 1} finished": minutes(15),  # the pass after the write finds it
        f"order:{late.pk} finished": minutes(30),  # not as late as at 1:00
    }
    timeouts.assert_not_scheduled("declared.close", subject=paid)


@pytest.mark.usefixtures("_closing")
def test_a_pass_without_a_write_before_it_is_left_out(timeouts: Any, monkeypatch: Any) -> None:
    passes = []
    monkeypatch.setattr(reconcile, "reconcile", lambda using: passes.append(timeouts.now))
    begins = timeouts.now
    Order.objects.create(created_at=begins)
    timeouts.advance(days=365)
    assert passes == [begins, begins + minutes(30)]  # the job runs at the moment of a pass, and before it


@pytest.mark.usefixtures("_closing")
@pytest.mark.timeouts(reconciles=False)
def test_a_long_replay_reconciles_only_when_it_is_told(timeouts: Any) -> None:
    Order.objects.bulk_create([Order(created_at=timeouts.now)])
    assert not timeouts.advance(hours=1)
    timeouts.assert_not_scheduled("declared.close")
    timeouts.reconcile()
    assert timeouts.run_due().outcomes == {"finished": 1}


@pytest.mark.usefixtures("_closing")
def test_a_move_that_only_the_run_notices_is_reported_as_rescheduled(timeouts: Any) -> None:
    Order.objects.create(created_at=timeouts.now)
    timeouts.advance(minutes=29)
    timeouts.reconcile()
    Order.objects.update(created_at=timeouts.now)
    assert timeouts.advance(minutes=2).outcomes == {"rescheduled": 1}


@pytest.mark.django_db
def test_outside_of_the_kit_declarations_must_be_applied() -> None:
    assert not applied_declarations.is_automatic()
