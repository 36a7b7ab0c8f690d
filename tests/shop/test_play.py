"""The show in the terminal."""

import random
from threading import Event

import pytest

from delaytasks.models import Job
from project.shop import play
from project.shop.models import Customer, Order, Product


@pytest.fixture
def show(db, monkeypatch):
    """Plays until the shop has had so many orders; what was said."""
    monkeypatch.setattr(play, "PAUSE_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(play, "POLL_SECONDS", 0.001)

    def run(orders, seed="7"):
        said, stop = [], Event()
        made = play.Play(said.append, stop, random.Random(seed))
        enough = Order.objects.count() + orders
        assert made.run(watch=lambda: Order.objects.count() >= enough and stop.set()) == 0
        return said

    return run


def test_every_order_is_told_with_the_time_of_its_close(show):
    said = show(3)

    promises = [line for line in said if "will be closed at" in line]
    assert len(promises) == Order.objects.count() == Job.objects.filter(topic="order.close").count()
    assert said[-1].startswith("Orders in this run: ")


def test_the_same_seed_brings_the_same_customers(show):
    show(4, seed="7")
    first = list(Order.objects.order_by("id").values_list("customer__name", "total")[:4])
    begin = Order.objects.order_by("-id").first().pk
    show(4, seed="7")

    assert list(Order.objects.filter(pk__gt=begin).order_by("id").values_list("customer__name", "total")[:4]) == first


def test_the_next_run_finds_the_shop_again(show):
    show(2)
    said = show(1)

    assert any(line.startswith("Found again: ") for line in said)
    assert Customer.objects.count() == len(play.CUSTOMERS)
    assert Product.objects.count() == len(play.PRODUCTS)


def test_an_empty_shelf_is_filled_and_the_shop_goes_on(show):
    play.open_shop()
    Product.objects.update(stock=0)

    said = show(2)

    assert any("were delivered" in line for line in said)


def test_paying_and_refunds_are_told(show, settings, monkeypatch):
    settings.SHOP_PAY_WITHIN_SECONDS = 0.0  # paid at once: the delay until the payment is a share of this
    monkeypatch.setattr(play, "PAY", 1.0)
    monkeypatch.setattr(play, "REFUND", 1.0)
    monkeypatch.setattr(random.Random, "uniform", lambda self, low, high: 0.0)

    said = show(5)

    assert any("its close was called off" in line for line in said)
    assert any("the gateway will be asked at" in line for line in said)
