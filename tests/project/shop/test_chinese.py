"""The storefront and the shop's admin pages in Chinese: no English word is left in any state."""

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from delaytasks.models import Job
from delaytasks.states import State
from project.demo import simulation
from project.shop import selectors
from project.shop.models import Customer, Device, Lesson, Message, Order, Payment, Product, Refund, Seller, Ticket
from project.shop.services import pay_order, place_order, put_in_cart, request_refund
from project.shop.session import SESSION_KEY
from tests.support.untranslated import CHINESE, english_in, in_chinese

# The result of cancel() is shown untranslated; the others are keys of a keyboard and part of an address.
KNOWN = {"cancel", "cancelled", "running", "already", "finished", "unknown", "Control", "Command", "Mac", "http"}
PAGES = ("customer", "product", "order", "payment", "refund")


@pytest.fixture
def client(db: None) -> Client:
    """A staff user, who sees every part of the page."""
    return in_chinese(User.objects.create_superuser("安娜", password="x"))


def english_left(response: Any) -> list[str]:
    assert response.status_code == 200
    return english_in(response, known=KNOWN)


def translated_products() -> list[Product]:
    """Return the products that have Chinese names."""
    return [
        Product.objects.get_or_create(name=name, defaults={"price": Decimal(price), "stock": 50})[0]
        for name, price in simulation.PRODUCTS.items()
    ]


def make_order(client: Client, customer: Customer, order_state: str = "open", **close: Any) -> Order:
    """Place an order in this client's session; set its state and the columns of its close job."""
    order = place_order(customer, [(product, 1) for product in translated_products()])
    Order.objects.filter(pk=order.pk).update(
        state=order_state, closed_at=timezone.now() if order_state == "closed" else None
    )
    Job.objects.filter(key=order.key).update(**close)
    session = client.session
    data = session.get(SESSION_KEY, {"customer": customer.pk, "orders": []})
    session[SESSION_KEY] = {**data, "orders": [order.pk, *data["orders"]]}
    session.save()
    order.refresh_from_db()
    return order


def ended(state: State, **columns: Any) -> dict[str, Any]:
    now = timezone.now()
    return {"state": state, "ended_at": now, "died_at": now if state is State.DEAD else None, **columns}


def english_on_page(client: Client) -> list[str]:
    """Return English words left in the page and in the data that its script polls."""
    return english_left(client.get("/")) + english_left(client.get("/now/"))


@pytest.fixture
def guest(db: None) -> Customer:
    return Customer.objects.create(name="Guest 1A2B", email="guest@shop.example")


def test_an_empty_shop_is_in_chinese(client):
    assert english_on_page(client) == []
    assert english_left(Client(headers=CHINESE).get("/")) == []


def test_an_order_is_in_chinese_in_every_state_of_its_timeout(client, guest):
    reserved = {"state": State.RESERVED, "attempt": 1, "reserved_at": timezone.now(), "lease_until": timezone.now()}
    for state in Order.State:
        make_order(client, guest, state)
        make_order(client, guest, state, **reserved)
        for end in (State.CANCELLED, State.DEAD, State.FINISHED):
            make_order(client, guest, state, **ended(end, attempt=1, reserved_at=timezone.now() + timedelta(hours=1)))
    assert english_on_page(client) == []
    assert len(client.get("/").context["storefront"].mine) == selectors.MAX_ORDERS


def test_a_refund_is_in_chinese_in_every_state(client, guest):
    for state in Refund.State:
        for attempt in (0, 1, 3):
            order = make_order(client, guest)
            pay_order(order.pk)
            refund = request_refund(order.pk)
            Refund.objects.filter(pk=refund.pk).update(state=state)
            Job.objects.filter(key=refund.key).update(attempt=attempt, polls=attempt)
        assert english_on_page(client) == []


def test_other_customers_orders_and_sold_out_products_are_in_chinese(client, guest):
    place_order(guest, [(product, 1) for product in translated_products()])
    Product.objects.filter(name="tray").update(stock=0)
    assert english_on_page(client) == []
    assert "茶盘" in client.get("/").content.decode()


def test_lessons_and_tickets_are_in_chinese(client, guest):
    for starts_in in (timedelta(hours=1), timedelta(minutes=1)):  # with a reminder, and too soon for one
        Lesson.objects.create(title="一", starts_at=timezone.now() + starts_in)
    for state in Ticket.State:
        Ticket.objects.create(customer=guest, title="一", state=state)
    Ticket.objects.create(customer=guest, title="一", escalated_at=timezone.now())
    assert english_on_page(client) == []
    assert "课程和工单" in client.get("/").content.decode()


def test_messages_after_each_action_are_in_chinese(client, guest, monkeypatch):
    product = translated_products()[0]
    for fields in ({"quantity": "1"}, {"quantity": "0"}, {"quantity": "99"}, {"quantity": "x"}, {}):
        assert (
            english_left(client.post("/orders/", {"product": product.pk, "keep": "1800", **fields}, follow=True)) == []
        )
    assert english_left(client.post("/orders/", {"product": "0", "keep": "0", "quantity": "1"}, follow=True)) == []
    Product.objects.update(stock=0)
    assert (
        english_left(client.post("/orders/", {"product": product.pk, "quantity": "2", "keep": "1800"}, follow=True))
        == []
    )
    Product.objects.update(stock=10)
    order = make_order(client, guest)
    for action in ("pay", "pay", "refund", "refund"):  # each succeeds, then fails
        page = client.post(f"/orders/{order.pk}/{action}/", follow=True)
        assert english_left(page) == []
    late = make_order(client, guest, "closed")
    assert english_left(client.post(f"/orders/{late.pk}/pay/", follow=True)) == []


