"""Reconciliation: passes over the rows of a model, a page at a time, repair what no signal has told."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.db.models import Q

from delaytasks.models import Declaration as Applied
from delaytasks.models import Job
from delaytasks.timeouts import reconcile
from delaytasks.timeouts.declarations import Declaration
from delaytasks.timeouts.reconcile import DONE, JOBS, ROWS, plan

from .app.models import Device, Order, Reading, Ticket
from .conftest import HALF_HOUR, START, live

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("automatic", "db_clock")]
Declare = Callable[..., Declaration]


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: Any) -> None:
    monkeypatch.setattr(reconcile, "PAGE", 3)
    monkeypatch.setattr(reconcile, "_resting", {})
    monkeypatch.setattr(reconcile, "_logged", {})


def test_a_pass_repairs_what_no_signal_has_told(declare: Declare) -> None:
    close = declare(Order, after="window", while_=Q(state="open"))
    Order.objects.bulk_create([Order(created_at=START) for _ in range(8)])
    assert reconcile.reconcile("default")[close.topic][:3] == (8, 0, 0)
    first, second, third, *_ = Order.objects.order_by("pk")
    Order.objects.filter(pk=first.pk).update(state="paid")
    Order.objects.filter(pk=second.pk).update(window=2 * HALF_HOUR)
    Order.objects.filter(pk=third.pk)._raw_delete("default")
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO declared_order (state, created_at, \"window\", note) SELECT state, created_at, "
                       "\"window\", 'raw' FROM declared_order WHERE id = %s", [second.pk])  # fmt: skip
    assert [tuple(each)[2:] for each in plan("default")] == [(1, 1, 2, 0)]
    assert reconcile.reconcile("default")[close.topic][:3] == (1, 1, 2)
    assert reconcile.reconcile("default")[close.topic][:3] == (0, 0, 0)


@pytest.mark.parametrize(
    ("model", "on", "rows"),
    [(Ticket, "opened_at", [{"code": each} for each in ("b", "A", "ä", "a", "Z b", "0", "é")]),
     (Device, "seen_at", [{} for _ in range(7)]),
     (Reading, "taken_at", [{"at": each} for each in (10, 9, "1.5", 100, "-3")])],
)  # fmt: skip
def test_each_kind_of_primary_key_is_passed_over_once(declare: Declare, model: Any, on: str, rows: list[Any]) -> None:
    declared = declare(model, on)
    model._base_manager.bulk_create([model(**row, **{on: START}) for row in rows])
    assert reconcile.reconcile("default")[declared.topic][:3] == (len(rows), 0, 0)
    model._base_manager.all()._raw_delete("default")
    assert reconcile.reconcile("default")[declared.topic][:3] == (0, 0, len(rows))


def test_the_guard_continues_a_pass_and_begins_the_next_one_after_reconcile_seconds(
    declare: Declare, db_clock: Any, stage: Any, monkeypatch: Any
) -> None:
    """Each guard has time for one page: three pages of rows, then three of jobs."""
    declare(Order)
    Order.objects.bulk_create([Order(created_at=START) for _ in range(8)])
    monkeypatch.setattr(reconcile, "STEP_SECONDS", 0)

    def guard() -> tuple[int, str]:
        stage.guard()
        return len(live()), Applied.objects.get().phase

    assert [guard() for _ in range(6)] == [
        (3, ROWS), (6, ROWS), (8, JOBS), (8, JOBS), (8, JOBS), (8, DONE)
    ]  # fmt: skip
    Order.objects.bulk_create([Order(created_at=START)])
    assert guard() == (8, DONE)
    db_clock.advance(seconds=300)
    assert [guard() for _ in range(3)] == [(8, ROWS), (8, ROWS), (9, ROWS)]


def test_a_declaration_that_fails_does_not_stop_the_guard_or_others(
    declare: Declare, stage: Any, monkeypatch: Any, caplog: Any
) -> None:
    from delaytasks.timeouts import statements

    declare(Order)
    declare(Device, "seen_at", "device.check")
    Order.objects.bulk_create([Order(created_at=START)])
    Device.objects.create(seen_at=START)
    found = statements.differences_sql

    def failing(declaration: Declaration, *args: Any, **options: Any) -> Any:
        sql, params = found(declaration, *args, **options)
        return ("SELECT no_such_column FROM (" + sql + ") x" if declaration.topic == "device.check" else sql), params

    monkeypatch.setattr(statements, "differences_sql", failing)
    monkeypatch.setattr(reconcile, "STEP_SECONDS", 0)
    for _ in range(3):  # two pages of one, and one of the other
        stage.guard()
    assert len(live()) == 1
    assert "device.check: its rows could not be reconciled" in caplog.text


@pytest.mark.parametrize("deletes", ["retention", "archive"])
def test_the_newest_job_of_each_key_whose_row_still_matches_is_kept(
    declare: Declare, db_clock: Any, deletes: str
) -> None:
    from datetime import timedelta

    from delaytasks.maintenance.retention import Retention, prune
    from delaytasks.states import State
    from delaytasks.timeouts import retained_jobs

    close = declare(Order, while_=Q(state="open"))
    kept, paid, gone = [Order.objects.create(created_at=START) for _ in range(3)]
    for _ in range(2):
        reconcile.reconcile("default")
        Job.objects.filter(ended_at=None).update(state=State.FINISHED, ended_at=START)
        Order.objects.update(created_at=START + HALF_HOUR)
    Order.objects.filter(pk=paid.pk).update(state="paid")
    gone.delete()
    db_clock.advance(seconds=86_400)
    if deletes == "retention":
        list(prune("default", Retention({"*": {"ended": timedelta(hours=1)}})))
    else:
        retained_jobs.forget_others("default", START + timedelta(hours=1))
        Job.objects.filter(declared_due=None).delete()  # as the archive does: see test_archive.py
    assert [job.key for job in Job.objects.all()] == [f"order:{kept.pk}"]
    assert reconcile.reconcile("default")[close.topic][:3] == (0, 0, 0)


@pytest.mark.on_both
@pytest.mark.parametrize("later", ["cancelled", "live"])
@pytest.mark.parametrize("deletes", ["retention", "archive"])
@pytest.mark.usefixtures("transactional_db")
def test_what_is_done_is_remembered_although_a_newer_job_has_no_declared_time(
    declare: Declare, db_clock: Any, deletes: str, later: str
) -> None:
    """A row's job ended. One for another time was cancelled with the condition, before or after the old jobs went."""
    from datetime import timedelta

    from delaytasks.maintenance.retention import Retention, prune
    from delaytasks.states import State
    from delaytasks.timeouts import retained_jobs

    def delete_old_jobs() -> None:
        db_clock.advance(seconds=86_400)
        if deletes == "retention":
            list(prune("default", Retention({"*": {"ended": timedelta(hours=1)}})))
        else:
            retained_jobs.forget_others("default", START + timedelta(hours=1))
            Job.objects.filter(declared_due=None).delete()  # as the archive does: see test_archive.py

    def save(days: int, state: str) -> None:
        Order.objects.update(created_at=START + timedelta(days=days), state=state)
        reconcile.reconcile("default")

    declare(Order, while_=Q(state="open"))
    Order.objects.create()
    save(0, "open")
    Job.objects.update(state=State.FINISHED, ended_at=START)
    save(7, "open")
    if later == "live":
        delete_old_jobs()
    save(7, "paid")
    assert list(Job.objects.order_by("id").values_list("state", "declared_due")) == [
        (State.FINISHED, START), (State.CANCELLED, None)
    ]  # fmt: skip
    save(0, "open")
    delete_old_jobs()
    save(0, "open")
    assert live() == {}


