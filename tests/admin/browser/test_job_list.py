"""The list of jobs in a real browser: cancel, retry, jobs that start meanwhile, and complete tasks by keyboard."""

from datetime import timedelta

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, JobEvent, Topic
from delaytasks.states import State
from tests.support.browser import find, find_all, press, tab_to, until

from ..conftest import NOW, TOPIC, make_job

pytestmark = pytest.mark.xdist_group("browser")
LIST = "/admin/delaytasks/job/"


def tick(browser: Chrome, job: Job) -> None:
    find(browser, f"input.action-select[value='{job.pk}']").click()


def act(browser: Chrome, action: str) -> None:
    Select(find(browser, "select[name=action]")).select_by_value(action)
    find(browser, "button[name=index]").click()


def confirm(browser: Chrome) -> None:
    """Press the button of the page that asks before it cancels."""
    until(browser, lambda b: find_all(b, ".dt-submit input[type=submit]"), "the question")[0].click()


def messages_of(browser: Chrome) -> list[str]:
    """Wait for the messages of the page and return them."""
    return until(browser, lambda b: [each.text for each in find_all(b, ".messagelist li")], "an answer")


def shown(browser: Chrome, job: Job) -> str:
    """Return the state of a job in the list."""
    return find(browser, f"tr:has(input[value='{job.pk}']) .dt-state").text


def claim(job: Job) -> None:
    """Claim the job, as a worker does, between loading a page and a click on it."""
    moved = {"attempt": 1, "due_at": NOW, "reserved_at": NOW, "lease_until": NOW + timedelta(minutes=1)}
    Job.objects.filter(pk=job.pk).update(state=State.RESERVED, worker="w1", **moved)


def test_jobs_are_cancelled_from_the_list(browser, site):
    first, second, third = (make_job(f"order:{n}", due=timedelta(minutes=n)) for n in (1, 2, 3))
    browser.get(site + LIST)
    tick(browser, first)
    tick(browser, third)
    act(browser, "cancel_jobs")
    confirm(browser)
    assert messages_of(browser) == ["Cancelled 2"]
    assert [shown(browser, job) for job in (first, second, third)] == ["cancelled", "delayed", "cancelled"]
    assert set(JobEvent.objects.values_list("job_id", "actor")) == {(first.pk, "admin"), (third.pk, "admin")}


def test_a_dead_job_is_retried_from_the_list(browser, site):
    dead = make_job("order:1", State.DEAD, attempt=3, failures=3, error="ValueError: no such bank")
    browser.get(site + LIST + "?state=dead")
    tick(browser, dead)
    act(browser, "retry_jobs")
    assert messages_of(browser) == ["Retried 1"]
    assert not find_all(browser, ".action-select"), "it is no longer dead"
    browser.get(site + LIST)
    assert shown(browser, dead) == "ready"


def test_a_job_that_started_after_the_list_was_loaded_is_not_cancelled_and_a_message_says_so(browser, site):
    waits, runs = make_job("order:1"), make_job("order:2")
    browser.get(site + LIST)
    assert (shown(browser, waits), shown(browser, runs)) == ("delayed", "delayed")
    tick(browser, waits)
    tick(browser, runs)
    claim(runs)
    act(browser, "cancel_jobs")
    confirm(browser)
    assert messages_of(browser) == ["Cancelled 1", "Not cancelled: already running 1 (order:2)"]
    assert (shown(browser, waits), shown(browser, runs)) == ("cancelled", "reserved")
    runs.refresh_from_db()
    assert (runs.state, runs.attempt) == (State.RESERVED, 1)


def test_a_job_that_started_after_its_page_was_loaded_is_not_cancelled_and_a_message_says_so(browser, site):
    job = make_job("order:1")
    browser.get(f"{site}{LIST}{job.pk}/change/")
    claim(job)
    find(browser, "button[value=cancel_jobs]").click()
    assert messages_of(browser) == ["Not cancelled: already running 1 (order:1)"]
    assert browser.current_url == f"{site}{LIST}{job.pk}/change/"
    assert find(browser, ".field-shown_state .dt-state").text == "reserved"
    assert not find_all(browser, ".dt-act button:enabled"), "a running job has no actions"


