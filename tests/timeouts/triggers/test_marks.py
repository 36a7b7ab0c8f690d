"""Draining the marks: each change becomes a change of the jobs, once, whoever holds locks or drains too."""

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models import F, Q

from delaytasks import conf, models
from delaytasks.celery.mover_thread import MoverThread
from delaytasks.maintenance import guard
from delaytasks.models import Job, TimeoutMark
from delaytasks.timeouts import applied_declarations, reconcile
from delaytasks.timeouts.declarations import Declaration
from delaytasks.timeouts.triggers import installation, marks
from tests.support.servers import wait_until

from ..app.models import Customer, Device, Invoice, Order, Reading, RushOrder, Ticket
from ..conftest import HALF_HOUR, START, live
from .conftest import OtherSession

pytestmark = [pytest.mark.on_both, pytest.mark.usefixtures("remove_triggers", "automatic", "db_clock")]
on_postgresql = pytest.mark.only_on("postgresql")
Declare = Callable[..., Declaration]
OPEN = Q(state="open")


def install(using: str = "default") -> None:
    """Install all triggers, and drain the marks of all rows."""
    installation.install(using)
    marks.drain(using)


def drain() -> int:
    return marks.drain("default")


def execute(sql: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def add_orders(count: int, **fields: Any) -> list[Order]:
    return Order.objects.bulk_create([Order(created_at=START, **fields) for _ in range(count)])


def mark_an_order_and_a_ticket(declare: Declare) -> None:
    declare(Order, topic="declared.close", after=HALF_HOUR)
    declare(Ticket, "opened_at", topic="ticket.rise")
    install()
    add_orders(1)
    Ticket.objects.create(code="T1", opened_at=START)


def keys(*rows: Any) -> list[str]:
    return sorted(f"{type(row)._meta.model_name}:{row.pk}" for row in rows)


# What becomes of changes


def test_bulk_changes_change_the_jobs(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    first, second, third = add_orders(3)
    assert drain() == 3
    assert sorted(live()) == keys(first, second, third)

    Order.objects.filter(pk=first.pk).update(state="paid")
    Order.objects.filter(pk=second.pk).update(created_at=F("created_at") + timedelta(hours=1))
    execute("DELETE FROM declared_order WHERE id = %s", [third.pk])
    assert drain() == 3
    assert live() == {keys(second)[0]: START + timedelta(minutes=90)}

    second.state, first.state = "paid", "open"
    Order.objects.bulk_update([first, second], ["state"])
    drain()
    assert sorted(live()) == keys(first)
    assert drain() == 0
    assert not TimeoutMark.objects.exists()


@pytest.mark.parametrize("model", [Ticket, Device, Reading])
def test_each_kind_of_key_is_drained(declare: Declare, model: Any) -> None:
    fields = {Ticket: "opened_at", Device: "seen_at", Reading: "taken_at"}
    declare(model, fields[model], after=HALF_HOUR)
    install()
    pk = {Ticket: "a b'c", Device: "00000000-0000-0000-0000-00000000000f", Reading: "1.50"}[model]
    model.objects.bulk_create([model(pk=pk, **{fields[model]: START})])
    drain()
    assert list(live()) == [f"{model._meta.model_name}:{pk}"]
    model.objects.update(**{fields[model]: None})
    drain()
    assert live() == {}


def test_two_declarations_on_a_table_share_its_marks(declare: Declare) -> None:
    declare(Order, topic="declared.close", after=HALF_HOUR, while_=OPEN)
    declare(Order, topic="order.remind", after=timedelta(minutes=5), while_=Q(note=""))
    install()
    add_orders(1)
    assert drain() == 1
    assert Job.objects.filter(ended_at=None).count() == 2
    Order.objects.update(note="reminded")
    drain()
    assert Job.objects.get(ended_at=None).topic == "declared.close"


def test_a_key_that_no_row_can_have_is_dropped(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR)
    TimeoutMark.objects.create(table_name="declared_order", row_pk="abc")
    assert drain() == 1


def test_marks_of_unknown_tables_wait_for_a_process_that_knows_them(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR)
    TimeoutMark.objects.create(table_name="newer_table", row_pk="1")
    assert drain() == 0
    assert TimeoutMark.objects.count() == 1


# Relations and inheritance


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "PAGE", 4)


def test_a_changed_related_row_is_marked_and_fanned_out_in_pages(
    declare: Declare, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(Order, after=HALF_HOUR, while_=Q(customer__active=True))
    install()
    customers = Customer.objects.bulk_create([Customer(active=False) for _ in range(3)])
    orders = [order for each in customers for order in add_orders(5, customer=each)]
    drain()
    assert live() == {}

    Customer.objects.update(active=True)
    assert TimeoutMark.objects.count() == 3, "the saving transaction marks the changed rows alone"
    sizes: list[int] = []
    sync = marks.sync
    monkeypatch.setattr(marks, "sync", lambda *args, **kwargs: sizes.append(len(args[1])) or sync(*args, **kwargs))
    assert drain() == 3
    assert sorted(live()) == keys(*orders)
    assert sizes == [4, 4, 4, 3]
    Customer.objects.filter(pk=customers[0].pk).update(active=False)
    drain()
    assert sorted(live()) == keys(*orders[5:])


def test_a_fan_out_goes_on_in_another_process(declare: Declare, few_at_once: None) -> None:
    declare(Order, after=HALF_HOUR, while_=Q(customer__active=True))
    install()
    customer = Customer.objects.create(active=False)
    orders = add_orders(10, customer=customer)
    drain()
    Customer.objects.update(active=True)
    counts = []
    while marks.drain("default", seconds=0) == 0:
        counts.append(len(live()))
        marks._positions.clear()  # a process that has read nothing yet
    assert counts == [4, 8]
    assert sorted(live()) == keys(*orders)


def test_the_columns_are_watched_from_which_a_generated_one_is_computed(declare: Declare) -> None:
    declare(Invoice, "sent_at", while_=Q(left__gt=0) & (Q(cancels=None) | Q(cancels__left=0)))
    install()
    first = Invoice.objects.create(sent_at=START)
    second = Invoice.objects.create(sent_at=START, cancels=first)
    drain()
    assert sorted(live()) == keys(first)
    Invoice.objects.filter(pk=first.pk).update(paid=10)
    drain()
    assert sorted(live()) == keys(second)


def test_columns_of_parent_tables_are_watched(declare: Declare) -> None:
    declare(RushOrder, "promised_at", topic="rush.late", while_=OPEN & Q(customer__active=True))
    assert {"declared_order", "declared_rushorder", "declared_customer"} == set(installation.install("default"))
    customer = Customer.objects.create()
    rush = RushOrder.objects.create(created_at=START, promised_at=START, customer=customer)
    drain()
    assert sorted(live()) == keys(rush)
    Order.objects.update(state="paid")
    drain()
    assert live() == {}
    Order.objects.update(state="open")
    drain()
    Customer.objects.update(active=False)
    drain()
    assert live() == {}


def test_a_mark_of_all_rows_is_drained_in_pages(declare: Declare, few_at_once: None) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    orders = add_orders(10)
    TimeoutMark.objects.create(table_name="declared_order")
    assert drain() == 1
    assert sorted(live()) == keys(*orders)


def test_a_mark_of_all_related_rows_reaches_all_rows(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR, while_=Q(customer__active=True))
    orders = add_orders(2, customer=Customer.objects.create())
    TimeoutMark.objects.create(table_name="declared_customer")
    assert drain() == 1
    assert sorted(live()) == keys(*orders)


# Locks and races


@on_postgresql
def test_a_row_with_an_uncommitted_payment_keeps_its_mark(declare: Declare, other_session: OtherSession) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    order, other = add_orders(2)
    other_session.execute(f"UPDATE declared_order SET state = 'paid' WHERE id = {order.pk}")
    assert drain() == 1
    assert sorted(live()) == keys(other)
    assert TimeoutMark.objects.get().row_pk == str(order.pk)
    other_session.commit()
    assert drain() == 2
    assert sorted(live()) == keys(other)


@on_postgresql
def test_locked_rows_do_not_hold_up_later_marks(
    declare: Declare, other_session: OtherSession, few_at_once: None
) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    locked = add_orders(4)
    other_session.execute("SELECT 1 FROM declared_order FOR UPDATE")
    free = add_orders(4)
    assert drain() == 4
    assert sorted(live()) == keys(*free)
    other_session.commit()
    assert drain() == 4
    assert sorted(live()) == keys(*locked, *free)


@on_postgresql
def test_a_locked_row_of_a_fan_out_gets_a_mark_of_its_own(declare: Declare, other_session: OtherSession) -> None:
    declare(Order, after=HALF_HOUR, while_=Q(customer__active=True))
    install()
    customer = Customer.objects.create(active=False)
    locked, free = add_orders(2, customer=customer)
    drain()
    Customer.objects.update(active=True)
    other_session.execute(f"SELECT 1 FROM declared_order WHERE id = {locked.pk} FOR UPDATE")
    assert drain() == 1
    assert sorted(live()) == keys(free)
    assert TimeoutMark.objects.get().row_pk == str(locked.pk)
    other_session.commit()
    drain()
    assert sorted(live()) == keys(locked, free)


@on_postgresql
def test_the_drain_waits_for_nobody_who_refers_to_its_rows(declare: Declare, other_session: OtherSession) -> None:
    """Inserting a row with a foreign key locks the row that it refers to FOR KEY SHARE."""
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    (order,) = add_orders(1)
    other_session.execute(
        "SET CONSTRAINTS ALL IMMEDIATE;"  # otherwise the row is locked at the commit
        f"INSERT INTO declared_line (order_id) VALUES ({order.pk})"
    )
    assert drain() == 1
    assert sorted(live()) == keys(order)


@on_postgresql
def test_a_change_during_the_drain_is_not_lost(
    declare: Declare, other_session: OtherSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(Order, after=HALF_HOUR, while_=Q(customer__active=True))
    install()
    customer = Customer.objects.create(active=False)
    add_orders(1, customer=customer)
    drain()
    Customer.objects.update(active=True)
    sync = marks.sync

    def change_after_sync(*args: Any, **kwargs: Any) -> Any:
        synced = sync(*args, **kwargs)
        monkeypatch.setattr(marks, "sync", sync)
        other_session.execute("UPDATE declared_customer SET active = false")
        other_session.commit()
        return synced

    monkeypatch.setattr(marks, "sync", change_after_sync)
    assert drain() == 1
    assert len(live()) == 1
    assert TimeoutMark.objects.count() == 1
    drain()
    assert live() == {}


def test_two_drains_at_once_make_each_job_once(declare: Declare, few_at_once: None) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    orders = add_orders(40)
    begin, deleted, errors = threading.Barrier(2), [], []

    def drain_in_thread() -> None:
        try:
            begin.wait(10)
            deleted.extend(drain() for _ in range(5))
        except Exception as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=drain_in_thread) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == []
    assert sum(deleted) == 40
    assert sorted(live()) == keys(*orders)
    assert Job.objects.count() == 40


@on_postgresql
def test_two_drains_at_once_read_different_marks(
    declare: Declare, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    orders = add_orders(8)
    sync = marks.sync
    deleted: list[int] = []

    def drain_and_close() -> None:
        deleted.append(drain())
        connection.close()

    def sync_while_another_drains(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(marks, "sync", sync)
        other = threading.Thread(target=drain_and_close)
        other.start()
        other.join(30)
        return sync(*args, **kwargs)

    monkeypatch.setattr(marks, "sync", sync_while_another_drains)
    assert drain() == 4
    assert deleted == [4]
    assert sorted(live()) == keys(*orders)


# Which process


def test_a_process_with_another_fingerprint_leaves_the_marks(declare: Declare, monkeypatch: pytest.MonkeyPatch) -> None:
    close = declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    add_orders(1)
    monkeypatch.setattr(applied_declarations, "is_automatic", lambda: False)
    row = models.Declaration.objects.create(topic=close.topic, fingerprint="of an older version", applied_at=START)
    assert drain() == 0
    assert TimeoutMark.objects.count() == 1
    row.fingerprint = close.fingerprint
    row.save()
    assert drain() == 1
    assert len(live()) == 1


def test_marks_are_deleted_before_a_declaration_is_first_applied(
    declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Applying it looks at all rows."""
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    add_orders(1)
    monkeypatch.setattr(applied_declarations, "is_automatic", lambda: False)
    assert drain() == 1
    assert live() == {}


def test_a_declaration_that_cannot_be_synced_holds_up_no_other(
    declare: Declare, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    mark_an_order_and_a_ticket(declare)
    sync = marks.sync

    def fail_for_orders(declaration: Declaration, *args: Any, **kwargs: Any) -> Any:
        if declaration.model is Order:
            execute("SELECT no_such_column FROM declared_order")
        return sync(declaration, *args, **kwargs)

    monkeypatch.setattr(marks, "sync", fail_for_orders)
    assert drain() == 1
    assert list(live()) == ["ticket:T1"]
    assert "declared.close: 1 changed rows could not be synced" in caplog.text
    monkeypatch.setattr(marks, "sync", sync)
    assert drain() == 1
    assert len(live()) == 2


@on_postgresql
def test_a_job_whose_row_is_locked_holds_up_no_other_row(declare: Declare, other_session: OtherSession) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    moved, closed, free = add_orders(3)
    drain()
    other_session.execute(
        "SELECT 1 FROM delaytasks_job WHERE key IN " + str((f"order:{moved.pk}", f"order:{closed.pk}")) + " FOR UPDATE"
    )
    Order.objects.filter(pk=closed.pk).update(state="closed")
    Order.objects.exclude(pk=closed.pk).update(created_at=F("created_at") + timedelta(hours=1))
    new = add_orders(5)
    assert drain() == 6
    later = START + timedelta(minutes=90)
    assert live() == {
        **dict.fromkeys(keys(moved, closed, *new), START + HALF_HOUR), **dict.fromkeys(keys(free), later)
    }  # fmt: skip
    other_session.commit()
    assert drain() == 2
    assert live() == {**dict.fromkeys(keys(*new), START + HALF_HOUR), **dict.fromkeys(keys(moved, free), later)}


@on_postgresql
def test_a_table_that_a_migration_has_locked_holds_up_no_other(
    declare: Declare, other_session: OtherSession, stage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    mark_an_order_and_a_ticket(declare)
    other_session.execute("LOCK TABLE declared_order")
    execute("SET lock_timeout = '20s'")  # longer than a pass waits
    for _ in range(2):  # the first one may end after the locked table
        stage.guard()
    assert list(live()) == ["ticket:T1"]
    assert "could not be reconciled" not in caplog.text, "then it would rest"
    other_session.commit()
    stage.guard()
    assert len(live()) == 2
    execute("RESET lock_timeout")


# What triggers do not see


@on_postgresql
def test_the_reconciliation_finds_what_triggers_do_not_see(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    first, second = add_orders(2)
    drain()
    with transaction.atomic():
        execute("SET LOCAL session_replication_role = replica")
        Order.objects.filter(pk=first.pk).update(state="paid")
    assert not TimeoutMark.objects.exists()
    reconcile.reconcile("default")
    assert sorted(live()) == keys(second)
    execute("TRUNCATE declared_order CASCADE")
    assert not TimeoutMark.objects.exists()
    reconcile.reconcile("default")
    assert live() == {}


# The guard


def test_each_guard_drains_for_a_limited_time(
    declare: Declare, few_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    orders = add_orders(10)
    monkeypatch.setattr(marks, "PASS_SECONDS", 0)
    counts = []
    for _ in range(3):
        guard.guard("default")
        counts.append(TimeoutMark.objects.count())
    assert counts == [6, 2, 0]
    assert sorted(live()) == keys(*orders)


def test_without_declarations_the_guard_asks_nothing(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        marks.drain_for_a_while("default")


def test_without_marks_the_guard_asks_once(declare: Declare, django_assert_num_queries: Any) -> None:
    declare(Order, after=HALF_HOUR)
    with django_assert_num_queries(1):
        marks.drain_for_a_while("default")


def test_a_workers_mover_thread_drains_within_two_seconds_of_the_commit(declare: Declare) -> None:
    declare(Order, after=HALF_HOUR, while_=OPEN)
    install()
    assert conf.get().guard_tick_ms <= 2000
    thread = MoverThread("default")
    thread.start()
    try:
        (order,) = add_orders(1)
        wait_until(live, seconds=10, what="the job of a new row")
        Order.objects.update(state="paid")
        wait_until(lambda: not live(), seconds=10, what="the end of the job of a paid order")
        wait_until(lambda: not TimeoutMark.objects.exists(), seconds=10, what="the deletion of the marks")
    finally:
        thread.stop()
        thread.join(10)
        thread.join(30)
    assert not thread.is_alive(), "it would drain the marks of the next tests"
    assert Job.objects.get().key == f"order:{order.pk}"
