"""Sellers who have offered nothing for a while are reminded."""

from datetime import timedelta

from project.shop.models import Message, Product, Seller
from project.shop.services import offer_product


def test_each_seller_is_reminded_after_its_own_number_of_days(timeouts):
    Seller.objects.create(name="Cups & Co", email="cups@shop.example", remind_after=timedelta(days=7))
    Seller.objects.create(name="Teas", email="teas@shop.example", remind_after=timedelta(days=30))

    assert not timeouts.advance(timedelta(days=7) - timedelta(seconds=1))
    assert timeouts.advance(seconds=1).outcomes == {"finished": 1}
    assert timeouts.advance(days=23).outcomes == {"finished": 1}
    assert not timeouts.advance(days=365)
    recipients = Message.objects.order_by("pk").values_list("kind", "to")
    assert list(recipients) == [("offer", "cups@shop.example"), ("offer", "teas@shop.example")]


def test_an_offer_puts_the_reminder_off(timeouts, tea):
    seller = Seller.objects.create(name="Cups & Co", email="cups@shop.example", remind_after=timedelta(days=7))
    timeouts.advance(days=6)

    offer_product(seller, tea)

    assert Product.objects.get().seller == seller
    timeouts.assert_scheduled("seller.remind", subject=seller, due_at=timeouts.now + timedelta(days=7))


def test_another_number_of_days_applies_at_once(timeouts):
    seller = Seller.objects.create(name="Cups & Co", email="cups@shop.example", remind_after=timedelta(days=7))
    seller.remind_after = timedelta(days=2)
    seller.save()

    timeouts.assert_scheduled("seller.remind", subject=seller, due_at=seller.offered_at + timedelta(days=2))


def test_a_time_that_no_date_can_hold_is_refused_in_the_form(admin_client):
    fields = {"name": "Teas", "email": "t@shop.example", "offered_at_0": "2030-01-02", "offered_at_1": "03:04"}
    response = admin_client.post("/admin/shop/seller/add/", fields | {"remind_after": "999999999 0:0:0"})
    assert "remind_after" in response.context["adminform"].errors
    assert not Seller.objects.exists()
