"""A job's page in a real browser while the job is changed elsewhere."""

import pytest

from delaytasks import cancel, run_now
from delaytasks.admin import jobs
from delaytasks.states import Outcome
from tests.support.browser import find, find_all, press, tab_to, until

from ..conftest import TOPIC, make_event, make_job

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(autouse=True)
def _soon(monkeypatch):
    monkeypatch.setattr(jobs, "POLL_MS", 100)


def open_page(browser, site, job):
    browser.get(f"{site}/admin/delaytasks/job/{job.pk}/change/")
    browser.execute_script("window.notReloaded = true")


def test_a_job_cancelled_elsewhere_is_updated_without_a_reload(browser, site):
    job = make_job("order:1")
    make_event(job, Outcome.FAILED, error="Traceback\nline 1\nValueError: no such bank")
    open_page(browser, site, job)
    find(browser, "#dt-timeline summary").click()
    browser.execute_script("document.activeElement.blur()")
    cancel(TOPIC, key="order:1", by="ann", reason="paid in another tab")
    until(browser, lambda b: find_all(b, ".dt-life .dt-cancelled.dt-here"), "the drawing")
    assert "Reason: paid in another tab" in find(browser, ".dt-timeline").text
    assert find(browser, ".field-shown_state .readonly").text == "cancelled"
    assert not find_all(browser, ".dt-act")
    assert "This job is cancelled." in find(browser, "#dt-live").get_attribute("textContent")
    assert find(browser, "#dt-timeline details").get_attribute("open"), "open details stay open"
    assert browser.execute_script("return window.notReloaded"), "the page was not reloaded"


def test_typed_text_is_not_lost(browser, site):
    job = make_job("order:1")
    open_page(browser, site, job)
    find(browser, "#dt-reason").send_keys("they called")
    browser.execute_script("document.activeElement.blur()")
    run_now(TOPIC, "order:1")
    link = until(browser, lambda b: find(b, "#dt-live a"), "the link to reload")
    assert find(browser, "#dt-live").text == "This job has changed. Reload"
    assert find(browser, "#dt-reason").get_property("value") == "they called"
    link.click()
    until(browser, lambda b: find_all(b, ".dt-life .dt-ready.dt-here"), "the job as it is now")


def test_a_focused_button_is_not_replaced(browser, site):
    job = make_job("order:1")
    open_page(browser, site, job)
    tab_to(browser, "e.value === 'cancel_jobs'")
    run_now(TOPIC, "order:1")
    until(browser, lambda b: find(b, "#dt-live a"), "the link to reload")
    assert browser.execute_script("return document.activeElement.value") == "cancel_jobs"
    press(browser, " ")
    until(browser, lambda b: find_all(b, ".dt-submit input[type=submit]"), "the question")[0].click()
    until(browser, lambda b: "Cancelled 1" in find(b, ".messagelist").text, "the answer")
