"""The storefront in a real browser: live updates, keyboard, phone, and without scripts."""

import itertools
import re

import pytest

from delaytasks import reschedule
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.worker import runner
from project.shop.gateway import PENDING, SETTLED
from project.shop.models import Order, Product, Refund
from project.shop.services import pay_order, place_order
from tests.support.browser import PHONE, expect, page_width
from tests.support.servers import wait_until

from ..conftest import reference_with

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def shop(visitor, site, settings, tea):
    """The storefront, in a browser without cookies."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}
    visitor.goto(site)
    return visitor


def order(shop):
    """Order one unit of tea on the page; return the order."""
    shop.locator(".tile button").first.click()
    shop.locator("#mine .order").wait_for()
    shop.wait_for_load_state()
    return Order.objects.get()


def card(shop, state):
    """Wait until the order's card shows this state; return the card."""
    found = shop.locator(f"#mine .order[data-state='{state}']")
    found.wait_for()
    return found


def remaining_seconds(shop):
    """Return the remaining seconds that the page shows."""
    return parse_time(shop.locator("#mine .clock").inner_text())


def parse_time(text):
    minutes, seconds = text.split(":")
    return int(minutes) * 60 + int(seconds)


RECORD_COUNTDOWN = """() => {
    const text = () => document.querySelector('#mine .clock').textContent.trim();
    window.texts = [text()];
    const record = () => { if (text() !== window.texts.at(-1)) window.texts.push(text()); };
    new MutationObserver(record).observe(
        document.querySelector('#mine'), {childList: true, characterData: true, subtree: true});
}"""


def run(topic):
    """Run the due jobs of a topic; return their number."""
    return runner.run_topic(topic, using="default", worker="w1", dispatch_topic=lambda topic: None)


def run_when_due(topic):
    wait_until(lambda: run(topic) == 1, seconds=60, what="the job to be due by the database's clock")


def mark_page(shop):
    """Mark the current page; return a function that checks that it was not reloaded."""
    shop.evaluate("window.marked = true")
    return lambda: shop.evaluate("window.marked === true")


