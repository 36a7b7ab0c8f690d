"""Changing thousands of jobs in a real browser: the bar moves, the page can be left, no script is inline."""

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

from delaytasks import bulk
from delaytasks.admin import bulkchanges
from delaytasks.models import BulkChange, Job
from delaytasks.states import State
from tests.browser import complaints, emulate, find, page_width, until

from .conftest import NOW, TOPIC

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]
LIST, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/bulkchange/"
JOBS = 2000


@pytest.fixture(autouse=True)
def _lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """A progress page that asks often, of a change that goes on in small steps."""
    monkeypatch.setattr(bulkchanges, "EVERY_MS", 50)
    monkeypatch.setattr(bulk, "PIECE", 100)


@pytest.fixture
def many() -> list[Job]:
    return Job.objects.bulk_create(
        Job(topic=TOPIC, key=f"order:{n:04}", due_at=NOW + timedelta(minutes=n + 1), ttr_ms=1, created_at=NOW)
        for n in range(JOBS)
    )


class Worker:
    """A worker in a thread of its own, that takes one step of a change whenever it is told to."""

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
                bulk.work(BulkChange.objects.values_list("pk", flat=True).latest("pk"), using="default", seconds=0)

    def close(self) -> None:
        self.leave = True
        self.step()
        self.thread.join()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(bulk, "send", lambda pk, using: None)
    found = Worker()
    yield found
    found.close()


def position(browser: Chrome) -> int:
    return int(float(find(browser, "#dt-bar").get_attribute("value") or -1))


def moved(browser: Chrome, to: int) -> None:
    until(browser, lambda browser: position(browser) == to, f"the bar is at {to}")
    assert find(browser, "#dt-done").text == f"{to:,} of {JOBS:,} jobs"


def work_off(browser: Chrome, worker: Worker) -> None:
    """Until it ends, a few steps at a time."""
    for reached in range(position(browser) + 200, JOBS + 1, 200):
        worker.step(2)
        moved(browser, reached)


def ask_for_all(browser: Chrome, site: str, query: str = "?state=delayed") -> None:
    browser.get(site + LIST + query)
    find(browser, "a.dt-all").send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "form.dt-bulk-form"), "the page that asks")


def confirm(browser: Chrome, what: str) -> None:
    """By keyboard alone: choose the operation, press Enter."""
    radio = find(browser, f"input[name=what][value={what}]")
    radio.send_keys(Keys.SPACE)
    radio.send_keys(Keys.ENTER)
    until(browser, lambda browser: find(browser, "#dt-bar"), "the page that shows how far it is")


def test_two_thousand_are_cancelled_while_somebody_watches_leaves_and_comes_back(browser, site, many, worker, db_clock):
    ask_for_all(browser, site)
    assert "2,000 jobs match" in find(browser, "#dt-which").text
    confirm(browser, "cancel")
    assert position(browser) == 0
    address = browser.current_url
    browser.execute_script("window.sameAsBefore = true")
    db_clock.advance(seconds=10)
    until(browser, lambda browser: "none has begun" in find(browser, "#dt-says").text, "it says that nobody has begun")

    worker.step()
    moved(browser, 100)
    worker.step(2)
    moved(browser, 300)
    assert find(browser, "tr[data-outcome=cancelled] .dt-number").text == "300"
    assert len(browser.find_elements(By.CSS_SELECTOR, "tr[data-outcome=cancelled] li a")) == 20
    assert browser.execute_script("return window.sameAsBefore === true"), "no page was loaded anew"

    browser.get(site + LIST)
    worker.step(7)
    until(browser, lambda _: BulkChange.objects.get().position == 1000, "the worker goes on")
    late = Job.objects.get(key="order:1900")  # it starts to run between the click and its turn
    Job.objects.filter(pk=late.pk).update(
        state=State.RESERVED, attempt=1, due_at=NOW, reserved_at=NOW, lease_until=NOW + timedelta(minutes=1)
    )
    browser.get(site + CHANGES)
    find(browser, "#result_list .field-what a").click()
    until(browser, lambda browser: find(browser, "#dt-bar"), "the change again")
    assert browser.current_url == address
    moved(browser, 1000)

    work_off(browser, worker)
    until(browser, lambda browser: "Done. 2,000 jobs were looked at." in find(browser, "#dt-says").text, "the end")
    assert find(browser, "tr[data-outcome=cancelled] .dt-number").text == "1,999"
    refused = find(browser, "tr[data-outcome='already running']")
    assert refused.text.split() == ["already", "running", "1", "order:1900"]
    assert not browser.find_elements(By.ID, "dt-stop")
    refused.find_element(By.TAG_NAME, "a").click()
    until(browser, lambda browser: browser.current_url.endswith(f"/job/{late.pk}/change/"), "the job that was running")
    assert Job.objects.filter(state=State.CANCELLED).count() == JOBS - 1


