"""The list and a job's page in a real browser: keyboard, phone width, dark theme, time zones."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks.admin import display
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import Outcome, State
from tests.support.browser import emulate, find, focus_is_visible, page_width, press, tab_to, until
from tests.support.contrast import contrast, luminance

from ..conftest import NOW, make_event, make_job

pytestmark = pytest.mark.xdist_group("browser")
LIST = "/admin/delaytasks/job/"
PHONE = 390


@pytest.fixture
def browser(browser: Chrome) -> Iterator[Chrome]:
    """A browser in Tokyo; the server is in UTC."""
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Tokyo"})
    yield browser
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def page_of(job: Job) -> str:
    return f"{LIST}{job.pk}/change/"


def test_times_are_in_the_browsers_zone_and_their_titles_name_the_servers(browser, site):
    make_job("order:1", due=timedelta())
    browser.get(site + LIST)
    stamp = until(browser, lambda b: find(b, ".field-due time"), "a time")
    until(browser, lambda b: stamp.text == "2030-01-01 09:00:00", "the time in Tokyo")
    assert stamp.get_attribute("title") == "2030-01-01 00:00:00 UTC"
    assert find(browser, ".dt-zone").text == "Times are in Asia/Tokyo, as in this browser."


def test_a_job_page_shows_all_times_in_the_browsers_zone(browser, site):
    job = make_job("order:1", due=timedelta(milliseconds=7))
    make_event(job, Outcome.SNOOZED, attempt=1, reserved_ms=1_893_456_000_020, next_due_ms=1_893_456_060_007)
    browser.get(site + page_of(job))
    until(browser, lambda b: "Asia/Tokyo" in find(b, ".dt-zone").text, "the zone")
    assert find(browser, ".dt-timeline li .dt-facts time").text == "2030-01-01 09:01:00.007"
    assert "2030-01-01 00:" not in find(browser, "#content").text


def test_today_is_the_browsers_day_after_the_first_visit(browser, site):
    make_job("yesterday here, today in Tokyo", due=timedelta(hours=-8))
    make_job("today here, tomorrow in Tokyo", due=timedelta(hours=20))
    browser.get(site + LIST)
    until(browser, lambda b: b.get_cookie(display.ZONE_COOKIE), "the cookie")
    assert browser.get_cookie(display.ZONE_COOKIE)["path"] == "/admin/"
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
    until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, ".dt-submit"), "the question")
    assert find(browser, "[name=reason]").get_property("value") == "they called"
    tab_to(browser, "e.type === 'submit' && e.value === 'Cancel 1 job'")
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


def test_a_form_is_not_submitted_without_a_required_reason(browser, site):
    Topic.objects.update(ask_reason=True)
    job = make_job("order:1")
    browser.get(site + page_of(job))
    find(browser, "button[value=cancel_jobs]").click()
    assert browser.execute_script("return document.activeElement.id") == "dt-reason", "the browser requires it"
    assert not JobEvent.objects.exists()


def test_a_traceback_opens_and_scrolls_by_keyboard(browser, site):
    lines = "\n".join(f"line {number} {'x' * 200}" for number in range(200))
    job = make_job("order:1", State.DEAD, error=f"Traceback\n{lines}\nValueError: no such bank")
    browser.get(site + page_of(job))
    tab_to(browser, "e.tagName === 'SUMMARY' && e.textContent.includes('no such bank')")
    press(browser, Keys.ENTER)
    tab_to(browser, "e.tagName === 'PRE' && e.textContent.includes('line 7')")
    press(browser, Keys.PAGE_DOWN)
    until(browser, lambda b: b.execute_script("return document.activeElement.scrollTop > 0"), "it scrolls")


def test_pages_of_the_list_are_navigated_by_keyboard(browser, site):
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
def test_on_a_phone_the_job_page_fits_the_width(browser, site, dark, state):
    job = make_job("order:" + "long" * 60, state, error="x" * 500, body={"x" * 200: "y" * 500})
    make_event(job, Outcome.FAILED, attempt=1, error="z" * 500, worker="w" * 200, reason="r" * 250, reserved_ms=1)
    emulate(browser, width=PHONE, dark=dark)
    for address in (page_of(job), LIST, f"{LIST}?state={state.word}"):
        browser.get(site + address)
        until(browser, lambda b: "Asia/Tokyo" in find(b, ".dt-zone").text, "the page")
        until(browser, lambda b: b.execute_script("return innerWidth") == PHONE, "the width of a phone")
        assert page_width(browser) == PHONE, address
    browser.get(site + page_of(job))
    for button in browser.find_elements(By.CSS_SELECTOR, ".dt-act .button, .dt-act input:not([type=hidden])"):
        box = button.rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= PHONE


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_diagram_is_legible_in_light_and_dark(browser, site, dark):
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


def test_the_focus_is_visible(browser, site):
    browser.get(site + page_of(make_job("order:1")))
    for what in ("e.id === 'dt-reason'", "e.value === 'postpone_jobs'", "e.value === 'cancel_jobs'"):
        tab_to(browser, what)
        assert focus_is_visible(browser), what
