"""The list of jobs in a real browser: cancel, retry, jobs that start meanwhile, and complete tasks by keyboard."""

import re
from datetime import timedelta
from typing import Any

import pytest

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State
from tests.support.browser import expect, page_width, tab_to

from ..conftest import NOW, TOPIC, make_job

pytestmark = pytest.mark.xdist_group("browser")
LIST = "/admin/delaytasks/job/"


def tick(page: Any, job: Job) -> None:
    page.locator(f"input.action-select[value='{job.pk}']").click()


def act(page: Any, action: str) -> None:
    page.locator("select[name=action]").select_option(action)
    page.locator("button[name=index]").click()


def confirm(page: Any) -> None:
    """Press the button of the page that asks before it cancels."""
    page.locator(".dt-submit input[type=submit]").first.click()


def answered(page: Any, *messages: str | re.Pattern[str]) -> None:
    """Wait for a page with these messages."""
    expect(page.locator(".messagelist li")).to_have_text(messages)
    page.wait_for_load_state()


def state_of(page: Any, job: Job) -> str:
    """Return the state of a job in the list."""
    return page.locator(f"tr:has(input[value='{job.pk}']) .dt-state").inner_text()


def claim(job: Job) -> None:
    """Claim the job, as a worker does, between loading a page and a click on it."""
    moved = {"attempt": 1, "due_at": NOW, "reserved_at": NOW, "lease_until": NOW + timedelta(minutes=1)}
    Job.objects.filter(pk=job.pk).update(state=State.RESERVED, worker="w1", **moved)


def test_jobs_are_cancelled_from_the_list(page, site):
    first, second, third = (make_job(f"order:{n}", due=timedelta(minutes=n)) for n in (1, 2, 3))
    page.goto(site + LIST)
    tick(page, first)
    tick(page, third)
    act(page, "cancel_jobs")
    confirm(page)
    answered(page, "Cancelled 2")
    assert [state_of(page, job) for job in (first, second, third)] == ["cancelled", "delayed", "cancelled"]
    assert set(JobEvent.objects.values_list("job_id", "actor")) == {(first.pk, "admin"), (third.pk, "admin")}


def test_a_dead_job_is_retried_from_the_list(page, site):
    dead = make_job("order:1", State.DEAD, attempt=3, failures=3, error="ValueError: no such bank")
    page.goto(site + LIST + "?state=dead")
    tick(page, dead)
    act(page, "retry_jobs")
    answered(page, "Retried 1")
    assert page.locator(".action-select").count() == 0, "it is no longer dead"
    page.goto(site + LIST)
    assert state_of(page, dead) == "ready"


def test_a_job_that_started_after_the_list_was_loaded_is_not_cancelled_and_a_message_says_so(page, site):
    waits, runs = make_job("order:1"), make_job("order:2")
    page.goto(site + LIST)
    assert (state_of(page, waits), state_of(page, runs)) == ("delayed", "delayed")
    tick(page, waits)
    tick(page, runs)
    claim(runs)
    act(page, "cancel_jobs")
    confirm(page)
    answered(page, "Cancelled 1", "Not cancelled: already running 1 (order:2)")
    assert (state_of(page, waits), state_of(page, runs)) == ("cancelled", "reserved")
    runs.refresh_from_db()
    assert (runs.state, runs.attempt) == (State.RESERVED, 1)


def test_a_job_that_started_after_its_page_was_loaded_is_not_cancelled_and_a_message_says_so(page, site):
    job = make_job("order:1")
    page.goto(f"{site}{LIST}{job.pk}/change/")
    claim(job)
    page.locator("button[value=cancel_jobs]").click()
    answered(page, "Not cancelled: already running 1 (order:1)")
    assert page.url == f"{site}{LIST}{job.pk}/change/"
    assert page.locator(".field-shown_state .dt-state").inner_text() == "reserved"
    assert page.locator(".dt-act button:enabled").count() == 0, "a running job has no actions"


