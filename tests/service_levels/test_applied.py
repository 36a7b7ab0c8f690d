"""A service level does nothing before it is applied; a changed one continues clocks. On other kinds of models, too."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, models
from django.db.models import Q
from django.test.utils import CaptureQueriesContext

from delaytasks import handlers, sla
from delaytasks.calendars import hours
from delaytasks.clock import to_ms
from delaytasks.models import Job, SlaClock
from delaytasks.timeouts import applied_declarations, declarations, reconcile
from tests.timeouts.app.models import Customer, Device, Order, RushOrder
from tests.timeouts.test_unusual_models import tables_of

from .conftest import HOUR, MONDAY, TOPIC, at, write

pytestmark = [pytest.mark.on_both, pytest.mark.django_db]


@pytest.fixture(autouse=True)
def clock(db_clock: Any) -> Any:
    """The database's clock, on Monday at 9:00."""
    db_clock.set(to_ms(MONDAY))
    return db_clock


def live_due() -> list[Any]:
    return list(Job.objects.live().values_list("due_at", flat=True))


def test_nothing_is_written_before_it_is_applied(level: Any) -> None:
    order = Order.objects.create()
    write(order, "wait")
    reconcile.reconcile("default")
    assert not SlaClock.objects.exists()
    assert not Job.objects.exists()
    write(order, "open")
    [plan] = reconcile.plan("default")
    assert (plan.topic, plan.state, plan.make, plan.overdue) == (TOPIC, "new", 1, 0)
    assert not SlaClock.objects.exists()
    reconcile.apply("default")
    assert live_due() == [at(4)]
    write(order, "wait")
    assert level.status(order).state == "paused"


def test_a_changed_target_moves_jobs_when_it_is_applied(declare: Callable[..., Any], clock: Any) -> None:
    declare(warn=[])
    reconcile.apply("default")
    order = Order.objects.create()
    handlers.unregister(TOPIC)
    level = declare(warn=[], target=hours(6))
    clock.set(to_ms(at(1)))
    write(order, "wait")  # this process writes nothing: its terms are not the applied ones
    assert SlaClock.objects.get().state == "running"
    write(order, "open")
    assert live_due() == [at(8)]
    [plan] = reconcile.plan("default")
    assert (plan.state, plan.move) == ("changed", 1)
    reconcile.apply("default")
    assert live_due() == [at(6)]
    assert level.remaining(order) == 5 * HOUR


def test_a_row_that_is_deleted_before_a_change_is_applied_takes_its_clock_along(
    declare: Callable[..., Any], clock: Any
) -> None:
    declare()
    reconcile.apply("default")
    order = Order.objects.create()
    clock.set(to_ms(at(7)))
    write(order, "done")  # it has no live job, by which a later pass would find that it is gone
    handlers.unregister(TOPIC)
    level = declare(target=hours(6))
    pk = order.pk
    order.delete()
    reconcile.apply("default")
    assert level.remaining(Order.objects.create(pk=pk)) == 6 * HOUR


def test_levels_that_are_overdue_when_a_change_is_applied_can_be_skipped(
    declare: Callable[..., Any], clock: Any
) -> None:
    declare(warn=[])
    reconcile.apply("default")
    Order.objects.create()
    handlers.unregister(TOPIC)
    declare(warn=[0.1, 0.2, 0.9])
    clock.set(to_ms(at(3)))
    with pytest.raises(reconcile.OverdueRows):
        reconcile.apply("default")
    reconcile.apply("default", "skip")
    assert live_due() == [at(7.2)]
    assert SlaClock.objects.get().done_part == 0.2


def test_keys_and_inheritance_of_any_kind(office: Any) -> None:
    terms: dict[str, Any] = {"target": hours(8), "calendar": office}
    sla(Device, stop=Q(seen_at__isnull=False), topic="device.seen", **terms)(lambda device, event: None)
    rush = sla(RushOrder, stop=Q(state="done"), pause=Q(level=0), topic="rush.answer", **terms)(lambda o, e: None)
    with applied_declarations.automatically():
        device, order = Device.objects.create(id=uuid.uuid4()), RushOrder.objects.create()
        assert set(Job.objects.live().values_list("key", flat=True)) == {f"device:{device.pk}", f"rushorder:{order.pk}"}
        write(Order.objects.get(), "done")  # its parent row alone
        status = rush.status(order)
        assert status is not None
        assert status.state == "stopped"


