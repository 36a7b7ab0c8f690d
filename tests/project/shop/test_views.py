"""The storefront with the test client: orders, payments, refunds and live updates."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from delaytasks import cancel, databases, mirror, reschedule, run_now
from delaytasks.models import Job
from delaytasks.states import Outcome, State
from delaytasks.worker import claim, leases, runner
from project.shop import selectors, services
from project.shop.gateway import PENDING, SETTLED
from project.shop.models import Customer, Order, Payment, Product, Refund
from project.shop.services import pay_order, place_order

from ..conftest import reference_with


@pytest.fixture(autouse=True)
def _no_linger(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}


def submit_order(client, tea, quantity=1, **fields):
    return client.post("/orders/", {"product": tea.pk, "quantity": quantity, "keep": "1800"} | fields)


@pytest.fixture
def mine(client, tea):
    """An open order of the client's session."""
    submit_order(client, tea, 2)
    return Order.objects.get()


def messages(client):
    return [str(message) for message in client.get("/").context["messages"]]


def card(client, order):
    """Return the text of an order's card."""
    html = re.search(rf'<li id="order-{order.pk}".*?</li>', client.get("/").content.decode(), re.DOTALL)
    assert html is not None
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"</?span[^>]*>", "", html[0])).split())


def claim_jobs(topic):
    """Claim due jobs as a worker does before it calls the handler."""
    return claim.take(mirror.choose("default"), topic, 1, using="default", worker="w1")


def run(topic):
    return runner.run_topic(topic, using="default", worker="w1", dispatch_topic=lambda topic: None)


# Products and orders


def test_the_page_shows_prices_and_stock(client, tea, cup):
    Product.objects.filter(pk=cup.pk).update(stock=0)
    page = client.get("/").content.decode()

    assert "€4.50" in page
    assert "10 left" in page
    assert "sold out" in page


def test_a_shop_without_products_says_so(client, db):
    assert "No products yet." in client.get("/").content.decode()


def test_an_order_takes_its_stock_and_shows_when_it_closes(client, tea):
    response = submit_order(client, tea, 2, keep="900")

    order, job = Order.objects.get(), Job.objects.get()
    tea.refresh_from_db()
    assert response.status_code == 302
    assert response.url == f"/?keep=900#order-{order.pk}"
    assert (tea.stock, order.total) == (8, Decimal(9))
    assert abs(job.due_at - order.created_at - timedelta(minutes=15)) < timedelta(seconds=1)
    assert re.search(r"2 × tea closes in 1(5:00|4:59) unless it is paid", card(client, order))


