"""A job's page in a real browser while the job is changed elsewhere."""

import pytest

from delaytasks import cancel, run_now
from delaytasks.admin import jobs
from delaytasks.states import Outcome
from tests.support.browser import expect, tab_to

from ..conftest import TOPIC, make_event, make_job

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_MS", 100)


def open_page(page, site, job):
    page.goto(f"{site}/admin/delaytasks/job/{job.pk}/change/")
    page.evaluate("window.notReloaded = true")


def test_a_job_cancelled_elsewhere_is_updated_without_a_reload(page, site):
    job = make_job("order:1")
    make_event(job, Outcome.FAILED, error="Traceback\nline 1\nValueError: no such bank")
    open_page(page, site, job)
    page.locator("#dt-timeline summary").click()
    page.evaluate("document.activeElement.blur()")
    cancel(TOPIC, key="order:1", by="ann", reason="paid in another tab")
    expect(page.locator(".dt-life .dt-cancelled.dt-here")).to_be_visible()
    assert "Reason: paid in another tab" in page.locator(".dt-timeline").inner_text()
    assert page.locator(".field-shown_state .readonly").inner_text() == "cancelled"
    assert page.locator(".dt-act").count() == 0
    assert "This job is cancelled." in page.locator("#dt-live").text_content()
    assert page.locator("#dt-timeline details").evaluate("e => e.open"), "open details stay open"
    assert page.evaluate("window.notReloaded"), "the page was not reloaded"


def test_typed_text_is_not_lost(page, site):
    job = make_job("order:1")
    open_page(page, site, job)
    reason = page.locator("#dt-reason")
    reason.fill("they called")
    reason.blur()
    run_now(TOPIC, "order:1")
    expect(page.locator("#dt-live")).to_have_text("This job has changed. Reload")
    assert reason.input_value() == "they called"
    page.locator("#dt-live a").click()
    expect(page.locator(".dt-life .dt-ready.dt-here")).to_be_visible()


def test_a_focused_button_is_not_replaced(page, site):
    job = make_job("order:1")
    open_page(page, site, job)
    tab_to(page, "e.value === 'cancel_jobs'")
    run_now(TOPIC, "order:1")
    expect(page.locator("#dt-live a")).to_be_visible()
    expect(page.locator("button[value=cancel_jobs]")).to_be_focused()
    page.keyboard.press("Space")
    page.locator(".dt-submit input[type=submit]").first.click()
    expect(page.locator(".messagelist")).to_contain_text("Cancelled 1")