def test_the_countdown_uses_the_servers_clock(shop, site, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 90.0
    shop = shop.context.new_page()  # whose local clock is an hour ahead
    shop.add_init_script("const now = Date.now; Date.now = () => now() + 3_600_000")
    shop.goto(site)
    order(shop)

    first = remaining_seconds(shop)
    wait_until(lambda: remaining_seconds(shop) < first, seconds=60, what="the countdown to go on")

    assert 60 < first <= 90


def test_a_rescheduled_timeout_updates_the_countdown_without_a_reload(shop):
    placed = order(shop)
    not_reloaded = mark_page(shop)

    reschedule("order.close", placed.key, delay=300)

    wait_until(lambda: 200 < remaining_seconds(shop) <= 300, seconds=60, what="an end in five minutes")
    assert not_reloaded()


def test_paying_cancels_the_job(shop):
    order(shop)
    shop.locator("#mine button").click()

    text = card(shop, "paid").inner_text()
    assert Job.objects.get().state == State.CANCELLED
    assert "The timeout was cancelled." in text
    assert "closes in" not in text
    assert "is paid." in shop.locator(".messages").inner_text()


@pytest.mark.usefixtures("page")  # logged in, so that the card has a link to the job
def test_a_payment_in_one_tab_is_shown_in_the_others(shop, site):
    order(shop)
    address = shop.locator("#mine .job").evaluate("link => link.href")
    second_shop, admin = shop.context.new_page(), shop.context.new_page()
    second_shop.goto(site)
    not_reloaded = mark_page(second_shop)
    card(second_shop, "open")
    admin.goto(address)
    state = admin.locator(".field-shown_state .dt-state")
    expect(state).to_have_text("delayed")

    shop.locator("#mine button").click()
    card(shop, "paid")

    assert "The timeout was cancelled." in card(second_shop, "paid").inner_text()
    assert not_reloaded()
    admin.reload()
    expect(state).to_have_text("cancelled")
    assert "cancelled" in admin.locator(".dt-timeline").inner_text().lower()


def test_the_countdown_shows_every_second(shop, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0  # 12:32
    shop.reload()
    order(shop)
    outcome = shop.locator("#mine .outcome").inner_text()
    assert re.fullmatch(r"closes in 12:(3[012]|2\d) unless it is paid", outcome)
    shop.evaluate(RECORD_COUNTDOWN)
    wait_until(lambda: shop.evaluate("window.texts.length") > 2, seconds=60, what="two seconds to pass")
    times = [parse_time(text) for text in shop.evaluate("window.texts")]
    assert {0, 1} >= {before - after for before, after in itertools.pairwise(times)}, "no second is skipped"


def test_an_unpaid_order_is_shown_as_closed_without_a_reload(shop, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 1.5
    shop.reload()
    order(shop)
    not_reloaded = mark_page(shop)
    expect(shop.locator("#mine .outcome")).to_contain_text("closing")
    assert shop.locator("#mine button").is_visible()  # it can still be paid until the close runs

    run_when_due("order.close")

    assert "back in stock" in card(shop, "closed").inner_text()
    assert "closed" in shop.locator("#announcement").text_content()
    expect(shop.locator(".stock")).to_contain_text("10 left")
    assert shop.locator("#mine button").count() == 0
    assert not_reloaded()


def test_other_customers_orders_appear_without_a_reload(shop, customer, tea):
    order(shop)  # an open order makes the page poll more often
    not_reloaded = mark_page(shop)

    first, second = (place_order(customer, [(tea, 1)]) for _ in range(2))
    ids = "[...document.querySelectorAll('#others > li')].map((card) => card.id)"
    newest_first = [f"order-{second.pk}", f"order-{first.pk}"]
    wait_until(lambda: shop.evaluate(ids) == newest_first, seconds=60, what="both, the newest first")
    pay_order(first.pk)
    shop.locator(f"#order-{first.pk}[data-state=paid]").wait_for()
    assert not_reloaded()


def test_a_refund_is_updated_until_it_is_settled(shop, settings, fake_gateway, refund_ladder):
    settings.SHOP_REFUND_LADDER_SECONDS = [0.2]
    refund_ladder(0.4)
    order(shop)
    shop.locator("#mine button").click()
    card(shop, "paid")
    not_reloaded = mark_page(shop)
    shop.locator("#mine button").click()
    card(shop, "pending")
    assert not not_reloaded()  # the form loads a new page
    not_reloaded = mark_page(shop)
    Refund.objects.update(reference=reference_with((PENDING, SETTLED)))

    run_when_due("refund.check")
    expect(shop.locator("#mine .order")).to_contain_text("asked once")
    run_when_due("refund.check")

    assert "asked 2 times" in card(shop, "settled").inner_text()
    assert not_reloaded()


def test_an_order_can_be_placed_and_paid_by_keyboard(shop):
    shop.locator(".tile input[type=number]").first.press("Enter")
    button = shop.locator("#mine button")
    button.wait_for()

    expect(shop.locator("#mine .order")).to_be_focused()
    shop.keyboard.press("Tab")
    expect(button).to_be_focused()
    assert button.inner_text().startswith("Pay")
    shop.keyboard.press("Enter")

    card(shop, "paid")


def test_the_focus_stays_on_a_button_of_a_replaced_card_or_moves_to_the_card(shop):
    placed = order(shop)
    shop.locator("#mine button").focus()
    version = shop.locator("#mine .order").get_attribute("data-version")

    reschedule("order.close", placed.key, delay=0.1)
    shop.locator(f"#mine .order:not([data-version='{version}'])").wait_for()
    assert shop.evaluate("document.activeElement.innerText").startswith("Pay")

    run_when_due("order.close")
    card(shop, "closed")
    assert shop.evaluate("document.activeElement.id") == f"order-{placed.pk}"


@pytest.mark.browser_context_args(java_script_enabled=False)
def test_everything_works_without_scripts(shop):
    order(shop)
    shop.locator("#mine button").click()
    card(shop, "paid")
    shop.locator("#mine button").click()
    card(shop, "pending")
    assert shop.locator("noscript a").is_visible()


def test_a_hidden_page_does_not_poll_and_updates_when_it_becomes_visible(shop, site, tea):
    placed = order(shop)
    set_hidden(shop, True)
    count = len(polls(shop))

    other = shop.context.new_page()
    other.goto(site)
    for stock in (7, 3):  # the second change takes a full polling interval
        Product.objects.filter(pk=tea.pk).update(stock=stock)
        expect(other.locator(".stock")).to_contain_text(f"{stock} left")
    other.close()
    assert len(polls(shop)) == count
    assert "9 left" in shop.locator(".stock").inner_text()

    set_hidden(shop, False)
    expect(shop.locator(".stock")).to_contain_text("3 left")
    assert shop.locator(f"#order-{placed.pk}").is_visible()


def set_hidden(shop, value):
    """Make the page hidden or visible, as when the tab is switched."""
    script = """(hidden) => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    shop.evaluate(script, value)


def polls(shop):
    return [url for url in requested(shop) if "/now/" in url]


def requested(shop):
    """Return the URLs that this page requested."""
    urls = shop.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
    return [url.split("#")[0] for url in urls]


@pytest.mark.browser_context_args(**PHONE)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_the_page_is_not_wider_than_the_screen(shop, theme):
    shop.emulate_media(color_scheme=theme)
    order(shop)

    background = shop.evaluate("getComputedStyle(document.body).backgroundColor")
    red, _, _ = (int(part) for part in re.findall(r"\d+", background))
    assert page_width(shop) == 390
    assert (red < 60) == (theme == "dark")


def test_no_request_leaves_the_site(shop, site):
    order(shop)
    wait_until(lambda: polls(shop), seconds=60, what="a poll")

    assert {"shop.css", "shop.js", "things.svg"} <= {url.rsplit("/", 1)[-1] for url in requested(shop)}
    assert [url for url in requested(shop) if not url.startswith(site)] == []


@pytest.mark.browser_context_args(locale="zh-CN")
def test_the_page_and_its_countdown_are_in_chinese_for_a_chinese_browser(shop, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0
    shop.reload()
    order(shop)
    outcome = shop.locator("#mine .outcome").inner_text()
    assert re.search(r"12:(3[012]|2\d)", outcome)
    texts = [outcome, *shop.locator("main button").all_inner_texts()]
    assert [text for text in texts if re.search("[A-Za-z]{3,}", text)] == []
    assert [text for text in texts if not re.search(r"[\u4e00-\u9fff]", text)] == []
    shop.locator("#mine button").click()
    assert "已付款" in card(shop, "paid").inner_text()
