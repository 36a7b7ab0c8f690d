"""Bulk changes in a real browser: the progress bar, leaving and reopening the page, without inline scripts."""

import contextlib
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections
from django.db.models import F, Value
from django.db.models.functions import Concat

from delaytasks.admin.bulk import changes as bulk_changes
from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job
from delaytasks.states import State
from tests.support.browser import PHONE, expect, page_width
from tests.support.servers import wait_until

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
def worker(no_worker: None) -> Iterator[Worker]:
    found = Worker()
    yield found
    found.close()


def position(page: Any) -> int:
    return int(page.locator("#dt-bar").get_attribute("value"))


def moved(page: Any, to: int) -> None:
    """Wait until the bar is at this number."""
    expect(page.locator(f"#dt-bar[value='{to}']")).to_be_visible()
    assert page.locator("#dt-done").inner_text() == f"{to:,} of {JOBS:,} jobs"


def work_off(page: Any, worker: Worker) -> None:
    """Process the change to its end, a few chunks at a time."""
    for reached in range(position(page) + 200, JOBS + 1, 200):
        worker.step(2)
        moved(page, reached)


def ask_for_all(page: Any, site: str, query: str = "?state=delayed") -> None:
    page.goto(site + LIST + query)
    page.locator("a.dt-all").press("Enter")
    page.locator("form.dt-bulk-form").wait_for()
    page.wait_for_load_state()


def confirm(page: Any, what: str) -> None:
    """Choose the operation and press Enter, by keyboard alone."""
    radio = page.locator(f"input[name=what][value={what}]")
    radio.press("Space")
    radio.press("Enter")
    page.locator("#dt-bar").wait_for()
    page.wait_for_load_state()


def test_two_thousand_jobs_are_cancelled_while_the_page_is_left_and_reopened(page, site, many, worker, db_clock):
    ask_for_all(page, site)
    assert "2,000 jobs match" in page.locator("#dt-which").inner_text()
    confirm(page, "cancel")
    assert position(page) == 0
    address = page.url
    page.evaluate("window.sameAsBefore = true")
    db_clock.advance(seconds=10)
    expect(page.locator("#dt-says")).to_contain_text("for more than")  # no worker has started

    worker.step()
    moved(page, 100)
    worker.step(2)
    moved(page, 300)
    assert page.locator("tr[data-outcome=cancelled] .dt-number").inner_text() == "300"
    assert page.locator("tr[data-outcome=cancelled] li a").count() == 20
    assert page.evaluate("window.sameAsBefore"), "the page was not reloaded"

    page.goto(site + LIST)
    worker.step(7)
    wait_until(lambda: BulkChange.objects.get().position == 1000, seconds=60, what="the worker to continue")
    late = Job.objects.get(key="order:1900")  # it starts to run before the change reaches it
    Job.objects.filter(pk=late.pk).update(
        state=State.RESERVED, attempt=1, due_at=NOW, reserved_at=NOW, lease_until=NOW + timedelta(minutes=1)
    )
    page.goto(site + CHANGES)
    page.locator("#result_list .field-summary a").click()
    moved(page, 1000)
    assert page.url == address

    work_off(page, worker)
    expect(page.locator("#dt-says")).to_contain_text("Done. 2,000 jobs were processed.")
    assert page.locator("tr[data-outcome=cancelled] .dt-number").inner_text() == "1,999"
    refused = page.locator("tr[data-outcome='running']")
    assert refused.inner_text().split() == ["already", "running", "1", "order:1900"]
    assert page.locator("#dt-stop").count() == 0
    refused.locator("a").click()
    page.wait_for_url(f"**/job/{late.pk}/change/")
    assert Job.objects.filter(state=State.CANCELLED).count() == JOBS - 1


def test_an_unresponsive_server_is_polled_again(page, site, many, worker, console_errors):
    ask_for_all(page, site)
    confirm(page, "cancel")
    page.context.set_offline(True)
    expect(page.locator("#dt-says")).to_contain_text("No response from the server")
    page.context.set_offline(False)
    worker.step()
    moved(page, 100)
    expect(page.locator("#dt-says")).to_contain_text("In progress")
    assert all("ERR_INTERNET_DISCONNECTED" in line for line in console_errors)
    console_errors.clear()


def test_a_logged_out_user_is_redirected_to_the_login(page, site, many, worker):
    ask_for_all(page, site)
    confirm(page, "cancel")
    page.context.clear_cookies()
    page.wait_for_url("**/admin/login/**")
    assert "next=/admin/delaytasks/bulkchange/" in page.url


def test_stopping_leaves_the_remaining_jobs_and_keeps_the_focus(page, site, many, worker):
    ask_for_all(page, site)
    confirm(page, "run_now")
    worker.step()
    moved(page, 100)
    page.locator("#dt-stop button").press("Enter")
    expect(page.locator("#dt-says")).to_contain_text("Stopped. 1,900 jobs were not processed")
    worker.step()
    assert Job.objects.filter(due_at__lte=NOW).count() == 100


def test_the_focus_moves_when_the_change_ends(page, site, many, worker):
    ask_for_all(page, site)
    confirm(page, "cancel")
    page.locator("#dt-stop button").focus()
    assert position(page) == 0
    work_off(page, worker)
    expect(page.locator("#dt-stop")).to_have_count(0)
    expect(page.locator("#dt-says")).to_be_focused()


@pytest.mark.browser_context_args(java_script_enabled=False)
def test_bulk_changes_work_without_scripts(page, site, many, worker):
    page.goto(site + LIST + "?state=delayed")
    page.locator("a.dt-all").click()
    page.locator("input[value=postpone]").click()
    page.locator("input[name=amount]").fill("90")
    page.locator(".dt-submit input").click()
    page.locator("#dt-bar[value='0']").wait_for()
    worker.step(2)
    page.locator("#dt-bar[value='200']").wait_for()  # the page reloads itself
    expect(page.locator("h1", has_text="Postpone 2,000 jobs by 90 hours")).to_be_visible()


def test_the_delay_is_shown_when_postponing_and_the_button_names_the_operation(page, site, many):
    ask_for_all(page, site)
    amount, button = page.locator("input[name=amount]"), page.locator(".dt-submit input")
    page.locator("input[value=cancel]").click()
    assert not amount.is_visible()
    assert button.input_value() == "Cancel 2,000 jobs"
    page.locator("input[value=postpone]").click()
    assert amount.is_visible()
    assert button.input_value() == "Postpone 2,000 jobs"


@pytest.mark.browser_context_args(**PHONE)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_pages_fit_the_width(page, site, many, worker, theme):
    page.emulate_media(color_scheme=theme)
    long = Concat(Value("order:" + "long" * 50), F("key"))
    Job.objects.filter(key__endswith="0").update(key=long, topic="test.with.a.very.long.name." * 3)
    ask_for_all(page, site)
    assert page_width(page) == 390
    confirm(page, "cancel")
    worker.step(2)
    moved(page, 200)
    assert page_width(page) == 390
    page.goto(site + CHANGES)
    assert page_width(page) == 390
