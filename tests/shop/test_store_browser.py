"""The storefront in a real browser: what moves by itself; by keyboard, on a phone, without scripts."""

import itertools
import re

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks import reschedule, worker
from delaytasks.models import Job
from delaytasks.states import State
from project.shop.gateway import PENDING, SETTLED
from project.shop.models import Order, Product, Refund
from project.shop.services import pay_order, place_order
from tests.browser import emulate, find, page_width, until

from .conftest import reference_with

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]


@pytest.fixture
def browser(visitor, site, settings, tea):
    """A browser that nobody has used before, on the storefront."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "LINGER_MS": 0}
    visitor.get(site)
    return visitor


def focused(browser):
    return browser.switch_to.active_element


def order(browser):
    """Order one packet of tea on the page; its row."""
    find(browser, ".tile button").click()
    until(browser, lambda browser: find(browser, "#mine .order"), "the order is on the page")
    return Order.objects.get()


def state_is(browser, state):
    """Waits until the order is shown in this state; the text of its card then."""
    card = f"#mine .order[data-state='{state}']"
    return until(browser, lambda browser: find(browser, card).text, f"the order is shown as {state}")


def clock(browser):
    """The seconds that are left, as the page shows them."""
    return seconds_of(until(browser, lambda browser: find(browser, "#mine .clock").text, "a clock"))


def seconds_of(text):
    minutes, seconds = text.split(":")
    return int(minutes) * 60 + int(seconds)


NOTE_EACH_CHANGE = """
    const text = () => document.querySelector('#mine .clock').textContent.trim();
    window.shown = [text()];
    const note = () => { if (text() !== window.shown.at(-1)) window.shown.push(text()); };
    new MutationObserver(note).observe(
        document.querySelector('#mine'), {childList: true, characterData: true, subtree: true});
