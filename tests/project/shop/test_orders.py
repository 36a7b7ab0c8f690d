"""Placing, paying and closing an order."""

from datetime import timedelta
from io import StringIO
from threading import Barrier, Thread

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from delaytasks import schedule
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.timeouts import applied_declarations
from delaytasks.worker import runner
from project.shop.models import Order, OrderLine, Payment, Product
from project.shop.services import OrderNotOpen, OutOfStock, pay_order, place_order


def test_placing_an_order_takes_its_stock_and_schedules_its_close(customer, tea, cup, live_job):
    order = place_order(customer, [(tea, 3), (cup, 1)], pay_within=timedelta(minutes=30))

    tea.refresh_from_db()
    cup.refresh_from_db()
    job = live_job("order.close", f"order:{order.pk}")
    assert (tea.stock, cup.stock) == (7, 4)
    assert order.total == 3 * tea.price + cup.price
    assert job is not None
    assert (job.subject_label, job.subject_pk) == ("shop.order", str(order.pk))
    assert timedelta(0) <= job.due_at - order.pay_by < timedelta(milliseconds=1)


def test_an_order_without_enough_stock_is_rolled_back(customer, tea, cup):
    with pytest.raises(OutOfStock, match="6 x cup"):
        place_order(customer, [(tea, 1), (cup, 6)])

    tea.refresh_from_db()
    assert tea.stock == 10
    assert not Order.objects.exists()
    assert not OrderLine.objects.exists()
    assert not Job.objects.exists()


def test_the_time_to_pay_comes_from_the_settings(customer, tea, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 90

    order = place_order(customer, [(tea, 1)])

    assert order.pay_by - order.created_at == timedelta(seconds=90)


def test_a_payment_cancels_the_close(order, live_job):
    payment = pay_order(order.pk)

    order.refresh_from_db()
    assert order.state == Order.State.PAID
    assert payment.amount == order.total
    assert live_job("order.close", order.key) is None
    assert Job.objects.get(key=order.key).state == State.CANCELLED


def test_a_rolled_back_payment_does_not_cancel_the_close(order, live_job):
    with transaction.atomic():
        pay_order(order.pk)
        transaction.set_rollback(True)

    order.refresh_from_db()
    assert order.state == Order.State.OPEN
    assert live_job("order.close", order.key) is not None
    assert not Payment.objects.exists()


def test_an_unpaid_order_is_closed_and_its_stock_returned(timeouts, order, tea):
    assert not timeouts.advance(minutes=29, seconds=59)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}

    order.refresh_from_db()
    tea.refresh_from_db()
    assert (order.state, order.closed_at) == (Order.State.CLOSED, timeouts.now)
    assert tea.stock == 10


def test_a_killed_close_is_repeated_and_returns_the_stock_once(timeouts, order, tea):
    timeouts.die_in("order.close", before="commit")
    assert timeouts.advance(hours=1).outcomes == {"died": 1, "expired": 1, "finished": 1}

    tea.refresh_from_db()
    assert tea.stock == 10


def test_a_paid_order_is_not_closed(timeouts, order, tea):
    pay_order(order.pk)
    assert not timeouts.advance(hours=1)

    order.refresh_from_db()
    tea.refresh_from_db()
    assert (order.state, order.closed_at) == (Order.State.PAID, None)
    assert tea.stock == 8


def test_an_order_that_sql_has_paid_is_not_closed(timeouts, order):
    Order.objects.filter(pk=order.pk).update(state=Order.State.PAID)

    assert not timeouts.advance(hours=1)
    assert Order.objects.get().state == Order.State.PAID


def test_a_payment_after_the_close_is_refused(timeouts, order):
    timeouts.advance(minutes=30)

    with pytest.raises(OrderNotOpen, match="is closed"):
        pay_order(order.pk)
    assert not Payment.objects.exists()


def test_an_order_is_paid_once(order):
    pay_order(order.pk)

    with pytest.raises(OrderNotOpen, match="is paid"):
        pay_order(order.pk)
    assert Payment.objects.count() == 1


# Jobs that were scheduled by hand, before the timeout was declared


@pytest.fixture
def older_job(order):
    """The job of an order as place_order() scheduled it before: with a body, without a subject and a declared time."""
    Job.objects.all().delete()
    return schedule("order.close", key=order.key, delay=timedelta(minutes=30), body={"order": order.pk})


@pytest.mark.on_both
@pytest.mark.usefixtures("only_when_applied")
def test_an_older_job_closes_its_order_before_the_declaration_is_applied(timeouts, order, older_job):
    assert timeouts.advance(minutes=31).outcomes == {"finished": 1}

    order.refresh_from_db()
    assert order.state == Order.State.CLOSED


@pytest.mark.on_both
@pytest.mark.usefixtures("only_when_applied")
def test_applying_the_declaration_adopts_the_older_jobs(timeouts, order, older_job):
    paid = Order.objects.create(customer=order.customer, state="paid", pay_by=order.pay_by)
    schedule("order.close", key=paid.key, delay=timedelta(minutes=30), body={"order": paid.pk})
    call_command("delaytasks", "timeouts", "apply", stdout=StringIO())

    older_job.refresh_from_db()
    assert (older_job.state, older_job.subject_pk) == (State.DELAYED, str(order.pk))
    assert older_job.due_at == older_job.declared_due
    assert timedelta(0) <= older_job.due_at - order.pay_by < timedelta(milliseconds=1)
    pay_order(order.pk)
    older_job.refresh_from_db()
    assert older_job.state == State.CANCELLED
    assert timeouts.advance(hours=1).outcomes == {"skipped": 1}  # the close of the order that was paid already


@pytest.fixture
def only_when_applied(timeouts, monkeypatch):
    """A declaration is in force only after `timeouts apply`, as in production."""
    monkeypatch.setattr(applied_declarations, "is_automatic", lambda: False)


@pytest.mark.on_both
@pytest.mark.usefixtures("transactional_db")
def test_of_a_concurrent_payment_and_close_exactly_one_succeeds(customer, tea):
    outcomes = [pay_and_close(place_order(customer, [(tea, 1)], pay_within=timedelta(0))) for _ in range(10)]

    paid = Order.objects.filter(state=Order.State.PAID)
    assert paid.count() == Payment.objects.count() == outcomes.count("paid")
    assert Order.objects.filter(state=Order.State.CLOSED).count() == outcomes.count("closed")
    assert outcomes.count("paid") + outcomes.count("closed") == 10
    assert Product.objects.get().stock == 10 - outcomes.count("paid")


def pay_and_close(order):
    """Pay and close the order in two concurrent threads; return the state of the order."""
    start, rejected = Barrier(2), []

    def pay():
        start.wait(10)
        try:
            pay_order(order.pk)
        except OrderNotOpen:
            rejected.append(order.pk)
        finally:
            connection.close()

    def close():
        start.wait(10)
        try:
            runner.run_topic("order.close", using="default", worker="w1", dispatch_topic=lambda topic: None)
        finally:
            connection.close()

    threads = [Thread(target=pay), Thread(target=close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    order.refresh_from_db()
    assert (order.state == Order.State.CLOSED) == bool(rejected)
    return order.state
