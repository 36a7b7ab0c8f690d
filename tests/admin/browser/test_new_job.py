"""Scheduling a job in a real browser: by keyboard, on a phone, in both themes and with times of the browser's zone."""

from datetime import timedelta

import pytest

from delaytasks.models import Job, Topic
from tests.support.browser import PHONE, expect, page_width, tab_to
from tests.support.contrast import hard_to_read

from ..conftest import NOW, TOPIC, make_job
from .test_appearance import THEMES, out_of_reach

# The browser is in Tokyo; the server is in UTC.
pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.browser_context_args(timezone_id="Asia/Tokyo")]
LIST, ADD = "/admin/delaytasks/job/", "/admin/delaytasks/job/add/"


def test_a_job_is_scheduled_from_the_list_by_keyboard(page, site):
    page.goto(site + LIST)
    tab_to(page, "e.matches('.object-tools a.addlink')")
    page.keyboard.press("Enter")
    expect(page).to_have_url(site + ADD)
    for name, text in (("topic", TOPIC), ("key", "order:1"), ("amount", "2"), ("reason", "they called")):
        tab_to(page, f"e.name === '{name}'")
        page.keyboard.type(text)
    page.keyboard.press("Enter")
    expect(page.locator(".messagelist .success")).to_contain_text("Job order:1 is scheduled, due at ")
    job = Job.objects.get()
    assert (job.topic, job.key, job.body) == (TOPIC, "order:1", {})
    assert job.due_at == NOW + timedelta(minutes=2)


def test_a_date_and_a_time_are_those_of_the_browser(page, site):
    page.goto(site + LIST)  # its script says which zone that is
    page.goto(f"{site}{ADD}?topic={TOPIC}")
    expect(page.locator(".dt-zone")).to_have_text("Times are in Asia/Tokyo.")
    page.locator("[name=key]").fill("order:1")
    page.locator("[name=due_at_0]").fill("2030-01-02")
    page.locator("[name=due_at_1]").fill("09:30:00")
    page.locator("input[type=submit].default").click()
    expect(page.locator(".messagelist .success")).to_contain_text("due at 2030-01-02 09:30:00")
    assert Job.objects.get().due_at.isoformat() == "2030-01-02T00:30:00+00:00"


def test_the_chosen_topic_is_explained(page, site):
    Topic.objects.create(name="z.last", ask_reason=True)
    page.goto(f"{site}{ADD}?topic={TOPIC}")
    note = page.locator(".dt-topic-note")
    expect(note).to_have_text("Close an order that nobody paid.")
    expect(page.locator("[name=ttr]")).to_have_attribute("placeholder", "1 min")
    page.locator("[name=topic]").select_option("z.last")
    expect(note).to_have_text("This topic requires a reason.")


@pytest.mark.browser_context_args(**PHONE)
def test_on_a_phone_the_form_and_its_errors_fit_and_the_live_job_is_one_tap_away(page, site):
    live = make_job("order:1")
    page.goto(f"{site}{ADD}?topic={TOPIC}")
    page.locator("[name=key]").fill("order:1")
    page.locator("[name=amount]").fill("5")
    page.locator("input[type=submit].default").click()
    error = page.locator(".field-key .errorlist a")
    expect(error).to_have_text(f"job {live.pk}")
    assert page.evaluate("innerWidth") == page_width(page) == 390
    assert out_of_reach(page) == []
    error.click()
    expect(page).to_have_url(f"{site}{LIST}{live.pk}/change/")


@THEMES
def test_the_texts_of_the_form_have_sufficient_contrast(page, site, theme):
    page.emulate_media(color_scheme=theme)
    page.goto(f"{site}{ADD}?topic={TOPIC}")
    page.locator(".dt-topic-note").wait_for()
    page.locator("input[type=submit].default").click()
    page.locator(".field-key .errorlist").wait_for()
    assert hard_to_read(page, "label, .help, .errorlist li, .errornote, .dt-zone, .dt-new-job h2, .closelink") == []
