"""The storefront and the shop's part of the admin in Chinese: no word of English is left, whatever they tell."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from delaytasks import CancelResult
from delaytasks.models import Job
from delaytasks.states import State
from project.shop import play, seen, services, views
from project.shop.models import Customer, Order, Payment, Product, Refund
from project.shop.services import ask_refund, pay_order, place_order
from project.shop.visits import SESSION_KEY
from tests.foreign import CHINESE, english_in, in_chinese

# What cancel() answers is quoted, as programs have it.
KNOWN = {"cancel", "cancelled", "running", "already", "finished", "unknown"}
PAGES = ("customer", "product", "order", "payment", "refund")


@pytest.fixture
def client(db: None) -> Client:
    """A visitor who is on the staff, and so sees all that there is to see."""
    return in_chinese(User.objects.create_superuser("安娜", password="x"))


def left(response: Any) -> list[str]:
    assert response.status_code == 200
    return english_in(response, known=KNOWN)


def shelf() -> list[Product]:
    """The shop's own products, known under their Chinese names."""
    return [
        Product.objects.get_or_create(name=name, defaults={"price": Decimal(price), "stock": 50})[0]
        for name, price in play.PRODUCTS.items()
    ]


def ordered(client: Client, customer: Customer, became: str = "open", **close: Any) -> Order:
    """An order of this visitor's, and its close as `close` says it now is."""
    order = place_order(customer, [(product, 1) for product in shelf()])
    Order.objects.filter(pk=order.pk).update(state=became, closed_at=timezone.now() if became == "closed" else None)
    Job.objects.filter(key=order.key).update(**close)
    mine = client.session
    kept = mine.get(SESSION_KEY, {"customer": customer.pk, "orders": []})
    mine[SESSION_KEY] = {**kept, "orders": [order.pk, *kept["orders"]]}
    mine.save()
    order.refresh_from_db()
    return order


def ended(state: State, **terms: Any) -> dict[str, Any]:
    now = timezone.now()
    return {"state": state, "ended_at": now, "died_at": now if state is State.DEAD else None, **terms}


def both(client: Client) -> list[str]:
    """What is left in the page, and in what its script fetches."""
    return left(client.get("/")) + left(client.get("/now/"))


@pytest.fixture
def guest(db: None) -> Customer:
    return Customer.objects.create(name="Guest 1A2B", email="guest@shop.example")


def test_a_shop_without_anything_is_in_chinese(client):
    assert both(client) == []
    assert left(Client(headers=CHINESE).get("/")) == []


def test_an_order_is_told_in_chinese_whatever_became_of_its_timeout(client, guest):
    held = {"state": State.RESERVED, "attempt": 1, "reserved_at": timezone.now(), "lease_until": timezone.now()}
    for state in Order.State:
        ordered(client, guest, state)
        ordered(client, guest, state, **held)
        for end in (State.CANCELLED, State.DEAD, State.FINISHED):
            ordered(client, guest, state, **ended(end, attempt=1, reserved_at=timezone.now() + timedelta(hours=1)))
    assert both(client) == []
    assert len(client.get("/").context["sight"].mine) == seen.SHOWN


def test_a_refund_is_told_in_chinese_whatever_the_gateway_says(client, guest):
    for state in Refund.State:
        for attempt in (0, 1, 3):
            order = ordered(client, guest)
            pay_order(order.pk)
            refund = ask_refund(order.pk)
            Refund.objects.filter(pk=refund.pk).update(state=state)
            Job.objects.filter(key=refund.key).update(attempt=attempt)
        assert both(client) == []


def test_what_others_order_and_what_is_sold_out_are_in_chinese(client, guest):
    place_order(guest, [(product, 1) for product in shelf()])
    Product.objects.filter(name="tray").update(stock=0)
    assert both(client) == []
    assert "茶盘" in client.get("/").content.decode()