def test_by_keyboard_alone_a_job_is_found_opened_and_cancelled_with_a_reason(page, site):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job, other = make_job("order:1042"), make_job("order:7")
    page.goto(site + LIST)
    if page.evaluate("document.activeElement.id") != "searchbar":  # it has the focus initially
        tab_to(page, "e.id === 'searchbar'")
    page.keyboard.type("order:10")
    page.keyboard.press("Enter")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    tab_to(page, "e.textContent === 'order:1042'")
    page.keyboard.press("Enter")
    page.locator("#dt-reason").wait_for()
    tab_to(page, "e.id === 'dt-reason'")
    page.keyboard.type("they called")
    tab_to(page, "e.value === 'cancel_jobs'")
    page.keyboard.press("Space")
    page.locator(".dt-submit").wait_for()
    tab_to(page, "e.type === 'submit' && e.value === 'Cancel 1 job'")
    page.keyboard.press("Enter")
    answered(page, "Cancelled 1")
    assert "Reason: they called" in page.locator(".dt-timeline").inner_text()
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, other.state) == (State.CANCELLED, State.DELAYED)


def test_by_keyboard_alone_one_row_is_ticked_and_postponed(page, site):
    job = make_job("order:1")
    page.goto(site + LIST)
    tab_to(page, "e.name === 'action'")
    page.keyboard.type("Postpone")
    tab_to(page, f"e.classList.contains('action-select') && e.value === '{job.pk}'")
    page.keyboard.press("Space")
    page.locator("select[name=action]").focus()  # back, as Shift and Tab would
    tab_to(page, "e.name === 'index'")
    page.keyboard.press("Enter")
    page.locator("#id_amount").wait_for()
    tab_to(page, "e.id === 'id_amount'")
    page.keyboard.type("2")
    tab_to(page, "e.type === 'submit' && e.closest('.dt-submit')")
    page.keyboard.press("Enter")
    answered(page, re.compile("^Postponed 1, due at "))
    job.refresh_from_db()
    assert job.due_at == NOW + timedelta(hours=3)


def test_by_keyboard_alone_all_matches_are_cancelled(page, site, monkeypatch):
    monkeypatch.setattr(changes, "send", lambda pk, using: changes.work(pk, using=using, seconds=60))
    for n in range(12):
        make_job(f"order:{n}", due=timedelta(minutes=n - 8))
    page.goto(site + LIST)
    tab_to(page, "e.textContent === 'overdue'")
    page.keyboard.press("Enter")
    page.wait_for_url("**due=overdue**")
    tab_to(page, "e.classList.contains('dt-all')")
    page.keyboard.press("Enter")
    page.locator("form.dt-bulk-form").wait_for()
    tab_to(page, "e.name === 'what'")
    page.keyboard.press("Space")  # the first one is Cancel
    tab_to(page, "e.name === 'reason'")
    page.keyboard.type("the shop was closed")
    tab_to(page, "e.type === 'submit' && e.closest('.dt-submit')")
    assert page.evaluate("document.activeElement.value") == "Cancel 9 jobs"
    page.keyboard.press("Space")
    expect(page.locator("#dt-says")).to_contain_text("Done. 9 jobs were processed.")
    assert page.locator("tr[data-outcome=cancelled] .dt-number").inner_text() == "9"
    assert Job.objects.filter(state=State.CANCELLED).count() == 9
    assert BulkChange.objects.get().reason == "the shop was closed"


def test_a_last_error_is_readable_on_a_screen_of_1280_pixels(page, site):
    error = "requests.exceptions.ConnectionError: bank.example refused the connection for order 1042 after 3 tries"
    make_job("order:1042", State.DEAD, topic=TOPIC, attempt=5, failures=5, error=error)
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(site + LIST)
    cell = page.locator(".field-last_error .dt-one-line")
    assert cell.inner_text() == error
    assert cell.evaluate("e => e.scrollHeight - e.clientHeight") <= 1, "the whole text is visible"
    assert page_width(page) <= 1280