@pytest.mark.django_db(transaction=True)
def test_a_row_of_a_child_model_with_its_own_primary_key_has_the_clock_of_its_parent_row(
    level: Any, clock: Any
) -> None:
    fields = {"__module__": __name__, "Meta": type("Meta", (), {"app_label": "declared"})}
    number = models.AutoField(primary_key=True)
    link = models.OneToOneField(Order, models.CASCADE, parent_link=True)
    van: Any = type("Van", (Order,), {**fields, "number": number, "order_ptr": link})
    with tables_of(van), applied_declarations.automatically():
        other = Order.objects.create()
        clock.set(to_ms(at(3)))
        row = van.objects.create(number=other.pk)
        assert row.id != row.pk
        assert (level.remaining(row), level.remaining(other)) == (8 * HOUR, 5 * HOUR)
        assert list(level.statuses([row])) == [str(row.id)]
        write(row, "wait")
        assert [len(level.history(each)) for each in (row, other)] == [1, 0]


def test_a_condition_may_follow_a_foreign_key(declare: Callable[..., Any]) -> None:
    level = declare(start=None, pause=Q(customer__active=False))
    with applied_declarations.automatically():
        customer = Customer.objects.create(active=False)
        order, other = Order.objects.create(customer=customer), Order.objects.create()
        assert (level.status(order).state, level.status(other).state) == ("paused", "running")
        Customer.objects.update(active=True)
        reconcile.reconcile("default")
        assert level.status(order).state == "running"


def test_a_calendar_without_the_needed_time_makes_no_job(
    declare: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    level = declare()
    monkeypatch.setattr("delaytasks.calendars.calendar.HORIZON_DAYS", 2)  # as if staff had closed the office
    monkeypatch.setattr("delaytasks.db.calendar_days.CACHE_SECONDS", 0.0)
    object.__setattr__(level.declaration, "target", timedelta(hours=400))
    with applied_declarations.automatically():
        order = Order.objects.create()
        assert not Job.objects.exists()
        assert level.status(order).breaches_at is None
    assert "has too little open time" in caplog.text


def test_a_save_that_changes_no_state_writes_nothing_and_reads_little(level: Any) -> None:
    reconcile.apply("default")
    order = Order.objects.create()
    with CaptureQueriesContext(connection) as queries:
        order.save(update_fields=["note"])  # no condition uses it
    assert len(queries) == 1
    statements = statements_of(order)
    assert [sql.split()[0] for sql in statements if not sql.lstrip().startswith(("SELECT", "WITH"))] == ["UPDATE"]
    assert len(statements) == 6  # with the save itself


def test_a_save_that_pauses_reads_each_table_once(level: Any) -> None:
    reconcile.apply("default")
    order = Order.objects.create()
    order.state = "wait"
    assert len(statements_of(order)) == 10  # the six; clock, segment, job and its event are written


def statements_of(order: Order) -> list[str]:
    """Return the SQL of a save, without savepoints, and without calendars: their exceptions are cached for a second."""
    with CaptureQueriesContext(connection) as queries:
        order.save()
    sent = (each["sql"].lstrip() for each in queries)
    return [sql for sql in sent if not sql.startswith(("SAVEPOINT", "RELEASE")) and "delaytasks_calendarday" not in sql]


def test_a_topic_that_is_forgotten_takes_its_clocks_along(level: Any) -> None:
    reconcile.apply("default")
    order = Order.objects.create()
    write(order, "wait")
    assert level.history(order)
    handlers.unregister(TOPIC)
    declarations.unregister(TOPIC)
    applied_declarations.forget(TOPIC, "default")
    assert not SlaClock.objects.exists()


def test_another_model_with_the_same_topic_begins_at_zero(level: Any, office: Any, clock: Any) -> None:
    reconcile.apply("default")
    order = Order.objects.create()
    clock.set(to_ms(at(3)))
    write(order, "wait")
    handlers.unregister(TOPIC)
    terms: dict[str, Any] = {"target": hours(8), "calendar": office, "topic": TOPIC}
    other = sla(Customer, stop=Q(active=False), **terms)(lambda row, event: None)
    reconcile.apply("default")
    customer = Customer.objects.create(pk=order.pk)
    assert other.remaining(customer) == 8 * HOUR
    assert other.history(customer) == []
    customer.delete()
    assert SlaClock.objects.get().subject_label == "declared.order"


def test_two_service_levels_of_one_topic_are_reported(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "clashes", [])
    other = sla(Order, target=hours(1), stop=Q(state="done"), topic=TOPIC)(lambda order, event: None)
    assert [f"Topic {TOPIC!r} has two handlers" in each for each in handlers.clashes] == [True]
    assert declarations.find(TOPIC) is level.declaration is not other.declaration
