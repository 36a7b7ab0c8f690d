"""Bulk changes in a real browser: the progress bar, leaving and reopening the page, without inline scripts."""

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connections
from django.db.models import F, Value
from django.db.models.functions import Concat
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks.admin.bulk import changes as bulk_changes
from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job
from delaytasks.states import State
from tests.support.browser import console_errors, emulate, find, page_width, until

from ..conftest import NOW, TOPIC

pytestmark = pytest.mark.xdist_group("browser")
LIST, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/bulkchange/"
JOBS = 2000


@pytest.fixture(autouse=True)
def _lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often and process the change in small chunks."""
    monkeypatch.setattr(bulk_changes, "POLL_MS", 50)
    monkeypatch.setattr(changes, "BATCH_SIZE", 100)


@pytest.fixture
def many() -> list[Job]:
    return Job.objects.bulk_create(
        Job(topic=TOPIC, key=f"order:{n:04}", due_at=NOW + timedelta(minutes=n + 1), ttr_ms=1, created_at=NOW)
        for n in range(JOBS)
    )


class Worker:
    """A worker thread that processes one chunk of a change per call of step()."""

    def __init__(self) -> None:
        self.steps = threading.Semaphore(0)
        self.leave = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def step(self, count: int = 1) -> None:
        self.steps.release(count)

    def _run(self) -> None:
        with contextlib.closing(connections["default"]):
            while self.steps.acquire() and not self.leave:
                changes.work(BulkChange.objects.values_list("pk", flat=True).latest("pk"), using="default", seconds=0)

    def close(self) -> None:
        self.leave = True
        self.step()
        self.thread.join()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(changes, "send", lambda pk, using: None)
    found = Worker()
    yield found
    found.close()


def position(browser: Chrome) -> int:
    return int(float(find(browser, "#dt-bar").get_attribute("value") or -1))


def moved(browser: Chrome, to: int) -> None:
    until(browser, lambda browser: position(browser) == to, f"the bar is at {to}")
    assert find(browser, "#dt-done").text == f"{to:,} of {JOBS:,} jobs"


def work_off(browser: Chrome, worker: Worker) -> None:
    """Process the change to its end, a few chunks at a time."""
    for reached in range(position(browser) + 200, JOBS + 1, 200):
        worker.step(2)
        moved(browser, reached)


def ask_for_all(browser: Chrome, site: str, query: str = "?state=delayed") -> None:
    browser.get(site + LIST + query)
    find(browser, "a.dt-all").send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "form.dt-bulk-form"), "the page that asks")


def confirm(browser: Chrome, what: str) -> None:
    """Choose the operation and press Enter, by keyboard alone."""
    radio = find(browser, f"input[name=what][value={what}]")
    radio.send_keys(Keys.SPACE)
    radio.send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "#dt-bar"), "the progress page")


def test_two_thousand_jobs_are_cancelled_while_the_page_is_left_and_reopened(browser, site, many, worker, db_clock):
    ask_for_all(browser, site)
    assert "2,000 jobs match" in find(browser, "#dt-which").text
    confirm(browser, "cancel")
    assert position(browser) == 0
    address = browser.current_url
    browser.execute_script("window.sameAsBefore = true")
    db_clock.advance(seconds=10)
    until(
        browser,
        lambda browser: "for more than" in find(browser, "#dt-says").text,
        "the page says that no worker has started",
    )

    worker.step()
    moved(browser, 100)
    worker.step(2)
    moved(browser, 300)
    assert find(browser, "tr[data-outcome=cancelled] .dt-number").text == "300"
    assert len(browser.find_elements(By.CSS_SELECTOR, "tr[data-outcome=cancelled] li a")) == 20
    assert browser.execute_script("return window.sameAsBefore === true"), "the page was not reloaded"

    browser.get(site + LIST)
    worker.step(7)
    until(browser, lambda _: BulkChange.objects.get().position == 1000, "the worker to continue")
    late = Job.objects.get(key="order:1900")  # it starts to run before the change reaches it
    Job.objects.filter(pk=late.pk).update(
        state=State.RESERVED, attempt=1, due_at=NOW, reserved_at=NOW, lease_until=NOW + timedelta(minutes=1)
    )
    browser.get(site + CHANGES)
    find(browser, "#result_list .field-summary a").click()
    until(browser, lambda browser: find(browser, "#dt-bar"), "the change again")
    assert browser.current_url == address
    moved(browser, 1000)

    work_off(browser, worker)
    until(browser, lambda browser: "Done. 2,000 jobs were processed." in find(browser, "#dt-says").text, "the end")
    assert find(browser, "tr[data-outcome=cancelled] .dt-number").text == "1,999"
    refused = find(browser, "tr[data-outcome='running']")
    assert refused.text.split() == ["already", "running", "1", "order:1900"]
    assert not browser.find_elements(By.ID, "dt-stop")
    refused.find_element(By.TAG_NAME, "a").click()
    until(browser, lambda browser: browser.current_url.endswith(f"/job/{late.pk}/change/"), "the job that was running")
    assert Job.objects.filter(state=State.CANCELLED).count() == JOBS - 1


def test_an_unresponsive_server_is_polled_again(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    until(browser, lambda browser: "No response from the server" in find(browser, "#dt-says").text, "the error message")
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline | {"offline": False})
    worker.step()
    moved(browser, 100)
    until(browser, lambda browser: "In progress" in find(browser, "#dt-says").text, "the change is in progress")
    assert all("ERR_INTERNET_DISCONNECTED" in line or "/favicon" in line for line in console_errors(browser))


def test_a_logged_out_user_is_redirected_to_the_login(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    browser.delete_all_cookies()
    until(browser, lambda browser: "/admin/login/" in browser.current_url, "the login")
    assert "next=/admin/delaytasks/bulkchange/" in browser.current_url


def test_stopping_leaves_the_remaining_jobs_and_keeps_the_focus(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "run_now")
    worker.step()
    moved(browser, 100)
    find(browser, "#dt-stop button").send_keys(Keys.ENTER)
    until(
        browser,
        lambda browser: "Stopped. 1,900 jobs were not processed" in find(browser, "#dt-says").text,
        "it has stopped",
    )
    worker.step()
    assert Job.objects.filter(due_at__lte=NOW).count() == 100


def test_the_focus_moves_when_the_change_ends(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    browser.execute_script("document.querySelector('#dt-stop button').focus()")
    assert position(browser) == 0
    work_off(browser, worker)
    until(browser, lambda browser: not browser.find_elements(By.ID, "dt-stop"), "the end of the change")
    assert browser.switch_to.active_element.get_attribute("id") == "dt-says"


def test_bulk_changes_work_without_scripts(browser, site, many, worker):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(site + LIST + "?state=delayed")
        find(browser, "a.dt-all").click()
        find(browser, "input[value=postpone]").click()
        find(browser, "input[name=amount]").send_keys("90")
        find(browser, ".dt-submit input").click()
        until(browser, lambda browser: position(browser) == 0, "the page of the change")
        worker.step(2)
        until(browser, lambda browser: position(browser) == 200, "the page to reload itself")
        until(browser, lambda browser: "Postpone 2,000 jobs by 90 hours" in find(browser, "h1").text, "the heading")
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_the_delay_is_shown_when_postponing_and_the_button_names_the_operation(browser, site, many):
    ask_for_all(browser, site)
    amount, button = find(browser, "input[name=amount]"), find(browser, ".dt-submit input")
    find(browser, "input[value=cancel]").click()
    assert not amount.is_displayed()
    assert button.get_attribute("value") == "Cancel 2,000 jobs"
    find(browser, "input[value=postpone]").click()
    assert amount.is_displayed()
    assert button.get_attribute("value") == "Postpone 2,000 jobs"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_pages_fit_the_width(browser, site, many, worker, dark):
    emulate(browser, dark=dark, width=390)

    long = Concat(Value("order:" + "long" * 50), F("key"))
    Job.objects.filter(key__endswith="0").update(key=long, topic="test.with.a.very.long.name." * 3)
    ask_for_all(browser, site)
    assert page_width(browser) == 390
    confirm(browser, "cancel")
    worker.step(2)
    moved(browser, 200)
    assert page_width(browser) == 390
    browser.get(site + CHANGES)
    assert page_width(browser) == 390
