"""The storefront in a real browser: live updates, keyboard, phone, and without scripts."""

import itertools
import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks import reschedule
from delaytasks.models import Job
from delaytasks.states import State
from delaytasks.worker import runner
from project.shop.gateway import PENDING, SETTLED
from project.shop.models import Order, Product, Refund
from project.shop.services import pay_order, place_order
from tests.support.browser import emulate, find, page_width, until

from ..conftest import reference_with

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def browser(visitor, site, settings, tea):
    """A browser without cookies, on the storefront."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}
    visitor.get(site)
    return visitor


def focused(browser):
    return browser.switch_to.active_element


def order(browser):
    """Order one unit of tea on the page; return the order."""
    find(browser, ".tile button").click()
    until(browser, lambda browser: find(browser, "#mine .order"), "the order is on the page")
    return Order.objects.get()


def wait_for_state(browser, state):
    """Wait until the card shows this state; return its text."""
    card = f"#mine .order[data-state='{state}']"
    return until(browser, lambda browser: find(browser, card).text, f"the order is shown as {state}")


def remaining_seconds(browser):
    """Return the remaining seconds that the page shows."""
    return parse_time(until(browser, lambda browser: find(browser, "#mine .clock").text, "a clock"))


def parse_time(text):
    minutes, seconds = text.split(":")
    return int(minutes) * 60 + int(seconds)


RECORD_COUNTDOWN = """
    const text = () => document.querySelector('#mine .clock').textContent.trim();
    window.texts = [text()];
    const record = () => { if (text() !== window.texts.at(-1)) window.texts.push(text()); };
    new MutationObserver(record).observe(
        document.querySelector('#mine'), {childList: true, characterData: true, subtree: true});
