"""What the shop does for its customers by itself: stored cards, reviews, absent members and carts left behind."""

from datetime import timedelta

import pytest

from delaytasks.testing import days, hours, minutes
from project.shop.models import Cart, Customer, Message, Order, Payment
from project.shop.services import (
    deliver_order,
    order_cart,
    pay_order,
    place_order,
    put_in_cart,
    record_visit,
    request_refund,
)


def sent() -> list[tuple[str, str, str]]:
    return list(Message.objects.order_by("pk").values_list("kind", "to", "about"))


# A stored card


@pytest.fixture
def card_holder(customer):
    customer.card = "card-1"
    customer.save()
    return customer


def test_an_order_is_paid_with_the_stored_card_after_ten_minutes(timeouts, card_holder, tea):
    order = place_order(card_holder, [(tea, 2)])

    assert not timeouts.advance(minutes=9, seconds=59)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert Order.objects.get().state == Order.State.PAID
    assert Payment.objects.get().amount == order.total
    timeouts.assert_not_scheduled("order.close", subject=order)
    assert not timeouts.advance(hours=1)


def test_an_order_without_a_stored_card_is_not_charged(timeouts, order):
    timeouts.assert_not_scheduled("order.charge", subject=order)
    assert [run.topic for run in timeouts.advance(minutes=30)] == ["order.close"]


def test_an_order_that_the_customer_pays_is_not_charged_again(timeouts, card_holder, tea):
    order = place_order(card_holder, [(tea, 1)])
    pay_order(order.pk)

    timeouts.assert_not_scheduled("order.charge", subject=order)
    assert not timeouts.advance(hours=1)
    assert Payment.objects.count() == 1


@pytest.mark.on_both
def test_a_card_that_was_removed_is_not_charged_even_if_nobody_noticed(timeouts, card_holder, tea):
    place_order(card_holder, [(tea, 1)], pay_within=hours(2))
    assert not timeouts.advance(minutes=9)
    timeouts.reconcile()  # so that the next one is minutes away
    Customer.objects.update(card="")  # sends no signal

    assert timeouts.advance(minutes=1).outcomes == {"skipped": 1}
    assert not Payment.objects.exists()


def test_a_charge_that_is_killed_is_repeated_and_pays_once(timeouts, card_holder, tea):
    place_order(card_holder, [(tea, 1)])
    timeouts.die_in("order.charge", before="commit")

    assert timeouts.advance(minutes=12).outcomes == {"died": 1, "expired": 1, "finished": 1}
    assert Payment.objects.count() == 1


# A review


def test_a_review_is_asked_for_an_hour_after_the_delivery(timeouts, order):
    pay_order(order.pk)
    timeouts.assert_not_scheduled("order.review", subject=order)
    deliver_order(order.pk)

    timeouts.assert_scheduled("order.review", subject=order, due_at=timeouts.now + hours(1))
    assert timeouts.advance(hours=1).outcomes == {"finished": 1}
    assert sent() == [("review", "ada@shop.example", order.key)]
    assert not timeouts.advance(days=1)


def test_no_review_is_asked_for_after_a_refund(timeouts, order, monkeypatch):
    monkeypatch.setattr("project.shop.gateway.get_refund_state", lambda reference: "settled")
    pay_order(order.pk)
    deliver_order(order.pk)
    request_refund(order.pk)

    assert [run.topic for run in timeouts.advance(hours=1)] == ["refund.check", "order.review"]
    assert sent() == []


def test_only_a_paid_order_is_delivered_and_only_once(order):
    with pytest.raises(ValueError, match="must be paid"):
        deliver_order(order.pk)
    pay_order(order.pk)
    deliver_order(order.pk)
    with pytest.raises(ValueError, match="must be paid and on its way"):
        deliver_order(order.pk)


# Members who stay away


def test_a_member_is_written_to_once_in_each_absence(timeouts, customer):
    record_visit(customer)
    timeouts.advance(days=14)
    record_visit(customer)

    assert not timeouts.advance(days(15) - timedelta(seconds=1))
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert not timeouts.advance(days=60)
    customer.save()  # with the same time: the same absence
    assert not timeouts.advance(days=60)
    record_visit(customer)
    assert timeouts.advance(days=15).outcomes == {"finished": 1}
    assert sent() == [("absence", "ada@shop.example", f"customer:{customer.pk}")] * 2


def test_a_customer_who_is_no_member_is_not_written_to(timeouts, customer):
    timeouts.assert_not_scheduled("customer.absent", subject=customer)


# Carts


@pytest.fixture
def cart(customer, tea):
    customer.phone = "+49 30 1234"
    customer.save()
    return put_in_cart(customer, tea, 2)


def test_an_abandoned_cart_brings_a_text_message_after_20_minutes(timeouts, cart):
    timeouts.advance_to(cart.changed_at + minutes(19))
    put_in_cart(cart.customer, cart.product, 3)

    assert not timeouts.advance(minutes=19, seconds=59)
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert sent() == [("cart", "+49 30 1234", f"cart:{cart.pk}")]
    assert not timeouts.advance(days=1)


def test_a_cart_that_is_ordered_brings_no_text_message_and_is_ordered_once(timeouts, cart):
    order = order_cart(cart)

    with pytest.raises(Cart.DoesNotExist):
        order_cart(cart)
    assert [(line.product, line.quantity) for line in order.lines.all()] == [(cart.product, 2)]
    assert [run.topic for run in timeouts.advance(days=1)] == ["order.close"]
    assert sent() == []


def test_a_customer_without_a_phone_gets_no_text_message(timeouts, customer, tea):
    timeouts.assert_not_scheduled("cart.remind", subject=put_in_cart(customer, tea))