def test_the_time_to_pay_from_the_settings_is_the_default(client, tea, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 20.0

    assert client.get("/").context["times"] == [("20", "20 s"), ("120", "2 min"), ("900", "15 min")]
    assert client.get("/").context["keep"] == "20"
    assert client.get("/?keep=120").context["keep"] == "120"
    assert client.get("/?keep=1e9").context["keep"] == "20"


@pytest.mark.parametrize(
    "invalid",
    [
        {"quantity": "0"},
        {"quantity": "-1"},
        {"quantity": "21"},
        {"quantity": "many"},
        {"quantity": ""},
        {"product": "0"},
        {"product": "'; --"},
        {"keep": "1000000000"},
        {"keep": "nan"},
    ],
)
def test_an_invalid_order_is_refused(client, tea, invalid):
    response = client.post("/orders/", {"product": tea.pk, "quantity": 1, "keep": "1800"} | invalid)

    assert response.status_code == 302
    assert len(messages(client)) == 1
    assert not Order.objects.exists()
    assert not Customer.objects.exists()


def test_an_order_beyond_the_stock_is_refused(client, cup):
    submit_order(client, cup, 6)

    assert messages(client) == ["Not ordered: there is not enough “cup” in stock."]
    assert not Order.objects.exists()
    assert not Job.objects.exists()


def test_a_browser_gets_one_guest_customer_and_no_cookie_before_its_first_order(client, tea):
    client.get("/")
    assert "sessionid" not in client.cookies

    for _ in range(2):
        submit_order(client, tea)
    submit_order(Client(), tea)

    first, second, other = Order.objects.order_by("pk")
    assert first.customer == second.customer != other.customer
    assert re.fullmatch(r"Guest [0-9A-F]{4}", first.customer.name)


def test_a_form_without_a_csrf_token_is_refused(tea, order):
    client = Client(enforce_csrf_checks=True)

    assert submit_order(client, tea).status_code == 403
    assert client.post(f"/orders/{order.pk}/pay/").status_code == 403
    page = client.get("/")
    assert submit_order(client, tea, csrfmiddlewaretoken=page.context["csrf_token"]).status_code == 302


# Payments


def test_paying_cancels_the_timeout_and_says_so(client, mine):
    response = client.post(f"/orders/{mine.pk}/pay/", {"keep": "120"})

    mine.refresh_from_db()
    assert response.url == f"/?keep=120#order-{mine.pk}"
    assert mine.state == Order.State.PAID
    assert Job.objects.get().state == State.CANCELLED
    assert messages(client) == [f"Order {mine.pk} is paid."]
    assert "paid €9.00 2 × tea The timeout was cancelled. Request a refund" in card(client, mine)


def test_a_payment_while_the_timeout_waits_for_the_order(client, mine):
    run_now("order.close", mine.key)
    [claimed] = claim_jobs("order.close")

    client.post(f"/orders/{mine.pk}/pay/")

    assert "The timeout was already running; it finds the order paid" in card(client, mine)
    leases.release(claimed.id, claimed.attempt, using="default")
    mine.refresh_from_db()
    assert mine.state == Order.State.PAID
    assert Job.objects.get().events.latest("pk").outcome == Outcome.CANCELLED
    assert "The timeout was cancelled." in card(client, mine)


def test_paying_a_closed_order_is_refused_with_the_reason(client, mine):
    run_now("order.close", mine.key)
    run("order.close")

    client.post(f"/orders/{mine.pk}/pay/")

    assert messages(client) == [f"Order {mine.pk} was not paid: its time to pay is over and it is closed."]
    assert not Payment.objects.exists()
    assert re.search(
        r"closed €9.00 .* Not paid in time: closed \d+ m?s after the deadline\. .* back in stock", card(client, mine)
    )


def test_a_second_click_on_pay_pays_nothing(client, mine):
    client.post(f"/orders/{mine.pk}/pay/")
    messages(client)
    client.post(f"/orders/{mine.pk}/pay/")

    assert messages(client) == [f"Order {mine.pk} is already paid."]
    assert Payment.objects.count() == 1


@pytest.mark.on_both
@pytest.mark.parametrize("action", ["pay", "refund"])
def test_another_visitors_order_cannot_be_paid_or_refunded(client, mine, order, action):
    assert client.post(f"/orders/{order.pk}/{action}/").status_code == 404
    assert client.post(f"/orders/{10**30}/{action}/").status_code == 404
    assert client.get(f"/orders/{mine.pk}/{action}/").status_code == 405
    assert set(Order.objects.values_list("state", flat=True)) == {"open"}
    assert "Pay" not in card(client, order)


def test_a_deleted_order_is_not_found_and_not_shown(client, mine):
    Order.objects.all().delete()

    assert client.post(f"/orders/{mine.pk}/pay/").status_code == 404
    assert client.get("/").status_code == 200


# Refunds


@pytest.fixture
def refund(client, mine):
    client.post(f"/orders/{mine.pk}/pay/")
    client.post(f"/orders/{mine.pk}/refund/")
    return Refund.objects.get()


def test_a_refund_shows_the_number_of_checks_and_the_time_of_the_next(client, mine, refund, fake_gateway):
    Refund.objects.update(reference=reference_with((PENDING, SETTLED)))
    assert re.search(r"The payment gateway has not been asked yet\. Next check in 0:0[54]\.", card(client, mine))

    run_now("refund.check", refund.key)
    run("refund.check")
    assert re.search(r"The payment gateway was asked once\. Next check in 0:(30|29)\.", card(client, mine))

    run_now("refund.check", refund.key)
    run("refund.check")
    assert "refunded" in card(client, mine)
    assert "The money is on its way back. The payment gateway was asked 2 times." in card(client, mine)
    assert "Next check" not in card(client, mine)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (Refund.State.FAILED, "refund failed"),
        (Refund.State.NEEDS_REVIEW, "staff review the refund"),
    ],
)
def test_an_unsuccessful_refund_says_so(client, mine, refund, state, text):
    refund.end(state)
    assert text in card(client, mine)


