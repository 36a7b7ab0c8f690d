"""Declared timeouts in the test kit: in force without apply, on the virtual clock."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models import Q

from delaytasks import jobs_of, timeout
from delaytasks.timeouts import applied

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
    assert not applied.is_automatic()