"""


def run(topic):
    """Whatever is due of this topic now; how many."""
    return worker.run_topic(topic, using="default", worker="w1", ring=lambda topic: None)


def stays(browser):
    """Notes what page this is: the function that it returns tells whether it is still that one."""
    browser.execute_script("window.sameAsBefore = true")
    return lambda: browser.execute_script("return window.sameAsBefore === true")


def test_the_countdown_runs_by_the_servers_clock(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 90.0
    browser.refresh()  # its forms name the time to pay
    wrong = "const now = Date.now; Date.now = () => now() + 3_600_000"  # this machine's clock is an hour ahead
    script = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": wrong})
    order(browser)

    first = clock(browser)
    until(browser, lambda browser: clock(browser) < first, "the countdown goes on")

    browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    assert 60 < first <= 90


def test_a_timeout_that_staff_moved_is_counted_down_anew_without_a_reload(browser):
    placed = order(browser)
    same = stays(browser)

    reschedule("order.close", placed.key, delay=300)

    until(browser, lambda browser: 200 < clock(browser) <= 300, "the countdown ends in five minutes")
    assert same()


def test_paying_calls_the_job_off(browser):
    order(browser)
    find(browser, "#mine button").click()

    shown = state_is(browser, "paid")
    assert Job.objects.get().state == State.CANCELLED
    assert "Its timeout was called off." in shown
    assert "closes in" not in shown
    assert "(cancel() answered “cancelled”)" in find(browser, ".messages").text


def test_an_order_that_is_paid_in_one_tab_is_called_off_in_the_others(browser, site, admin_client):
    browser.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    browser.refresh()
    order(browser)
    shop = browser.current_window_handle
    job = find(browser, "#mine .job").get_attribute("href")  # staff find the way from an order to its job
    browser.switch_to.new_window("tab")
    browser.get(site)
    same_shop, second_shop = stays(browser), browser.current_window_handle
    state_is(browser, "open")
    browser.switch_to.new_window("tab")
    browser.get(job)
    until(browser, lambda browser: find(browser, ".field-shown_state .dt-state").text == "delayed", "the job waits")
    admin = browser.current_window_handle

    browser.switch_to.window(shop)
    find(browser, "#mine button").click()
    state_is(browser, "paid")

    browser.switch_to.window(second_shop)
    assert "Its timeout was called off." in state_is(browser, "paid")
    assert same_shop()
    browser.close()
    browser.switch_to.window(admin)
    browser.refresh()
    until(browser, lambda browser: find(browser, ".field-shown_state .dt-state").text == "cancelled", "the job is off")
    assert "cancelled" in find(browser, ".dt-timeline").text.lower()
    browser.close()
    browser.switch_to.window(shop)


def test_the_clock_shows_minutes_and_seconds_and_counts_each_of_them(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0  # 12:32
    browser.refresh()
    order(browser)
    shown = until(browser, lambda browser: find(browser, "#mine .fate").text, "the countdown")
    assert re.fullmatch(r"closes in 12:(3[012]|2\d) unless it is paid", shown)
    browser.execute_script(NOTE_EACH_CHANGE)
    until(browser, lambda browser: len(browser.execute_script("return window.shown")) > 2, "two seconds to pass")
    seen = [seconds_of(text) for text in browser.execute_script("return window.shown")]
    assert {0, 1} >= {before - after for before, after in itertools.pairwise(seen)}, "none is left out"


def test_an_order_that_nobody_pays_turns_closed_by_itself(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 1.5
    browser.refresh()
    order(browser)
    same = stays(browser)
    until(browser, lambda browser: "closing" in find(browser, "#mine .fate").text, "its time is over")
    assert find(browser, "#mine button").is_displayed()  # whoever is first wins

    until(browser, lambda browser: run("order.close") == 1, "the database, too, finds it due")

    assert "back on the shelf" in state_is(browser, "closed")
    assert "closed" in find(browser, "#said").get_attribute("textContent")
    until(browser, lambda browser: "10 left" in find(browser, ".stock").text, "the stock is back")
    assert browser.find_elements(By.CSS_SELECTOR, "#mine button") == []
    assert same()


def test_what_others_order_appears_by_itself(browser, customer, tea):
    order(browser)  # something is open: the page asks often
    same = stays(browser)

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
    assert same()


def test_a_refund_is_followed_until_it_is_settled(browser, settings, stand_in):
    settings.SHOP_REFUND_LADDER_SECONDS = [0.2, 0.4]
    order(browser)
    find(browser, "#mine button").click()
    state_is(browser, "paid")
    same = stays(browser)
    find(browser, "#mine button").click()
    state_is(browser, "pending")
    assert not same()  # a form was sent, and answered by a page
    same = stays(browser)
    Refund.objects.update(reference=reference_with((PENDING, SETTLED)))

    until(browser, lambda _: run("refund.check"), "the gateway is asked")
    until(browser, lambda browser: "asked once" in find(browser, "#mine .order").text, "the page knows of it")
    until(browser, lambda _: run("refund.check"), "the gateway is asked again")

    assert "asked 2 times" in state_is(browser, "settled")
    assert same()


def test_by_keyboard_alone_somebody_orders_and_pays(browser):
    find(browser, ".tile input[type=number]").send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "#mine button"), "the order is on the page")

    until(browser, lambda browser: focused(browser).get_attribute("class") == "order", "it has the focus")
    focused(browser).send_keys(Keys.TAB)
    assert focused(browser).text.startswith("Pay")
    focused(browser).send_keys(Keys.ENTER)

    state_is(browser, "paid")


def test_a_button_keeps_the_focus_when_its_card_is_replaced_and_hands_it_to_the_card_when_it_goes(browser):
    placed = order(browser)
    browser.execute_script("document.querySelector('#mine button').focus()")
    version = find(browser, "#mine .order").get_attribute("data-version")

    reschedule("order.close", placed.key, delay=0.1)
    until(browser, lambda browser: find(browser, "#mine .order").get_attribute("data-version") != version, "a new card")
    assert focused(browser).text.startswith("Pay")

    until(browser, lambda _: run("order.close"), "it is closed")
    state_is(browser, "closed")
    assert focused(browser).get_attribute("id") == f"order-{placed.pk}"


def test_without_scripts_everything_is_done_by_forms(browser):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.refresh()
        order(browser)
        find(browser, "#mine button").click()
        state_is(browser, "paid")
        find(browser, "#mine button").click()
        state_is(browser, "pending")
        assert find(browser, "noscript a").is_displayed()
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_a_page_that_nobody_looks_at_asks_nothing_and_is_up_to_date_when_it_is_looked_at(browser, site, tea):
    placed = order(browser)
    shop = browser.current_window_handle
    look_away(browser, True)
    asked = len(looks(browser))

    browser.switch_to.new_window("tab")
    browser.get(site)
    for stock in (7, 3):  # the second needs a whole rest of that page: as long as ours would have rested
        Product.objects.filter(pk=tea.pk).update(stock=stock)
        until(browser, lambda browser, n=stock: f"{n} left" in find(browser, ".stock").text, "the other tab knows it")
    browser.close()
    browser.switch_to.window(shop)
    assert len(looks(browser)) == asked
    assert "9 left" in find(browser, ".stock").text

    look_away(browser, False)
    until(browser, lambda browser: "3 left" in find(browser, ".stock").text, "it knows it, too")
    assert find(browser, f"#order-{placed.pk}").is_displayed()


def look_away(browser, away):
    """What the browser does when its tab is hidden or seen again."""
    hidden = f"Object.defineProperty(document, 'hidden', {{ value: {str(away).lower()}, configurable: true }});"
    browser.execute_script(hidden + "document.dispatchEvent(new Event('visibilitychange'))")


def looks(browser):
    return [url for url in requested(browser) if "/now/" in url]


def requested(browser):
    """The addresses that this page has asked for."""
    entries = browser.execute_script("return performance.getEntriesByType('resource').map((one) => one.name)")
    return [url.split("#")[0] for url in entries]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, dark):
    emulate(browser, dark=dark, width=390)
    order(browser)

    ground = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    red, _, _ = (int(part) for part in re.findall(r"\d+", ground))
    assert page_width(browser) == 390
    assert (red < 60) == dark


def test_no_request_leaves_the_site(browser, site):
    order(browser)
    until(browser, looks, "it has looked once")

    assert {"shop.css", "shop.js", "things.svg"} <= {url.rsplit("/", 1)[-1] for url in requested(browser)}
    assert [url for url in requested(browser) if not url.startswith(site)] == []


def test_a_visitor_who_prefers_chinese_gets_the_shop_and_its_countdown_in_chinese(browser, settings):
    settings.SHOP_PAY_WITHIN_SECONDS = 752.0
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Accept-Language": "zh-CN,zh;q=0.9"}})
    try:
        browser.refresh()
        order(browser)
        fate = until(browser, lambda browser: find(browser, "#mine .fate").text, "the countdown")
        assert re.search(r"12:(3[012]|2\d)", fate)
        buttons = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "main button")]
        assert [text for text in (fate, *buttons) if re.search("[A-Za-z]{3,}", text)] == []
        assert [text for text in (fate, *buttons) if not re.search(r"[\u4e00-\u9fff]", text)] == []
        find(browser, "#mine button").click()
        assert "已付款" in state_is(browser, "paid")
    finally:
        browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})
