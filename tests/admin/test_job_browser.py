"""The list and a job's page in a real browser: by keyboard, on a phone, in the dark, in its own time zone."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer
from selenium.webdriver import Chrome
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from delaytasks.admin import shown
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import Outcome, State
from tests.browser import complaints, emulate, open_browser, until

from .conftest import NOW, make_event, make_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]
LIST = "/admin/delaytasks/job/"
PHONE = 390


def strict_policy(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A middleware: nothing inline, nothing from elsewhere."""

    def answer(request: Any) -> Any:
        response = get_response(request)
        response["Content-Security-Policy"] = "default-src 'self'"
        return response

    return answer


@pytest.fixture(scope="module")
def site(django_db_setup: None) -> Iterator[str]:
    with override_settings(MIDDLEWARE=[f"{__name__}.strict_policy", *django_settings.MIDDLEWARE]):
        server = LiveServer("localhost")
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def _chromium() -> Iterator[Chrome]:
    with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(_chromium: Chrome, site: str, transactional_db: None, admin_client: Any) -> Iterator[Chrome]:
    """A browser in Tokyo in which the admin is logged in; the server is in UTC."""
    _chromium.get(site + "/static/delaytasks/admin.css")
    _chromium.delete_all_cookies()
    _chromium.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    _chromium.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    complaints(_chromium)
    yield _chromium
    emulate(_chromium)
    _chromium.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})
    _chromium.get("about:blank")  # it asks the server nothing while the tables are emptied
    assert [said for said in complaints(_chromium) if "/favicon.ico" not in said] == []  # pages of the admin have none


def page_of(job: Job) -> str:
    return f"{LIST}{job.pk}/change/"


def find(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def press(browser: Chrome, *keys: str) -> None:
    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser: Chrome, what: str) -> None:
    """Goes on with the Tab key until the focus is where the script `what` says, given the focused element."""
    for _ in range(80):
        press(browser, Keys.TAB)
        if browser.execute_script(f"const e = document.activeElement; return {what}"):
            return
    raise AssertionError(f"The Tab key does not lead to {what}.")


def outline(browser: Chrome) -> str:
    return browser.execute_script(
        "const s = getComputedStyle(document.activeElement); return s.outlineStyle + s.boxShadow"
    )


def test_times_are_shown_in_the_browsers_zone_and_name_the_servers(browser, site):
    make_job("order:1", due=timedelta())
    browser.get(site + LIST)
    stamp = until(browser, lambda b: find(b, ".field-due time"), "a time")
    until(browser, lambda b: stamp.text == "2030-01-01 09:00:00", "the time in Tokyo")
    assert stamp.get_attribute("title") == "2030-01-01 00:00:00 UTC"
    assert find(browser, ".dt-zone").text == "Times are in Asia/Tokyo, as in this browser."


def test_a_jobs_page_shows_its_whole_story_in_the_browsers_zone(browser, site):
    job = make_job("order:1", due=timedelta(milliseconds=7))
    make_event(job, Outcome.SNOOZED, attempt=1, reserved_ms=1_893_456_000_020, next_due_ms=1_893_456_060_007)
    browser.get(site + page_of(job))
    until(browser, lambda b: "Asia/Tokyo" in find(b, ".dt-zone").text, "the zone")
    assert find(browser, ".dt-timeline li .dt-facts time").text == "2030-01-01 09:01:00.007"
    assert "2030-01-01 00:" not in find(browser, "#content").text


def test_today_is_the_browsers_day_from_its_first_visit_on(browser, site):
    make_job("yesterday here, today in Tokyo", due=timedelta(hours=-8))
    make_job("today here, tomorrow in Tokyo", due=timedelta(hours=20))
    browser.get(site + LIST)
    until(browser, lambda b: b.get_cookie(shown.ZONE_COOKIE), "the cookie")
    assert browser.get_cookie(shown.ZONE_COOKIE)["path"] == "/admin/"
    browser.get(site + LIST + "?due=today")
    rows = until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "tbody .field-linked_key"), "jobs")
    assert [row.text for row in rows] == ["yesterday here, today in Tokyo"]


def test_a_job_is_cancelled_with_a_reason_by_keyboard_alone(browser, site):
    job = make_job("order:1")
    browser.get(site + page_of(job))
    tab_to(browser, "e.id === 'dt-reason'")
    press(browser, "they called", Keys.ENTER)
    assert find(browser, "#dt-reason").get_property("value") == "they called", "Enter in a field does nothing"
    assert not JobEvent.objects.exists()
    tab_to(browser, "e.value === 'cancel_jobs'")
    press(browser, Keys.ENTER)
    until(browser, lambda b: "Cancelled 1" in find(b, ".messagelist").text, "the answer")
    assert browser.current_url == site + page_of(job)
    assert "Reason: they called" in find(browser, ".dt-timeline").text
    assert not browser.find_elements(By.CSS_SELECTOR, ".dt-act button")


