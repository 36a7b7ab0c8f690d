"""The storefront, in this process: ordering, paying and asking back by its forms, and what it shows of it."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse

from delaytasks import CancelResult, cancel, claiming, engine, reschedule, run_now, worker
from delaytasks.models import Job
from delaytasks.states import State
from project.shop import seen, services
from project.shop.gateway import PENDING, SETTLED
from project.shop.models import Customer, Order, Payment, Product, Refund
from project.shop.services import pay_order, place_order
from project.shop.timeouts import close_unpaid_order

from .conftest import reference_with


@pytest.fixture(autouse=True)
def _quick(settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}


def order_by_form(client, tea, quantity=1, **others):
    return client.post("/orders/", {"product": tea.pk, "quantity": quantity, "keep": "1800"} | others)


@pytest.fixture
def mine(client, tea):
    """An open order of this browser."""
    order_by_form(client, tea, 2)
    return Order.objects.get()


def messages(client):
    return [str(message) for message in client.get("/").context["messages"]]


def card(client, order):
    """What the page shows of an order, as text."""
    html = re.search(rf'<li id="order-{order.pk}".*?</li>', client.get("/").content.decode(), re.DOTALL)
    assert html is not None
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"</?span[^>]*>", "", html[0])).split())


def take(topic):
    """What a worker holds before its handler runs."""
    return claiming.take(engine.places("default"), topic, 1, using="default", worker="w1")


def run(topic):
    return worker.run_topic(topic, using="default", worker="w1", ring=lambda topic: None)


# The shelf, and ordering


def test_the_shelf_has_prices_and_what_is_left(client, tea, cup):
    Product.objects.filter(pk=cup.pk).update(stock=0)
    page = client.get("/").content.decode()

    assert "€4.50" in page
    assert "10 left" in page
    assert "sold out" in page


def test_without_a_product_the_page_says_so(client, db):
    assert "Nothing is on sale yet." in client.get("/").content.decode()


def test_an_order_takes_its_stock_and_closes_when_the_page_says(client, tea):
    answer = order_by_form(client, tea, 2, keep="900")

    order, job = Order.objects.get(), Job.objects.get()
    tea.refresh_from_db()
    assert answer.status_code == 302
    assert answer.url == f"/?keep=900#order-{order.pk}"
    assert (tea.stock, order.total) == (8, Decimal(9))
    assert abs(job.due_at - order.created_at - timedelta(minutes=15)) < timedelta(seconds=1)
    assert re.search(r"2 × tea closes in 1(5:00|4:59) unless it is paid", card(client, order))


def test_the_shops_own_time_to_pay_is_offered_and_chosen_unless_another_is(client, tea, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 20.0

    assert client.get("/").context["times"] == [("20", "20 s"), ("120", "2 min"), ("900", "15 min")]
    assert client.get("/").context["keep"] == "20"
    assert client.get("/?keep=120").context["keep"] == "120"
    assert client.get("/?keep=1e9").context["keep"] == "20"


@pytest.mark.parametrize(
    "wrong",
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
def test_what_the_page_does_not_offer_is_not_ordered(client, tea, wrong):
    answer = client.post("/orders/", {"product": tea.pk, "quantity": 1, "keep": "1800"} | wrong)

    assert answer.status_code == 302
    assert len(messages(client)) == 1
    assert not Order.objects.exists()
    assert not Customer.objects.exists()


def test_nobody_orders_more_than_is_left(client, cup):
    order_by_form(client, cup, 6)

    assert messages(client) == ["Nothing was ordered: there are not so many left of “cup”."]
    assert not Order.objects.exists()
    assert not Job.objects.exists()


def test_a_browser_is_one_guest_and_has_no_cookie_before_it_orders(client, tea):
    client.get("/")
    assert "sessionid" not in client.cookies

    for _ in range(2):
        order_by_form(client, tea)
    order_by_form(Client(), tea)

    first, second, other = Order.objects.order_by("pk")
    assert first.customer == second.customer != other.customer
    assert re.fullmatch(r"Guest [0-9A-F]{4}", first.customer.name)


def test_a_form_from_elsewhere_is_refused(tea, order):
    client = Client(enforce_csrf_checks=True)

    assert order_by_form(client, tea).status_code == 403
    assert client.post(f"/orders/{order.pk}/pay/").status_code == 403
    page = client.get("/")
    assert order_by_form(client, tea, csrfmiddlewaretoken=page.context["csrf_token"]).status_code == 302


# Paying


def test_paying_calls_the_timeout_off_and_says_so(client, mine):
    answer = client.post(f"/orders/{mine.pk}/pay/", {"keep": "120"})

    mine.refresh_from_db()
    assert answer.url == f"/?keep=120#order-{mine.pk}"
    assert mine.state == Order.State.PAID
    assert Job.objects.get().state == State.CANCELLED
    assert messages(client) == [f"Order {mine.pk} is paid; its timeout was called off (cancel() answered “cancelled”)."]
    assert "paid €9.00 2 × tea Its timeout was called off. Ask for a refund" in card(client, mine)


def test_a_payment_while_the_timeout_is_running_says_that_it_was_not_called_off(client, mine, handed):
    run_now("order.close", mine.key)
    [held] = take("order.close")

    client.post(f"/orders/{mine.pk}/pay/")

    [message] = messages(client)
    assert f"Order {mine.pk} is paid; its timeout was already running: it finds the order paid and" in message
    assert "(cancel() answered “running”)" in message
    assert "Its timeout was already running; it finds the order paid" in card(client, mine)
    close_unpaid_order(handed(order=mine.pk))
    mine.refresh_from_db()
    assert mine.state == Order.State.PAID
    assert Job.objects.get(pk=held.id).state == State.RESERVED


def test_a_timeout_that_ran_after_the_payment_is_said_to_have_found_it(client, mine, monkeypatch):
    monkeypatch.setattr(services, "cancel", lambda topic, key: CancelResult.RUNNING)
    client.post(f"/orders/{mine.pk}/pay/")
    run_now("order.close", mine.key)
    run("order.close")

    assert "had already begun to run, found the order paid and left it alone" in card(client, mine)


def test_an_order_that_closed_meanwhile_is_not_paid_and_the_page_says_why(client, mine):
    run_now("order.close", mine.key)
    run("order.close")

    client.post(f"/orders/{mine.pk}/pay/")

    assert messages(client) == [f"Order {mine.pk} was not paid: its time was over, and it is closed."]
    assert not Payment.objects.exists()
    assert re.search(
        r"closed €9.00 .* Nobody paid: closed \d+ m?s after its time\. .* back on the shelf", card(client, mine)
    )


def test_a_second_click_on_pay_pays_nothing(client, mine):
    client.post(f"/orders/{mine.pk}/pay/")
    messages(client)
    client.post(f"/orders/{mine.pk}/pay/")

    assert messages(client) == [f"Order {mine.pk} was paid before."]
    assert Payment.objects.count() == 1


@pytest.mark.parametrize("what", ["pay", "refund"])
def test_nobody_pays_or_asks_back_the_order_of_somebody_else(client, mine, order, what):
    assert client.post(f"/orders/{order.pk}/{what}/").status_code == 404
    assert client.post(f"/orders/{10**30}/{what}/").status_code == 404
    assert client.get(f"/orders/{mine.pk}/{what}/").status_code == 405
    assert set(Order.objects.values_list("state", flat=True)) == {"open"}
    assert "Pay" not in card(client, order)


def test_an_order_that_is_gone_is_not_found_and_not_shown(client, mine):
    Order.objects.all().delete()

    assert client.post(f"/orders/{mine.pk}/pay/").status_code == 404
    assert client.get("/").status_code == 200


# Refunds


@pytest.fixture
def refund(client, mine):
    client.post(f"/orders/{mine.pk}/pay/")
    client.post(f"/orders/{mine.pk}/refund/")
    return Refund.objects.get()


def test_a_refund_tells_how_often_the_gateway_was_asked_and_when_it_is_asked_again(
    client, mine, refund, stand_in, settings
):
    settings.SHOP_REFUND_LADDER_SECONDS = [5, 30]
    Refund.objects.update(reference=reference_with((PENDING, SETTLED)))
    assert re.search(r"The gateway is asked about the refund\. The next question is in 0:0[54]\.", card(client, mine))

    run_now("refund.check", refund.key)
    run("refund.check")
    assert re.search(r"The gateway was asked once\. The next question is in 0:(30|29)\.", card(client, mine))

    run_now("refund.check", refund.key)
    run("refund.check")
    assert "refunded" in card(client, mine)
    assert "The money is on its way back. The gateway was asked 2 times." in card(client, mine)
    assert "question" not in card(client, mine)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (Refund.State.FAILED, "refund failed"),
        (Refund.State.NEEDS_A_PERSON, "a person looks into it"),
    ],
)
def test_a_refund_that_did_not_succeed_says_so(client, mine, refund, state, words):
    refund.end(state)
    assert words in card(client, mine)


def test_the_question_that_is_on_its_way_is_not_counted_yet(client, mine, refund):
    run_now("refund.check", refund.key)
    take("refund.check")

    assert "The gateway is asked about the refund." in card(client, mine)
    assert "Asking now …" in card(client, mine)


def test_a_refund_is_asked_for_once_and_of_a_paid_order_only(client, mine):
    client.post(f"/orders/{mine.pk}/refund/")
    client.post(f"/orders/{mine.pk}/pay/")
    for _ in range(2):
        client.post(f"/orders/{mine.pk}/refund/")

    assert messages(client).count("Only a paid order is refunded, and only once.") == 2
    assert Refund.objects.count() == 1


# What staff did to the job


def test_an_open_order_without_its_timeout_counts_nothing_down(client, mine):
    cancel("order.close", key=mine.key, by="anna")

    shown = card(client, mine)
    assert "Its timeout was called off by staff: it stays open until it is paid. Pay €9.00" in shown
    assert "closes in" not in shown


def test_an_open_order_whose_timeout_died_is_for_staff(client, mine):
    now = engine.now_ms("default")
    Job.objects.update(state=State.DEAD, died_at=mine.created_at, ended_at=mine.created_at)

    assert "Its timeout failed for good: staff have to look." in card(client, mine)
    assert seen.look([mine.pk], staff=False).now_ms >= now


def test_a_timeout_that_staff_moved_is_counted_down_to_where_it_is_now(client, mine):
    reschedule("order.close", mine.key, delay=3600, by="anna")

    assert re.search(r"closes in (1:00:00|59:59) unless", card(client, mine))


def test_only_staff_who_may_see_jobs_get_the_link_to_the_job(client, mine, django_user_model):
    link = reverse("admin:delaytasks_job_change", args=[Job.objects.get().pk])
    user = django_user_model.objects.create_user("anna", password="x", is_staff=True)

    def linked():
        html = client.get("/now/").json()["lists"]["mine"][0][2]
        assert (link in html) == (link in client.get("/").content.decode())
        return link in html

    def sees(user: User):
        kept = client.session["shop"]
        client.force_login(user)
        session = client.session
        session["shop"] = kept
        session.save()
        return linked()

    assert not linked()
    assert not sees(user)
    user.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert sees(user)


# What moves without a form


def changed(client, since):
    return client.get("/now/", {"since": since}).json()


def test_what_is_unchanged_is_not_sent_again(client, mine, tea):
    first = client.get("/now/").json()
    again = changed(client, first["version"])

    assert set(first) == {"now", "version", "lists", "pieces"}
    assert set(again) == {"now", "version"}
    assert again["version"] == first["version"] == client.get("/").context["sight"].version
    assert again["now"] >= first["now"]


def test_time_that_passes_changes_nothing_but_the_time(client, tea, db_clock):
    order_by_form(client, tea)
    first = client.get("/now/").json()
    db_clock.advance(seconds=60)

    assert changed(client, first["version"]) == {"now": first["now"] + 60_000, "version": first["version"]}


def test_each_change_is_sent_with_the_html_of_what_changed(client, mine, tea, stand_in):
    versions = []

    def news():
        answer = changed(client, versions[-1] if versions else "nothing like it")
        versions.append(answer["version"])
        return {id: html for id, _, html in [*answer["lists"]["mine"], *answer["lists"]["others"], *answer["pieces"]]}

    assert "closes in" in news()[f"order-{mine.pk}"]
    other = place_order(mine.customer, [(tea, 3)])
    assert "5 left" in news()[f"stock-{tea.pk}"]
    pay_order(mine.pk)
    assert 'data-state="paid"' in news()[f"order-{mine.pk}"]
    reschedule("order.close", other.key, delay=60)
    assert re.search("1:00|0:59", news()[f"order-{other.pk}"])
    services.ask_refund(mine.pk)
    assert 'data-state="pending"' in news()[f"order-{mine.pk}"]
    Refund.objects.update(reference=reference_with((SETTLED,)))
    run_now("refund.check", Refund.objects.get().key)
    run("refund.check")
    assert 'data-state="settled"' in news()[f"order-{mine.pk}"]


def test_my_orders_are_not_among_those_of_other_people(client, mine, order):
    lists = client.get("/now/").json()["lists"]

    assert [id for id, _, _ in lists["mine"]] == [f"order-{mine.pk}"]
    assert [id for id, _, _ in lists["others"]] == [f"order-{order.pk}"]


def test_a_look_asks_as_much_of_the_database_for_many_orders_as_for_two(
    client, mine, order, tea, cup, django_assert_max_num_queries
):
    Product.objects.update(stock=10_000)
    engine.clock("default").learn()  # which it does each 15 s, and not to be counted here
    with django_assert_max_num_queries(9) as few:
        client.get("/now/")
    for _ in range(seen.SHOWN * 2):
        order_by_form(client, tea)
        other = place_order(order.customer, [(tea, 1), (cup, 2)])
    for paid in Order.objects.filter(pk__lte=other.pk):
        pay_order(paid.pk)
        services.ask_refund(paid.pk)
    engine.clock("default").learn()
    with django_assert_max_num_queries(9) as many:
        answer = client.get("/now/").json()

    assert len(many) <= len(few) + 1  # the jobs of refunds
    assert [len(cards) for cards in answer["lists"].values()] == [seen.SHOWN, seen.SHOWN]


def test_an_order_is_never_shown_without_its_timeout_because_it_closed_between_two_statements(mine, monkeypatch):
    read_jobs = seen._newest_jobs

    def then_it_closes(topic, keys):
        found = read_jobs(topic, keys)
        if topic == "order.close":
            run_now("order.close", mine.key)
            run("order.close")
        return found

    monkeypatch.setattr(seen, "_newest_jobs", then_it_closes)
    [shown] = seen.look([mine.pk], staff=False).mine

    assert shown.state == "closed"
    assert shown.sentence == "Nobody paid: closed. What it held is back on the shelf."


# The page itself


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


def test_the_page_has_a_strict_policy_and_nothing_inline_or_from_elsewhere(client, mine):
    answer = client.get("/")
    page = answer.content.decode()

    assert answer["Content-Security-Policy"].startswith("default-src 'self'; ")
    assert "no-store" in answer["Cache-Control"]
    assert re.findall(r"<script(?![^>]*\ssrc=)", page) == []
    assert re.findall(r"<style|\sstyle=|\son\w+=|https?://", page) == []


@pytest.mark.parametrize("name", ["shop.css", "shop.js", "things.svg", "icon.svg"])
def test_its_files_are_served_with_the_project(client, name):
    assert client.get(f"/static/shop/{name}").status_code == 200


def test_every_drawing_that_a_product_can_have_is_there(client):
    drawings = b"".join(client.get("/static/shop/things.svg")).decode()
    from project.shop.play import PRODUCTS
    from project.shop.templatetags.shop import DRAWN, drawing

    assert (
        set(re.findall(r'<symbol id="([\w-]+)"', drawings))
        == {*DRAWN, "parcel"}
        == {
            *map(drawing, PRODUCTS),
            drawing("anything else"),
        }
    )