"""


def run(topic):
    """Run the due jobs of a topic; return their number."""
    return runner.run_topic(topic, using="default", worker="w1", dispatch_topic=lambda topic: None)


def mark_page(browser):
    """Mark the current page; return a function that checks that it was not reloaded."""
    browser.execute_script("window.marked = true")
    return lambda: browser.execute_script("return window.marked === true")


def test_the_countdown_uses_the_servers_clock(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 90.0
    browser.refresh()  # its forms contain the time to pay
    wrong_clock = "const now = Date.now; Date.now = () => now() + 3_600_000"  # the local clock is an hour ahead
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": wrong_clock})
    order(browser)

    first = remaining_seconds(browser)
    until(browser, lambda browser: remaining_seconds(browser) < first, "the countdown goes on")

    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert 60 < first <= 90


def test_a_rescheduled_timeout_updates_the_countdown_without_a_reload(browser):
    placed = order(browser)
    not_reloaded = mark_page(browser)

    reschedule("order.close", placed.key, delay=300)

    until(browser, lambda browser: 200 < remaining_seconds(browser) <= 300, "the countdown ends in five minutes")
    assert not_reloaded()


def test_paying_cancels_the_job(browser):
    order(browser)
    find(browser, "#mine button").click()

    text = wait_for_state(browser, "paid")
    assert Job.objects.get().state == State.CANCELLED
    assert "The timeout was cancelled." in text
    assert "closes in" not in text
    assert "is paid." in find(browser, ".messages").text


def test_a_payment_in_one_tab_is_shown_in_the_others(browser, site, admin_client):
    browser.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    browser.refresh()
    order(browser)
    shop = browser.current_window_handle
    job = find(browser, "#mine .job").get_attribute("href")  # the card's link for staff
    browser.switch_to.new_window("tab")
    browser.get(site)
    shop_not_reloaded, second_shop = mark_page(browser), browser.current_window_handle
    wait_for_state(browser, "open")
    browser.switch_to.new_window("tab")
    browser.get(job)
    until(
        browser, lambda browser: find(browser, ".field-shown_state .dt-state").text == "delayed", "the job is delayed"
    )
    admin = browser.current_window_handle

    browser.switch_to.window(shop)
    find(browser, "#mine button").click()
    wait_for_state(browser, "paid")

    browser.switch_to.window(second_shop)
    assert "The timeout was cancelled." in wait_for_state(browser, "paid")
    assert shop_not_reloaded()
    browser.close()
    browser.switch_to.window(admin)
    browser.refresh()
    until(
        browser,
        lambda browser: find(browser, ".field-shown_state .dt-state").text == "cancelled",
        "the job is cancelled",
    )
    assert "cancelled" in find(browser, ".dt-timeline").text.lower()
    browser.close()
    browser.switch_to.window(shop)


def test_the_countdown_shows_every_second(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0  # 12:32
    browser.refresh()
    order(browser)
    text = until(browser, lambda browser: find(browser, "#mine .outcome").text, "the countdown")
    assert re.fullmatch(r"closes in 12:(3[012]|2\d) unless it is paid", text)
    browser.execute_script(RECORD_COUNTDOWN)
    until(browser, lambda browser: len(browser.execute_script("return window.texts")) > 2, "two seconds to pass")
    times = [parse_time(text) for text in browser.execute_script("return window.texts")]
    assert {0, 1} >= {before - after for before, after in itertools.pairwise(times)}, "no second is skipped"


def test_an_unpaid_order_is_shown_as_closed_without_a_reload(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 1.5
    browser.refresh()
    order(browser)
    not_reloaded = mark_page(browser)
    until(browser, lambda browser: "closing" in find(browser, "#mine .outcome").text, "the countdown to end")
    assert find(browser, "#mine button").is_displayed()  # it can still be paid until the close runs

    until(browser, lambda browser: run("order.close") == 1, "the job to be due by the database's clock")

    assert "back in stock" in wait_for_state(browser, "closed")
    assert "closed" in find(browser, "#announcement").get_attribute("textContent")
    until(browser, lambda browser: "10 left" in find(browser, ".stock").text, "the stock is back")
    assert browser.find_elements(By.CSS_SELECTOR, "#mine button") == []
    assert not_reloaded()


def test_other_customers_orders_appear_without_a_reload(browser, customer, tea):
    order(browser)  # an open order makes the page poll more often
    not_reloaded = mark_page(browser)

    first, second = (place_order(customer, [(tea, 1)]) for _ in range(2))
    until(
        browser,
        lambda browser: (
            [card.get_attribute("id") for card in browser.find_elements(By.CSS_SELECTOR, "#others > li")]
            == [f"order-{second.pk}", f"order-{first.pk}"]
        ),
        "both are there, the newest first",
    )
    pay_order(first.pk)
    until(browser, lambda browser: find(browser, f"#order-{first.pk}[data-state=paid]"), "it is paid")
    assert not_reloaded()


def test_a_refund_is_updated_until_it_is_settled(browser, settings, fake_gateway, refund_ladder):
    settings.SHOP_REFUND_LADDER_SECONDS = [0.2]
    refund_ladder(0.4)
    order(browser)
    find(browser, "#mine button").click()
    wait_for_state(browser, "paid")
    not_reloaded = mark_page(browser)
    find(browser, "#mine button").click()
    wait_for_state(browser, "pending")
    assert not not_reloaded()  # the form loads a new page
    not_reloaded = mark_page(browser)
    Refund.objects.update(reference=reference_with((PENDING, SETTLED)))

    until(browser, lambda _: run("refund.check"), "the gateway is asked")
    until(browser, lambda browser: "asked once" in find(browser, "#mine .order").text, "the page to show it")
    until(browser, lambda _: run("refund.check"), "the gateway is asked again")

    assert "asked 2 times" in wait_for_state(browser, "settled")
    assert not_reloaded()


def test_an_order_can_be_placed_and_paid_by_keyboard(browser):
    find(browser, ".tile input[type=number]").send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "#mine button"), "the order is on the page")

    until(browser, lambda browser: focused(browser).get_attribute("class") == "order", "it has the focus")
    focused(browser).send_keys(Keys.TAB)
    assert focused(browser).text.startswith("Pay")
    focused(browser).send_keys(Keys.ENTER)

    wait_for_state(browser, "paid")


def test_the_focus_stays_on_a_button_of_a_replaced_card_or_moves_to_the_card(browser):
    placed = order(browser)
    browser.execute_script("document.querySelector('#mine button').focus()")
    version = find(browser, "#mine .order").get_attribute("data-version")

    reschedule("order.close", placed.key, delay=0.1)
    until(browser, lambda browser: find(browser, "#mine .order").get_attribute("data-version") != version, "a new card")
    assert focused(browser).text.startswith("Pay")

    until(browser, lambda _: run("order.close"), "it is closed")
    wait_for_state(browser, "closed")
    assert focused(browser).get_attribute("id") == f"order-{placed.pk}"


def test_everything_works_without_scripts(browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.refresh()
        order(browser)
        find(browser, "#mine button").click()
        wait_for_state(browser, "paid")
        find(browser, "#mine button").click()
        wait_for_state(browser, "pending")
        assert find(browser, "noscript a").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_hidden_page_does_not_poll_and_updates_when_it_becomes_visible(browser, site, tea):
    placed = order(browser)
    shop = browser.current_window_handle
    set_hidden(browser, True)
    count = len(polls(browser))

    browser.switch_to.new_window("tab")
    browser.get(site)
    for stock in (7, 3):  # the second change takes a full polling interval
        Product.objects.filter(pk=tea.pk).update(stock=stock)
        until(browser, lambda browser, n=stock: f"{n} left" in find(browser, ".stock").text, "the other tab to show it")
    browser.close()
    browser.switch_to.window(shop)
    assert len(polls(browser)) == count
    assert "9 left" in find(browser, ".stock").text

    set_hidden(browser, False)
    until(browser, lambda browser: "3 left" in find(browser, ".stock").text, "this tab to show it")
    assert find(browser, f"#order-{placed.pk}").is_displayed()


def set_hidden(browser, value):
    """Make the page hidden or visible, as when the tab is switched."""
    hidden = f"Object.defineProperty(document, 'hidden', {{ value: {str(value).lower()}, configurable: true }});"
    browser.execute_script(hidden + "document.dispatchEvent(new Event('visibilitychange'))")


def polls(browser):
    return [url for url in requested(browser) if "/now/" in url]


def requested(browser):
    """Return the URLs that this page requested."""
    entries = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    return [url.split("#")[0] for url in entries]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_the_page_is_not_wider_than_the_screen(browser, dark):
    emulate(browser, dark=dark, width=390)
    order(browser)

    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red, _, _ = (int(part) for part in re.findall(r"\d+", background))
    assert page_width(browser) == 390
    assert (red < 60) == dark


def test_no_request_leaves_the_site(browser, site):
    order(browser)
    until(browser, polls, "a poll")

    assert {"shop.css", "shop.js", "things.svg"} <= {url.rsplit("/", 1)[-1] for url in requested(browser)}
    assert [url for url in requested(browser) if not url.startswith(site)] == []


def test_the_page_and_its_countdown_are_in_chinese_for_a_chinese_browser(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Accept-Language": "zh-CN,zh;q=0.9"}})
    try:
        browser.refresh()
        order(browser)
        outcome = until(browser, lambda browser: find(browser, "#mine .outcome").text, "the countdown")
        assert re.search(r"12:(3[012]|2\d)", outcome)
        buttons = [button.text for button in browser.find_elements(By.CSS_SELECTOR, "main button")]
        assert [text for text in (outcome, *buttons) if re.search("[A-Za-z]{3,}", text)] == []
        assert [text for text in (outcome, *buttons) if not re.search(r"[\u4e00-\u9fff]", text)] == []
        find(browser, "#mine button").click()
        assert "已付款" in wait_for_state(browser, "paid")
    finally:
        browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