def test_a_job_is_postponed_by_keyboard_alone(browser, site):
    job = make_job("order:1")
    browser.get(site + page_of(job))
    tab_to(browser, "e.id === 'dt-amount'")
    press(browser, Keys.BACKSPACE, "3", Keys.TAB, "d")
    tab_to(browser, "e.value === 'postpone_jobs'")
    press(browser, Keys.SPACE)
    until(browser, lambda b: "Postponed 1" in find(b, ".messagelist").text, "the answer")
    job.refresh_from_db()
    assert job.due_at == NOW + timedelta(days=3, hours=1)


def test_a_topic_that_asks_for_a_reason_is_not_sent_off_without_one(browser, site):
    Topic.objects.update(ask_reason=True)
    job = make_job("order:1")
    browser.get(site + page_of(job))
    find(browser, "button[value=cancel_jobs]").click()
    assert browser.execute_script("return document.activeElement.id") == "dt-reason", "the browser asks for it"
    assert not JobEvent.objects.exists()


def test_a_traceback_unfolds_and_scrolls_by_keyboard(browser, site):
    lines = "\n".join(f"line {number} {'x' * 200}" for number in range(200))
    job = make_job("order:1", State.DEAD, error=f"Traceback\n{lines}\nValueError: no such bank")
    browser.get(site + page_of(job))
    tab_to(browser, "e.tagName === 'SUMMARY' && e.textContent.includes('no such bank')")
    press(browser, Keys.ENTER)
    tab_to(browser, "e.tagName === 'PRE' && e.textContent.includes('line 7')")
    press(browser, Keys.PAGE_DOWN)
    until(browser, lambda b: b.execute_script("return document.activeElement.scrollTop > 0"), "it scrolls")


def test_pages_of_the_list_are_gone_through_by_keyboard(browser, site):
    for number in range(101):
        make_job(f"order:{number:03}")
    browser.get(site + LIST)
    until(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, "#result_list tbody tr")) == 100, "a page")
    browser.execute_script("document.querySelector('#result_list tbody tr:last-child a').focus()")
    tab_to(browser, "e.rel === 'next'")
    press(browser, Keys.ENTER)
    until(browser, lambda b: len(b.find_elements(By.CSS_SELECTOR, "#result_list tbody tr")) == 1, "the next page")
    tab_to(browser, "e.rel === 'prev'")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("state", [State.DELAYED, State.DEAD, State.RESERVED], ids=lambda state: state.word)
def test_on_a_phone_nothing_sticks_out(browser, site, dark, state):
    job = make_job("order:" + "long" * 60, state, error="x" * 500, body={"x" * 200: "y" * 500})
    make_event(job, Outcome.FAILED, attempt=1, error="z" * 500, worker="w" * 200, reason="r" * 250, reserved_ms=1)
    emulate(browser, width=PHONE, dark=dark)
    for address in (page_of(job), LIST, f"{LIST}?state={state.word}"):
        browser.get(site + address)
        until(browser, lambda b: "Asia/Tokyo" in find(b, ".dt-zone").text, "the page")
        until(browser, lambda b: b.execute_script("return innerWidth") == PHONE, "the width of a phone")
        assert browser.execute_script("return document.documentElement.scrollWidth") == PHONE, address
    browser.get(site + page_of(job))
    for button in browser.find_elements(By.CSS_SELECTOR, ".dt-act .button, .dt-act input:not([type=hidden])"):
        box = button.rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE


def luminance(browser: Chrome, selector: str, what: str) -> float:
    """Relative luminance of an element's colour, as contrast is made of."""
    colour = browser.execute_script(f"return getComputedStyle(document.querySelector('{selector}')).{what}")
    channels = [float(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: float, b: float) -> float:
    return (max(a, b) + 0.05) / (min(a, b) + 0.05)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_drawing_is_legible_light_and_dark(browser, site, dark):
    emulate(browser, dark=dark)
    for state in State:
        browser.get(site + page_of(make_job(f"order:{state}", state)))
        page = luminance(browser, "body", "backgroundColor")
        here = luminance(browser, ".dt-life .dt-here rect", "fill")
        assert (page < 0.2) is dark
        assert contrast(here, luminance(browser, ".dt-life .dt-here text", "fill")) >= 4.5, state.word
        assert contrast(page, here) >= 3, state.word
        assert contrast(page, luminance(browser, ".dt-life .dt-node:not(.dt-here) text", "fill")) >= 4.5
        assert contrast(page, luminance(browser, ".field-shown_state .dt-state", "color")) >= 4.5


def test_what_has_the_focus_can_be_seen(browser, site):
    browser.get(site + page_of(make_job("order:1")))
    for what in ("e.id === 'dt-reason'", "e.value === 'postpone_jobs'", "e.value === 'cancel_jobs'"):
        tab_to(browser, what)
        assert outline(browser) not in ("nonenone", "none"), what