def test_by_keyboard_alone_a_job_is_found_opened_and_cancelled_with_a_reason(browser, site):
    Topic.objects.filter(name=TOPIC).update(ask_reason=True)
    job, other = make_job("order:1042"), make_job("order:7")
    browser.get(site + LIST)
    if browser.execute_script("return document.activeElement.id") != "searchbar":  # it has the focus initially
        tab_to(browser, "e.id === 'searchbar'")
    press(browser, "order:10", Keys.ENTER)
    until(browser, lambda b: len(find_all(b, "#result_list tbody tr")) == 1, "what was found")
    tab_to(browser, "e.textContent === 'order:1042'")
    press(browser, Keys.ENTER)
    until(browser, lambda b: find(b, "#dt-reason"), "the job's page")
    tab_to(browser, "e.id === 'dt-reason'")
    press(browser, "they called")
    tab_to(browser, "e.value === 'cancel_jobs'")
    press(browser, Keys.SPACE)
    until(browser, lambda b: find_all(b, ".dt-submit"), "the question")
    tab_to(browser, "e.type === 'submit' && e.value === 'Cancel 1 job'")
    press(browser, Keys.ENTER)
    assert messages_of(browser) == ["Cancelled 1"]
    assert "Reason: they called" in find(browser, ".dt-timeline").text
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, other.state) == (State.CANCELLED, State.DELAYED)


def test_by_keyboard_alone_one_row_is_ticked_and_postponed(browser, site):
    job = make_job("order:1")
    browser.get(site + LIST)
    tab_to(browser, "e.name === 'action'")
    press(browser, "Postpone")
    tab_to(browser, f"e.classList.contains('action-select') && e.value === '{job.pk}'")
    press(browser, Keys.SPACE)
    browser.execute_script("document.querySelector('select[name=action]').focus()")  # back, as Shift and Tab would
    tab_to(browser, "e.name === 'index'")
    press(browser, Keys.ENTER)
    until(browser, lambda b: find(b, "#id_amount"), "the form")
    tab_to(browser, "e.id === 'id_amount'")
    press(browser, "2")
    tab_to(browser, "e.type === 'submit' && e.closest('.dt-submit')")
    press(browser, Keys.ENTER)
    assert messages_of(browser)[0].startswith("Postponed 1, due at ")
    job.refresh_from_db()
    assert job.due_at == NOW + timedelta(hours=3)


def test_by_keyboard_alone_all_matches_are_cancelled(browser, site, monkeypatch):
    monkeypatch.setattr(changes, "send", lambda pk, using: changes.work(pk, using=using, seconds=60))
    for n in range(12):
        make_job(f"order:{n}", due=timedelta(minutes=n - 8))
    browser.get(site + LIST)
    tab_to(browser, "e.textContent === 'overdue'")
    press(browser, Keys.ENTER)
    until(browser, lambda b: "due=overdue" in b.current_url, "the filter")
    tab_to(browser, "e.classList.contains('dt-all')")
    press(browser, Keys.ENTER)
    until(browser, lambda b: find(b, "form.dt-bulk-form"), "the page that asks")
    tab_to(browser, "e.name === 'what'")
    press(browser, Keys.SPACE)  # the first one is Cancel
    tab_to(browser, "e.name === 'reason'")
    press(browser, "the shop was closed")
    tab_to(browser, "e.type === 'submit' && e.closest('.dt-submit')")
    assert browser.execute_script("return document.activeElement.value") == "Cancel 9 jobs"
    press(browser, Keys.SPACE)
    until(browser, lambda b: "Done. 9 jobs were processed." in find(b, "#dt-says").text, "the result")
    assert find(browser, "tr[data-outcome=cancelled] .dt-number").text == "9"
    assert Job.objects.filter(state=State.CANCELLED).count() == 9
    assert BulkChange.objects.get().reason == "the shop was closed"


def test_a_last_error_is_readable_on_a_screen_of_1280_pixels(browser, site):
    error = "requests.exceptions.ConnectionError: bank.example refused the connection for order 1042 after 3 tries"
    make_job("order:1042", State.DEAD, topic=TOPIC, attempt=5, failures=5, error=error)
    browser.set_window_size(1280, 900)
    browser.get(site + LIST)
    cell = find(browser, ".field-last_error .dt-one-line")
    assert cell.text == error
    hidden = "return arguments[0].scrollHeight - arguments[0].clientHeight"
    assert browser.execute_script(hidden, cell) <= 1, "the whole text is visible"
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