@pytest.mark.only_on("postgresql")
def test_locked_rows_are_left_to_the_next_pass(declare: Declare, in_another_session: Any) -> None:
    close = declare(Order, while_=Q(state="open"))
    rows = [Order(created_at=START) for _ in range(5)]
    Order.objects.bulk_create(rows)
    commit = in_another_session(f"UPDATE declared_order SET state = 'paid' WHERE id = {rows[1].pk}")
    assert reconcile.reconcile("default")[close.topic] == (4, 0, 0, [rows[1].pk])
    commit()
    assert reconcile.reconcile("default")[close.topic] == (0, 0, 0, [])
    assert len(live()) == 4


@pytest.mark.only_on("postgresql")
def test_a_lock_that_holds_up_a_pass_is_logged_now_and_then(
    declare: Declare, in_another_session: Any, caplog: Any
) -> None:
    declare(Order, while_=Q(state="open"))
    Order.objects.bulk_create([Order(created_at=START)])
    commit = in_another_session("LOCK TABLE declared_order IN ACCESS EXCLUSIVE MODE")
    for _ in range(3):
        reconcile.step_all("default")
    assert caplog.text.count("waits for a lock") == 1
    commit()
    reconcile.step_all("default")
    assert len(live()) == 1


@pytest.mark.only_on("postgresql")
def test_a_pass_and_bulk_updates_never_deadlock(declare: Declare) -> None:
    """Plain FOR UPDATE deadlocked with bulk updates: the rows are stored in another order than that of the keys."""
    import threading

    declare(Order, while_=Q(state="open"))
    Order.objects.bulk_create([Order(created_at=START) for _ in range(300)])
    Order.objects.filter(pk__in=list(Order.objects.values_list("pk", flat=True)[:150])).update(note="moved")
    errors: list[BaseException] = []

    def update() -> None:
        try:
            for n in range(40):
                Order.objects.update(state="open" if n % 2 else "paid")
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=update)
    thread.start()
    while thread.is_alive():
        reconcile.reconcile("default")
    thread.join()
    assert errors == []


def test_an_error_of_one_declaration_does_not_keep_others_from_their_passes(
    declare: Declare, db_clock: Any, monkeypatch: Any
) -> None:
    """An error of the project's code, such as a field's from_db_value()."""
    bad = declare(Order, topic="declared.bad")
    declare(Ticket, on="opened_at", topic="declared.good")
    Ticket.objects.bulk_create([Ticket(code="T1", opened_at=START)])
    next_page = reconcile.next_page

    def failing(declaration: Declaration, *args: Any) -> Any:
        if declaration is bad:
            raise ValueError
        return next_page(declaration, *args)

    monkeypatch.setattr(reconcile, "next_page", failing)
    for _ in range(3):
        reconcile.step_all("default")
        db_clock.advance(seconds=1)
    assert Job.objects.filter(topic="declared.good").exists()