def test_the_shops_admin_pages_are_in_chinese(client, guest):
    Customer.objects.update(name="艾达")
    order = make_order(client, guest)
    payment = pay_order(order.pk)
    refund = request_refund(order.pk)
    Refund.objects.update(reference="R-1")
    for state in Refund.State:
        Refund.objects.create(order=order, amount=1, state=state, reference=state.value[0], ask_until=timezone.now())
    Order.objects.update(external_id="7")
    rows = zip(PAGES, (guest.pk, Product.objects.first().pk, order.pk, payment.pk, refund.pk), strict=True)
    for number, product in enumerate(Product.objects.all()):
        Product.objects.filter(pk=product.pk).update(name=f"茶{number}")
    for model, pk in rows:
        for page in ("", f"{pk}/change/", f"{pk}/history/", *(("add/",) if model in ("customer", "product") else ())):
            assert english_left(client.get(f"/admin/shop/{model}/{page}")) == [], (model, page)
    assert english_left(client.get("/admin/shop/")) == []
    assert Payment.objects.count() == 1


def test_the_admin_log_of_the_shop_is_in_chinese(client, guest):
    product = Product.objects.create(name="茶", price=1, stock=1)
    client.post(f"/admin/shop/product/{product.pk}/change/", {"name": "红茶", "price": "2", "stock": "3"})
    client.post(f"/admin/shop/customer/{guest.pk}/change/", {"name": "艾达", "email": "a@shop.example"})
    assert "库存" in client.get(f"/admin/shop/product/{product.pk}/history/").content.decode()
    assert english_left(client.get(f"/admin/shop/product/{product.pk}/history/")) == []
    assert english_left(client.get(f"/admin/shop/customer/{guest.pk}/history/")) == []


@pytest.fixture
def others(guest: Customer) -> list[tuple[str, dict[str, Any]]]:
    """A row of each of the other models, as its address, with a change of each of its fields."""
    Customer.objects.update(name="艾达")
    tea = Product.objects.create(name="茶", price=1, stock=1)
    seller = Seller.objects.create(name="茶行", email="s@shop.example")
    lesson = Lesson.objects.create(title="泡茶", starts_at=timezone.now())
    cart = put_in_cart(Customer.objects.get(), tea)
    device = Device.objects.create(name="茶壶", address="http://127.0.0.1/", command="烧水")
    date = {"_0": "2030-01-02", "_1": "03:04"}

    def at(name: str) -> dict[str, str]:
        return {name + part: value for part, value in date.items()}

    customer = {"name": "贝拉", "email": "b@shop.example", "phone": "1", "card": "1", **at("seen_at")}
    product = {"name": "红茶", "price": "2", "stock": "3", "seller": seller.pk}
    return [
        (f"customer/{guest.pk}", customer),
        (f"product/{tea.pk}", product),
        (f"seller/{seller.pk}", {"name": "红", "email": "t@shop.example", "remind_after": "9 0:0", **at("offered_at")}),
        (f"lesson/{lesson.pk}", {"title": "茶", "cancelled": "on", "students": guest.pk, **at("starts_at")}),
        (f"cart/{cart.pk}", {"customer": guest.pk, "product": tea.pk, "quantity": "7", **at("changed_at")}),
        (f"device/{device.pk}", {"name": "壶", "address": "http://[::1]/", "command": "停", **at("command_at")}),
    ]


def test_the_other_admin_pages_and_their_log_are_in_chinese(client, others):
    for row, changes in others:
        model = row.partition("/")[0]
        for page in (f"{model}/", f"{model}/add/", f"{row}/change/"):
            assert english_left(client.get(f"/admin/shop/{page}")) == [], page
        assert client.post(f"/admin/shop/{row}/change/", changes).status_code == 302, row
        assert english_left(client.get(f"/admin/shop/{row}/history/")) == [], row
    pk = Lesson.objects.get().pk
    assert (
        "已推迟 1 节课程。"
        in client.post(
            "/admin/shop/lesson/", {"action": "postpone", "_selected_action": pk}, follow=True
        ).content.decode()
    )


def test_the_messages_in_the_admin_are_in_chinese(client):
    for kind in Message.Kind:
        Message.send(kind, "lesson:1", ["a@shop.example"])
    message = Message.objects.first()
    for page in ("", f"{message.pk}/change/"):
        assert english_left(client.get(f"/admin/shop/message/{page}")) == []


def test_the_language_chosen_in_the_shops_header_is_kept(db):
    visitor = Client()
    assert 'value="zh-hans" lang="zh-hans">简体中文</button>' in visitor.get("/").content.decode()
    page = visitor.post("/i18n/setlang/", {"language": "zh-hans", "next": "/?keep=900"}, follow=True)
    assert page.request["QUERY_STRING"] == "keep=900"
    assert '<html lang="zh-hans">' in page.content.decode()
    assert english_left(visitor.get("/")) == []
    assert (
        "The tea shop" in visitor.post("/i18n/setlang/", {"language": "en", "next": "/"}, follow=True).content.decode()
    )


@pytest.mark.parametrize(
    ("accept", "language"),
    [("zh-CN", "zh-hans"), ("zh", "zh-hans"), ("zh-SG,en;q=0.5", "zh-hans"), ("en-GB", "en"), ("fr", "en"), ("", "en")],
)
def test_the_page_is_in_the_browsers_language_if_it_is_available(db, accept, language):
    page = Client(headers={"Accept-Language": accept}).get("/")
    assert f'<html lang="{language}">' in page.content.decode()
    assert page["Content-Language"] == language


def test_an_untranslated_word_would_be_found(client, guest, monkeypatch):
    monkeypatch.setitem(selectors.LABELS, Order.State.OPEN, "open")
    make_order(client, guest)
    assert "open" in english_on_page(client)