def test_what_a_visitor_does_is_answered_in_chinese(client, guest, monkeypatch):
    product = shelf()[0]
    for fields in ({"quantity": "1"}, {"quantity": "0"}, {"quantity": "99"}, {"quantity": "x"}, {}):
        assert left(client.post("/orders/", {"product": product.pk, "keep": "1800", **fields}, follow=True)) == []
    assert left(client.post("/orders/", {"product": "0", "keep": "0", "quantity": "1"}, follow=True)) == []
    Product.objects.update(stock=0)
    assert left(client.post("/orders/", {"product": product.pk, "quantity": "2", "keep": "1800"}, follow=True)) == []
    Product.objects.update(stock=10)
    order = ordered(client, guest)
    for action in ("pay", "pay", "refund", "refund"):  # done, and then refused
        page = client.post(f"/orders/{order.pk}/{action}/", follow=True)
        assert left(page) == []
    late = ordered(client, guest, "closed")
    assert left(client.post(f"/orders/{late.pk}/pay/", follow=True)) == []


@pytest.mark.parametrize("answer", list(CancelResult))
def test_what_became_of_the_timeout_of_a_paid_order_is_told_in_chinese(client, guest, monkeypatch, answer):
    monkeypatch.setattr(services, "cancel", lambda topic, key: answer)
    order = ordered(client, guest)
    page = client.post(f"/orders/{order.pk}/pay/", follow=True)
    assert str(views.TIMEOUT_WAS[answer])
    assert left(page) == []


def test_the_shops_part_of_the_admin_is_in_chinese(client, guest):
    Customer.objects.update(name="艾达")
    order = ordered(client, guest)
    payment = pay_order(order.pk)
    refund = ask_refund(order.pk)
    Refund.objects.update(reference="R-1")
    for state in Refund.State:
        Refund.objects.create(order=order, amount=1, state=state, reference=state.value[0], ask_until=timezone.now())
    Order.objects.update(external_id="7")
    rows = zip(PAGES, (guest.pk, Product.objects.first().pk, order.pk, payment.pk, refund.pk), strict=True)
    for number, product in enumerate(Product.objects.all()):
        Product.objects.filter(pk=product.pk).update(name=f"茶{number}")
    for model, pk in rows:
        for page in ("", f"{pk}/change/", f"{pk}/history/", *(("add/",) if model in ("customer", "product") else ())):
            assert left(client.get(f"/admin/shop/{model}/{page}")) == [], (model, page)
    assert left(client.get("/admin/shop/")) == []
    assert Payment.objects.count() == 1


def test_what_staff_change_in_the_shop_is_remembered_in_chinese(client, guest):
    product = Product.objects.create(name="茶", price=1, stock=1)
    client.post(f"/admin/shop/product/{product.pk}/change/", {"name": "红茶", "price": "2", "stock": "3"})
    client.post(f"/admin/shop/customer/{guest.pk}/change/", {"name": "艾达", "email": "a@shop.example"})
    assert "库存" in client.get(f"/admin/shop/product/{product.pk}/history/").content.decode()
    assert left(client.get(f"/admin/shop/product/{product.pk}/history/")) == []
    assert left(client.get(f"/admin/shop/customer/{guest.pk}/history/")) == []


def test_a_language_is_chosen_in_the_shops_header_and_stays_chosen(db):
    visitor = Client()
    assert 'value="zh-hans" lang="zh-hans">简体中文</button>' in visitor.get("/").content.decode()
    page = visitor.post("/i18n/setlang/", {"language": "zh-hans", "next": "/?keep=900"}, follow=True)
    assert page.request["QUERY_STRING"] == "keep=900"
    assert '<html lang="zh-hans">' in page.content.decode()
    assert left(visitor.get("/")) == []
    assert (
        "The tea shop" in visitor.post("/i18n/setlang/", {"language": "en", "next": "/"}, follow=True).content.decode()
    )


@pytest.mark.parametrize(
    ("accept", "language"),
    [("zh-CN", "zh-hans"), ("zh", "zh-hans"), ("zh-SG,en;q=0.5", "zh-hans"), ("en-GB", "en"), ("fr", "en"), ("", "en")],
)
def test_a_browser_is_answered_in_its_language_if_it_is_there(db, accept, language):
    page = Client(headers={"Accept-Language": accept}).get("/")
    assert f'<html lang="{language}">' in page.content.decode()
    assert page["Content-Language"] == language


def test_an_english_word_that_is_left_would_be_found(client, guest, monkeypatch):
    monkeypatch.setitem(seen.LABELS, Order.State.OPEN, "open")
    ordered(client, guest)
    assert "open" in both(client)
