"""The simulation in the terminal."""

import random
from threading import Event

import pytest

from delaytasks.models import Job
from project.demo import simulation
from project.demo.narrator import Narrator
from project.shop.models import Customer, Order, Product
from project.shop.services import pay_order, place_order, request_refund


@pytest.fixture
def simulate(db, monkeypatch):
    """Return a function that runs the simulation for a number of orders and returns its output."""
    monkeypatch.setattr(simulation, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(simulation, "POLL_SECONDS", 0.001)

    def run(orders, seed="7"):
        lines, stop = [], Event()
        run = simulation.Simulation(lines.append, stop, random.Random(seed))
        total = Order.objects.count() + orders
        assert run.run(on_poll=lambda: Order.objects.count() >= total and stop.set()) == 0
        return lines

    return run


def test_every_order_is_printed_with_the_time_of_its_close(simulate):
    lines = simulate(3)

    orders = [line for line in lines if "will be closed at" in line]
    assert len(orders) == Order.objects.count() == Job.objects.filter(topic="order.close").count()
    assert lines[-1].startswith("Orders in this run: ")


def test_the_same_seed_brings_the_same_customers(simulate):
    simulate(4, seed="7")
    first = list(Order.objects.order_by("id").values_list("customer__name", "total")[:4])
    last = Order.objects.order_by("-id").first().pk
    simulate(4, seed="7")

    assert list(Order.objects.filter(pk__gt=last).order_by("id").values_list("customer__name", "total")[:4]) == first


def test_the_next_run_continues_with_the_existing_data(simulate):
    simulate(2)
    lines = simulate(1)

    assert any(line.startswith("Existing data: ") for line in lines)
    assert Customer.objects.count() == len(simulation.CUSTOMERS)
    assert Product.objects.count() == len(simulation.PRODUCTS)


def test_a_product_out_of_stock_is_delivered_and_the_simulation_continues(simulate):
    simulation.ensure_shop()
    Product.objects.update(stock=0)

    lines = simulate(2)

    assert any("of each product delivered" in line for line in lines)


def test_payments_and_refunds_are_printed(simulate, settings, monkeypatch):
    settings.SHOP_PAY_WITHIN_SECONDS = 0.0  # pay at once: the delay of a payment is a share of this
    monkeypatch.setattr(simulation, "PAID_SHARE", 1.0)
    monkeypatch.setattr(simulation, "REFUND_SHARE", 1.0)
    monkeypatch.setattr(random.Random, "uniform", lambda self, low, high: 0.0)

    lines = simulate(5)

    assert any("close cancelled" in line for line in lines)
    assert any("first check with the gateway at" in line for line in lines)


def test_a_payment_with_the_stored_card_is_counted_and_the_customer_does_not_pay_again(timeouts, customer, tea):
    customer.card = "card-1"
    customer.save()
    run = simulation.Simulation(print, Event(), random.Random("7"))
    order = place_order(customer, [(tea, 1)])
    timeouts.advance(minutes=10)
    run._narrator = Narrator(since_ms=0)
    run._report_events()
    run._pay(order.pk)

    assert ", 1 paid, 0 paid too late, 0 closed unpaid" in run.totals()


def test_the_totals_are_those_of_the_orders_placed_in_this_run_also_by_visitors(timeouts, customer, tea):
    place_order(customer, [(tea, 1)])
    run = simulation.Simulation(print, Event(), random.Random("7"))
    run._narrator = Narrator(since_ms=0)
    visitors = [place_order(customer, [(tea, 1)]) for _ in range(3)]
    pay_order(visitors[0].pk)
    request_refund(visitors[0].pk)
    timeouts.advance(hours=1)
    place_order(customer, [(tea, 1)])
    run._report_events()

    totals = "4 placed, 1 paid, 0 paid too late, 2 closed unpaid, 1 still open, 1 refunds requested"
    assert run.totals().startswith(f"Orders in this run: {totals}")
