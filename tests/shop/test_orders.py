"""Placing, paying and closing an order."""

from datetime import timedelta
from threading import Barrier, Thread

import pytest
from django.db import connection, transaction

from delaytasks.models import Job
from delaytasks.states import State
from project.shop.models import Order, OrderLine, Payment, Product
from project.shop.services import OutOfStock, TooLate, pay_order, place_order
from project.shop.timeouts import close_unpaid_order


def test_placing_an_order_takes_its_stock_and_promises_its_close(customer, tea, cup, live_job):
    order = place_order(customer, [(tea, 3), (cup, 1)], pay_within=timedelta(minutes=30))

    tea.refresh_from_db()
    cup.refresh_from_db()
    job = live_job("order.close", f"order:{order.pk}")
    assert (tea.stock, cup.stock) == (7, 4)
    assert order.total == 3 * tea.price + cup.price
    assert job is not None
    assert job.body == {"order": order.pk}
    assert abs(job.due_at - order.pay_by) < timedelta(seconds=1)


def test_an_order_that_cannot_be_delivered_leaves_nothing(customer, tea, cup):
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


def test_a_payment_calls_off_the_close(order, live_job):
    payment = pay_order(order.pk)

    order.refresh_from_db()
    assert order.state == Order.State.PAID
    assert payment.amount == order.total
    assert live_job("order.close", order.key) is None
    assert Job.objects.get(key=order.key).state == State.CANCELLED


def test_a_payment_that_is_rolled_back_leaves_the_close_in_place(order, live_job):
    with transaction.atomic():
        pay_order(order.pk)
        transaction.set_rollback(True)

    order.refresh_from_db()
    assert order.state == Order.State.OPEN
    assert live_job("order.close", order.key) is not None
    assert not Payment.objects.exists()


def test_an_unpaid_order_is_closed_and_its_stock_comes_back(order, tea, handed):
    close_unpaid_order(handed(order=order.pk))

    order.refresh_from_db()
    tea.refresh_from_db()
    assert order.state == Order.State.CLOSED
    assert order.closed_at is not None
    assert tea.stock == 10


def test_closing_twice_gives_the_stock_back_once(order, tea, handed):
    close_unpaid_order(handed(order=order.pk))
    close_unpaid_order(handed(order=order.pk, attempt=2))

    tea.refresh_from_db()
    assert tea.stock == 10


def test_a_payment_that_wins_the_race_keeps_the_order(order, tea, handed):
    pay_order(order.pk)
    close_unpaid_order(handed(order=order.pk))

    order.refresh_from_db()
    tea.refresh_from_db()
    assert order.state == Order.State.PAID
    assert order.closed_at is None
    assert tea.stock == 8


def test_a_payment_after_the_close_is_refused(order, handed):
    close_unpaid_order(handed(order=order.pk))

    with pytest.raises(TooLate, match="is closed"):
        pay_order(order.pk)
    assert not Payment.objects.exists()


def test_an_order_is_paid_once(order):
    pay_order(order.pk)

    with pytest.raises(TooLate, match="is paid"):
        pay_order(order.pk)
    assert Payment.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_payment_and_a_close_at_the_same_moment_have_one_winner(customer, tea, handed):
    outcomes = [meet(place_order(customer, [(tea, 1)]), handed) for _ in range(10)]

    paid = Order.objects.filter(state=Order.State.PAID)
    assert paid.count() == Payment.objects.count() == outcomes.count("paid")
    assert Order.objects.filter(state=Order.State.CLOSED).count() == outcomes.count("closed")
    assert outcomes.count("paid") + outcomes.count("closed") == 10
    assert Product.objects.get().stock == 10 - outcomes.count("paid")


def meet(order, handed):
    """A payment and the close, each in its thread and at the same moment; what became of the order."""
    start, refused = Barrier(2), []

    def pay():
        start.wait(10)
        try:
            pay_order(order.pk)
        except TooLate:
            refused.append(order.pk)
        finally:
            connection.close()

    def close():
        start.wait(10)
        try:
            with transaction.atomic():
                close_unpaid_order(handed(order=order.pk))
        finally:
            connection.close()

    threads = [Thread(target=pay), Thread(target=close)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    order.refresh_from_db()
    assert (order.state == Order.State.CLOSED) == bool(refused)
    return order.state