def test_a_server_that_does_not_answer_is_asked_again(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline)
    until(browser, lambda browser: "No answer from the server" in find(browser, "#dt-says").text, "it says so")
    browser.execute_cdp_cmd("Network.emulateNetworkConditions", offline | {"offline": False})
    worker.step()
    moved(browser, 100)
    until(browser, lambda browser: "Under way" in find(browser, "#dt-says").text, "it says that it goes on")
    assert all("ERR_INTERNET_DISCONNECTED" in said or "/favicon" in said for said in complaints(browser))


def test_whoever_is_logged_out_meanwhile_is_led_to_the_login(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    browser.delete_all_cookies()
    until(browser, lambda browser: "/admin/login/" in browser.current_url, "the login")
    assert "next=/admin/delaytasks/bulkchange/" in browser.current_url


def test_stopping_leaves_the_rest_and_keeps_the_focus_near(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "run_now")
    worker.step()
    moved(browser, 100)
    find(browser, "#dt-stop button").send_keys(Keys.ENTER)
    until(browser, lambda browser: "Stopped. 1,900 jobs were left" in find(browser, "#dt-says").text, "it has stopped")
    worker.step()
    assert Job.objects.filter(due_at__lte=NOW).count() == 100


def test_a_page_whose_change_ends_hands_the_focus_on(browser, site, many, worker):
    ask_for_all(browser, site)
    confirm(browser, "cancel")
    browser.execute_script("document.querySelector('#dt-stop button').focus()")
    assert position(browser) == 0
    work_off(browser, worker)
    until(browser, lambda browser: not browser.find_elements(By.ID, "dt-stop"), "there is nothing left to stop")
    assert browser.switch_to.active_element.get_attribute("id") == "dt-says"


def test_without_scripts_all_of_it_works(browser, site, many, worker):
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(site + LIST + "?state=delayed")
        find(browser, "a.dt-all").click()
        find(browser, "input[value=postpone]").click()
        find(browser, "input[name=amount]").send_keys("90")
        find(browser, ".dt-submit input").click()
        assert position(browser) == 0
        worker.step(2)
        until(browser, lambda browser: position(browser) == 200, "the page loads itself anew")
        assert "Postpone 2,000 jobs by 90 hours" in find(browser, "h1").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_by_how_much_is_asked_of_who_postpones_and_the_button_says_what_it_does(browser, site, many):
    ask_for_all(browser, site)
    amount, button = find(browser, "input[name=amount]"), find(browser, ".dt-submit input")
    find(browser, "input[value=cancel]").click()
    assert not amount.is_displayed()
    assert button.get_attribute("value") == "Cancel 2,000 jobs"
    find(browser, "input[value=postpone]").click()
    assert amount.is_displayed()
    assert button.get_attribute("value") == "Postpone 2,000 jobs"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_on_a_phone_nothing_is_wider_than_the_screen(browser, site, many, worker, dark):
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
