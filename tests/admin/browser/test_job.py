"""The list and a job's page in a real browser: keyboard, phone width, dark theme, time zones."""

from datetime import timedelta

import pytest

from delaytasks.admin import display
from delaytasks.models import Job, JobEvent, Topic
from delaytasks.states import Outcome, State
from tests.support.browser import PHONE, expect, page_width, tab_to
from tests.support.contrast import contrast, luminance
from tests.support.servers import wait_until

from ..conftest import NOW, make_event, make_job

# The browser is in Tokyo; the server is in UTC.
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.browser_context_args(timezone_id="Asia/Tokyo")]
LIST = "/admin/delaytasks/job/"


def page_of(job: Job) -> str:
    return f"{LIST}{job.pk}/change/"


def test_times_are_in_the_browsers_zone_and_their_titles_name_the_servers(page, site):
    make_job("order:1", due=timedelta())
    page.goto(site + LIST)
    stamp = page.locator(".field-due time")
    expect(stamp).to_have_text("2030-01-01 09:00:00")  # in Tokyo
    assert stamp.get_attribute("title") == "2030-01-01 00:00:00 UTC"
    assert page.locator(".dt-zone").inner_text() == "Times are in Asia/Tokyo, as in this browser."


def test_a_job_page_shows_all_times_in_the_browsers_zone(page, site):
    job = make_job("order:1", due=timedelta(milliseconds=7))
    make_event(job, Outcome.SNOOZED, attempt=1, reserved_ms=1_893_456_000_020, next_due_ms=1_893_456_060_007)
    page.goto(site + page_of(job))
    expect(page.locator(".dt-zone")).to_contain_text("Asia/Tokyo")
    assert page.locator(".dt-timeline li .dt-facts time").first.inner_text() == "2030-01-01 09:01:00.007"
    assert "2030-01-01 00:" not in page.locator("#content").inner_text()


def test_today_is_the_browsers_day_after_the_first_visit(page, site):
    make_job("yesterday here, today in Tokyo", due=timedelta(hours=-8))
    make_job("today here, tomorrow in Tokyo", due=timedelta(hours=20))

    def paths() -> list[str]:
        return [cookie["path"] for cookie in page.context.cookies() if cookie["name"] == display.ZONE_COOKIE]

    page.goto(site + LIST)
    assert wait_until(paths, seconds=60, what="the cookie") == ["/admin/"]
    page.goto(site + LIST + "?due=today")
    assert page.locator("tbody .field-linked_key").all_inner_texts() == ["yesterday here, today in Tokyo"]


def test_a_job_is_cancelled_with_a_reason_by_keyboard_alone(page, site):
    job = make_job("order:1")
    page.goto(site + page_of(job))
    tab_to(page, "e.id === 'dt-reason'")
    page.keyboard.type("they called")
    page.keyboard.press("Enter")
    assert page.locator("#dt-reason").input_value() == "they called", "Enter in a field does nothing"
    assert not JobEvent.objects.exists()
    tab_to(page, "e.value === 'cancel_jobs'")
    page.keyboard.press("Enter")
    page.locator(".dt-submit").wait_for()
    assert page.locator("[name=reason]").input_value() == "they called"
    tab_to(page, "e.type === 'submit' && e.value === 'Cancel 1 job'")
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist")).to_contain_text("Cancelled 1")
    page.wait_for_load_state()
    assert page.url == site + page_of(job)
    assert "Reason: they called" in page.locator(".dt-timeline").inner_text()
    assert page.locator(".dt-act button").count() == 0


def test_a_job_is_postponed_by_keyboard_alone(page, site):
    job = make_job("order:1")
    page.goto(site + page_of(job))
    tab_to(page, "e.id === 'dt-amount'")
    for key in ("Backspace", "3", "Tab", "d"):
        page.keyboard.press(key)
    tab_to(page, "e.value === 'postpone_jobs'")
    page.keyboard.press("Space")
    expect(page.locator(".messagelist")).to_contain_text("Postponed 1")
    job.refresh_from_db()
    assert job.due_at == NOW + timedelta(days=3, hours=1)


def test_a_form_is_not_submitted_without_a_required_reason(page, site):
    Topic.objects.update(ask_reason=True)
    job = make_job("order:1")
    page.goto(site + page_of(job))
    page.locator("button[value=cancel_jobs]").click()
    expect(page.locator("#dt-reason")).to_be_focused()  # the browser requires it
    assert not JobEvent.objects.exists()


def test_a_traceback_opens_and_scrolls_by_keyboard(page, site):
    lines = "\n".join(f"line {number} {'x' * 200}" for number in range(200))
    job = make_job("order:1", State.DEAD, error=f"Traceback\n{lines}\nValueError: no such bank")
    page.goto(site + page_of(job))
    tab_to(page, "e.tagName === 'SUMMARY' && e.textContent.includes('no such bank')")
    page.keyboard.press("Enter")
    tab_to(page, "e.tagName === 'PRE' && e.textContent.includes('line 7')")
    page.keyboard.press("PageDown")
    wait_until(lambda: page.evaluate("document.activeElement.scrollTop > 0"), seconds=60, what="it to scroll")


def test_pages_of_the_list_are_navigated_by_keyboard(page, site):
    for number in range(101):
        make_job(f"order:{number:03}")
    page.goto(site + LIST)
    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(100)
    rows.last.locator("a").first.focus()
    tab_to(page, "e.rel === 'next'")
    page.keyboard.press("Enter")
    expect(rows).to_have_count(1)
    tab_to(page, "e.rel === 'prev'")


@pytest.mark.browser_context_args(**PHONE)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("state", [State.DELAYED, State.DEAD, State.RESERVED], ids=lambda state: state.word)
def test_on_a_phone_the_job_page_fits_the_width(page, site, theme, state):
    job = make_job("order:" + "long" * 60, state, error="x" * 500, body={"x" * 200: "y" * 500})
    make_event(job, Outcome.FAILED, attempt=1, error="z" * 500, worker="w" * 200, reason="r" * 250, reserved_ms=1)
    page.emulate_media(color_scheme=theme)
    for address in (page_of(job), LIST, f"{LIST}?state={state.word}"):
        page.goto(site + address)
        expect(page.locator(".dt-zone")).to_contain_text("Asia/Tokyo")
        assert page.evaluate("innerWidth") == page_width(page) == 390, address
    page.goto(site + page_of(job))
    for button in page.locator(".dt-act .button, .dt-act input:not([type=hidden])").filter(visible=True).all():
        box = button.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_diagram_is_legible_in_light_and_dark(page, site, theme):
    page.emulate_media(color_scheme=theme)
    for state in State:
        page.goto(site + page_of(make_job(f"order:{state}", state)))
        ground = luminance(page, "body", "backgroundColor")
        here = luminance(page, ".dt-life .dt-here rect", "fill")
        assert (ground < 0.2) is (theme == "dark")
        assert contrast(here, luminance(page, ".dt-life .dt-here text", "fill")) >= 4.5, state.word
        assert contrast(ground, here) >= 3, state.word
        assert contrast(ground, luminance(page, ".dt-life .dt-node:not(.dt-here) text", "fill")) >= 4.5
        assert contrast(ground, luminance(page, ".field-shown_state .dt-state", "color")) >= 4.5


def test_the_focus_is_visible(page, site):
    page.goto(site + page_of(make_job("order:1")))
    for what in ("e.id === 'dt-reason'", "e.value === 'postpone_jobs'", "e.value === 'cancel_jobs'"):
        tab_to(page, what)