def test_a_running_check_is_not_counted_yet(client, mine, refund):
    run_now("refund.check", refund.key)
    claim_jobs("refund.check")

    assert "The payment gateway has not been asked yet." in card(client, mine)
    assert "Checking now …" in card(client, mine)


def test_only_a_paid_order_can_be_refunded_and_only_once(client, mine):
    client.post(f"/orders/{mine.pk}/refund/")
    client.post(f"/orders/{mine.pk}/pay/")
    for _ in range(2):
        client.post(f"/orders/{mine.pk}/refund/")

    assert messages(client).count("Only a paid order can be refunded, and only once.") == 2
    assert Refund.objects.count() == 1


# Changes by staff


def test_an_open_order_with_a_cancelled_timeout_has_no_countdown(client, mine):
    cancel("order.close", key=mine.key, by="anna")

    text = card(client, mine)
    assert "Staff cancelled the timeout: the order stays open until it is paid. Pay €9.00" in text
    assert "closes in" not in text


def test_an_open_order_with_a_dead_timeout_refers_to_staff(client, mine):
    now = databases.now_ms("default")
    Job.objects.update(state=State.DEAD, died_at=mine.created_at, ended_at=mine.created_at)

    assert "The timeout failed permanently: staff must check the order." in card(client, mine)
    assert selectors.get_storefront([mine.pk], staff=False).now_ms >= now


def test_a_rescheduled_timeout_has_the_new_countdown(client, mine):
    reschedule("order.close", mine.key, delay=3600, by="anna")

    assert re.search(r"closes in (1:00:00|59:59) unless", card(client, mine))


def test_only_staff_with_permission_to_view_jobs_get_a_link_to_the_job(client, mine, django_user_model):
    link = reverse("admin:delaytasks_job_change", args=[Job.objects.get().pk])
    user = django_user_model.objects.create_user("anna", password="x", is_staff=True)

    def has_link():
        html = client.get("/now/").json()["lists"]["mine"][0][2]
        assert (link in html) == (link in client.get("/").content.decode())
        return link in html

    def has_link_as(user: User):
        data = client.session["shop"]
        client.force_login(user)
        session = client.session
        session["shop"] = data
        session.save()
        return has_link()

    assert not has_link()
    assert not has_link_as(user)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert has_link_as(user)


# Live updates


def poll(client, since):
    return client.get("/now/", {"since": since}).json()


def test_an_unchanged_page_is_not_sent_again(client, mine, tea):
    first = client.get("/now/").json()
    again = poll(client, first["version"])

    assert set(first) == {"now", "version", "lists", "pieces"}
    assert set(again) == {"now", "version"}
    assert again["version"] == first["version"] == client.get("/").context["storefront"].version
    assert again["now"] >= first["now"]


def test_without_changes_only_the_time_is_sent(client, tea, db_clock):
    submit_order(client, tea)
    first = client.get("/now/").json()
    db_clock.advance(seconds=60)

    assert poll(client, first["version"]) == {"now": first["now"] + 60_000, "version": first["version"]}


def test_each_change_is_sent_as_html(client, mine, tea, fake_gateway):
    versions = []

    def changes():
        data = poll(client, versions[-1] if versions else "no version")
        versions.append(data["version"])
        return {id: html for id, _, html in [*data["lists"]["mine"], *data["lists"]["others"], *data["pieces"]]}

    assert "closes in" in changes()[f"order-{mine.pk}"]
    other = place_order(mine.customer, [(tea, 3)])
    assert "5 left" in changes()[f"stock-{tea.pk}"]
    pay_order(mine.pk)
    assert 'data-state="paid"' in changes()[f"order-{mine.pk}"]
    reschedule("order.close", other.key, delay=60)
    assert re.search("1:00|0:59", changes()[f"order-{other.pk}"])
    services.request_refund(mine.pk)
    assert 'data-state="pending"' in changes()[f"order-{mine.pk}"]
    Refund.objects.update(reference=reference_with((SETTLED,)))
    run_now("refund.check", Refund.objects.get().key)
    run("refund.check")
    assert 'data-state="settled"' in changes()[f"order-{mine.pk}"]


def test_my_orders_are_not_listed_among_those_of_others(client, mine, order):
    lists = client.get("/now/").json()["lists"]

    assert [id for id, _, _ in lists["mine"]] == [f"order-{mine.pk}"]
    assert [id for id, _, _ in lists["others"]] == [f"order-{order.pk}"]


@pytest.mark.on_both
def test_the_number_of_queries_does_not_grow_with_the_number_of_orders(
    client, mine, order, tea, cup, django_assert_max_num_queries
):
    Product.objects.update(stock=10_000)
    databases.clock("default").measure()  # refreshed every 15 s; its query must not count here
    with django_assert_max_num_queries(11) as few:
        client.get("/now/")
    for _ in range(selectors.MAX_ORDERS * 2):
        submit_order(client, tea)
        other = place_order(order.customer, [(tea, 1), (cup, 2)])
    for paid in Order.objects.filter(pk__lte=other.pk):
        pay_order(paid.pk)
        services.request_refund(paid.pk)
    databases.clock("default").measure()
    with django_assert_max_num_queries(11) as many:
        data = client.get("/now/").json()

    assert len(many) <= len(few) + 1  # one query for the refunds' jobs
    assert [len(cards) for cards in data["lists"].values()] == [selectors.MAX_ORDERS, selectors.MAX_ORDERS, 0]


def test_an_order_that_closes_between_two_queries_is_shown_as_closed(mine, monkeypatch):
    read_jobs = selectors._newest_jobs

    def read_jobs_then_close(topic, keys):
        jobs = read_jobs(topic, keys)
        if topic == "order.close":
            run_now("order.close", mine.key)
            run("order.close")
        return jobs

    monkeypatch.setattr(selectors, "_newest_jobs", read_jobs_then_close)
    [card] = selectors.get_storefront([mine.pk], staff=False).mine

    assert card.state == "closed"
    assert card.timeout_text == "Not paid in time: the order is closed and its items are back in stock."


# The page


@pytest.mark.parametrize("path", ["/", "/now/"])
def test_names_are_escaped(client, mine, order, path):
    Product.objects.update(name="<b>tea</b>")
    Customer.objects.update(name="<i>Ada</i>")
    content = client.get(path).content.decode()
    html = content if path == "/" else str(client.get(path).json())

    assert "&lt;b&gt;tea" in html
    assert "&lt;i&gt;Ada" in html
    assert "<b>" not in html
    assert "<i>" not in html


def test_the_page_has_a_strict_csp_and_nothing_inline_or_external(client, mine):
    response = client.get("/")
    page = response.content.decode()

    assert response["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert "no-store" in response["Cache-Control"]
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|https?://", page) == []


@pytest.mark.parametrize("name", ["shop.css", "shop.js", "things.svg", "icon.svg"])
def test_static_files_of_the_shop_are_served(client, static_files, name):
    assert client.get(f"/static/shop/{name}").status_code == 200


def test_every_product_has_its_drawing(client, static_files):
    drawings = b"".join(client.get("/static/shop/things.svg")).decode()
    from project.demo.simulation import PRODUCTS
    from project.shop.templatetags.shop import DRAWINGS, drawing

    assert (
        set(re.findall(r'<symbol id="([\w-]+)"', drawings))
        == {*DRAWINGS, "parcel"}
        == {
            *map(drawing, PRODUCTS),
            drawing("anything else"),
        }
    )
