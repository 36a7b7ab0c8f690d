"""The appearance of each page: light and dark themes, phone width, contrast and reachable controls."""

import json
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from selenium.webdriver import Chrome

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, Topic
from delaytasks.states import Outcome, State
from tests.support.browser import emulate, find, find_all, page_width, until
from tests.support.contrast import contrast, hard_to_read, luminance

from ..conftest import NOW, TOPIC, make_event, make_job

pytestmark = pytest.mark.xdist_group("browser")
JOBS, TOPICS, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks/bulkchange/"
BOARD = "/admin/delaytasks/board/"
PHONE = 390
LINES = ("due", "herd", "finished", "cancelled", "failed", "expired", "dead", "p50", "p99", "worst")
TOGETHER = (("due", "herd"), ("finished", "cancelled"), ("failed", "expired", "dead"), ("p50", "p99", "worst"))
THEMES = pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])

# The texts and controls of these pages; all others are Django's.
WORDS = {
    JOBS: ".dt-state, .dt-relative, .dt-overdue, .dt-one-line, .dt-all, .dt-zone, #result_list td, .object-tools a",
    TOPICS: ".dt-state, .dt-handler, #result_list td, .dt-overdue, #result_list td a",
    BOARD: ".dt-tile-label, .dt-tile-value, .dt-tile-note, .dt-tile-said, .dt-legend, .dt-numbers summary, "
    ".dt-news li, #dt-board-updated, .dt-tall, .dt-board button",
    JOBS + "all/?state=live": ".dt-state, .dt-choice dt, .dt-choice dd, .dt-relative, .dt-quiet, .dt-radio label, h2",
    CHANGES: ".dt-state, #result_list td, .dt-relative",
}


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> BulkChange:
    """Data of each kind: a job in each state, late, failed, paused, a herd, changes in each state."""
    monkeypatch.setattr(changes, "send", lambda pk, using: None)
    errors = {State.DEAD: "Traceback\nValueError: no such bank"}
    jobs = {state: make_job(f"order:{state}", state, error=errors.get(state, "")) for state in State}
    Job.objects.filter(pk=jobs[State.READY].pk).update(due_at=NOW - timedelta(hours=2))
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW}
    Job.objects.bulk_create([Job(key=f"h:{n}", due_at=NOW + timedelta(minutes=31), **row) for n in range(1200)])
    for n in range(1, 20):
        make_job(f"usual:{n}", due=timedelta(minutes=n))
    for outcome in (Outcome.FINISHED, Outcome.CANCELLED, Outcome.FAILED, Outcome.EXPIRED, Outcome.DEAD):
        make_event(jobs[State.FINISHED], outcome, attempt=1, **_a_minute_ago(), error="ValueError: no such bank")
    Topic.objects.create(name="test.paused", paused=True)
    for state in BulkChange.State.values:
        began = changes.start(
            "cancel", [jobs[State.DELAYED].pk], by="anna", reason="why", selection={"topics": {TOPIC: 1}}
        )
        BulkChange.objects.filter(pk=began.pk).update(state=state)
    return changes.start(
        "cancel", list(range(1, 100)), by="anna", reason="they called", selection={"topics": {TOPIC: 99}}
    )


def _a_minute_ago() -> dict[str, int]:
    at = int((NOW - timedelta(minutes=1)).timestamp() * 1000)
    return {"due_ms": at - 900, "reserved_ms": at, "done_ms": at}


def open_page(browser: Chrome, address: str) -> None:
    """Open a page and wait until it is complete."""
    browser.get(address)
    until(browser, lambda b: find(b, "main").is_displayed(), "the page")
    if BOARD in address:
        until(browser, lambda b: find(b, ".dt-board").get_attribute("data-state") == "fresh", "the numbers")


@THEMES
def test_all_texts_have_sufficient_contrast(browser, site, busy, dark):
    emulate(browser, dark=dark)
    for page, words in WORDS.items():
        open_page(browser, site + page)
        assert (luminance(browser, "body", "backgroundColor") < 0.2) is dark
        assert hard_to_read(browser, words) == [], page
    for state in State:
        browser.get(f"{site}{JOBS}{Job.objects.get(key=f'order:{state}').pk}/change/")
        assert hard_to_read(browser, ".dt-state, .dt-timeline span, .dt-now h2, .readonly, .dt-zone") == [], state.word
    browser.get(f"{site}{CHANGES}{busy.pk}/change/")
    assert hard_to_read(browser, "#dt-says, #dt-done, .dt-choice dt, .dt-choice dd, #dt-stop button") == []
    browser.get(f"{site}{TOPICS}{TOPIC}/change/")
    assert hard_to_read(browser, ".readonly, .readonly a, .help") == []


@THEMES
def test_the_colours_of_charts_can_be_distinguished(browser, site, busy, dark):
    emulate(browser, dark=dark)
    open_page(browser, site + BOARD)
    probe = "for (const n of arguments[0]) document.querySelector('.dt-board').append(Object.assign("
    browser.execute_script(probe + "document.createElement('b'), {className: 'dt-c-' + n}))", (*LINES, "text"))
    page = luminance(browser, "body", "backgroundColor")
    seen = {name: contrast(page, luminance(browser, f"b.dt-c-{name}", "color")) for name in (*LINES, "text")}
    assert {name: number for name, number in seen.items() if number < (4.5 if name == "text" else 3)} == {}
    for chart in ("minutes", "hours", "late", "ended", "trouble"):
        assert _colours_on(browser, chart) > 3, f"{chart}: more is drawn than its ground and its text"
    for together in TOGETHER:
        script = "return arguments[0].map((n) => getComputedStyle(document.querySelector('b.dt-c-' + n)).color)"
        assert len(set(browser.execute_script(script, together))) == len(together)


def _colours_on(browser: Chrome, chart: str) -> int:
    """Return the number of colours that cover more than a few pixels of a chart."""
    script = """
    const canvas = document.querySelector(`#dt-chart-${arguments[0]} canvas`);
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, counts = {};
    for (let n = 0; n < data.length; n += 4) {
        const colour = [data[n], data[n + 1], data[n + 2], data[n + 3]].join();
        counts[colour] = (counts[colour] ?? 0) + 1;
    }
    return Object.values(counts).filter((count) => count > 8).length;
    """
    return browser.execute_script(script, chart)


def test_the_dark_theme_applies_to_every_page(browser, site, busy):
    browser.get(site + JOBS)
    browser.execute_script("localStorage.setItem('theme', 'dark')")
    for page, words in WORDS.items():
        open_page(browser, site + page)
        assert luminance(browser, "body", "backgroundColor") < 0.2, page
        assert hard_to_read(browser, words) == [], page


def test_on_a_phone_no_page_scrolls_sideways_and_all_controls_are_reachable(browser, site, busy):
    emulate(browser, width=PHONE)
    job = Job.objects.get(key=f"order:{State.DELAYED}")
    single = (f"{JOBS}{job.pk}/change/", f"{CHANGES}{busy.pk}/change/", f"{TOPICS}{TOPIC}/change/")
    for page in (*WORDS, *single, "/admin/", "/"):
        open_page(browser, site + page)
        until(browser, lambda b: b.execute_script("return innerWidth") == PHONE, "the width of a phone")
        assert page_width(browser) == PHONE, page
        assert out_of_reach(browser) == [], page


def out_of_reach(browser: Chrome) -> list[str]:
    """Return the visible controls that are outside the screen or covered by another element."""
    script = """
    const all = document.querySelectorAll('main :is(a[href], button, input:not([type=hidden]), select, summary)');
    const shown = [...all].filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.closest('.unseen'));
    return shown.filter((e) => {
        e.scrollIntoView({block: 'center', behavior: 'instant'});
        const box = e.getClientRects()[0];
        const at = document.elementFromPoint(box.x + Math.min(box.width / 2, 8), box.y + box.height / 2);
        return box.left < 0 || box.right > innerWidth || !(e.contains(at) || at?.contains(e));
    }).map((e) => e.outerHTML.slice(0, 200));
    """
    return browser.execute_script(script)


def test_on_a_phone_each_row_of_a_list_is_a_card_without_scrolling(browser, site, busy):
    emulate(browser, width=PHONE)
    for page in (JOBS, TOPICS, CHANGES):
        browser.get(site + page)
        until(browser, lambda b: find_all(b, "#result_list [data-label]"), "the names of the columns")
        inner = "const e = document.querySelector('#result_list'); return [e.scrollWidth, e.clientWidth]"
        scroll, client = browser.execute_script(inner)
        assert scroll <= client <= PHONE, page
    browser.get(site + JOBS + "?state=dead")
    card = until(browser, lambda b: find(b, "#result_list tbody tr"), "a card")
    assert [word in card.text for word in ("dead", TOPIC, "order:", "ValueError: no such bank")] == [True] * 4
    named = "return getComputedStyle(document.querySelector('#result_list .field-due'), '::before').content"
    assert json.loads(browser.execute_script(named)) == "Due "
    assert not find(browser, "#result_list thead .column-last_error").is_displayed()


def test_every_page_links_to_the_board(browser, site):
    for page in ("/admin/", "/admin/delaytasks/", JOBS, TOPICS, "/admin/auth/user/"):
        open_page(browser, site + page)
        ways = [way for way in find_all(browser, f"a[href='{BOARD}']") if way.is_displayed()]
        assert ways, page
        ways[0].click()
        until(browser, lambda b: b.current_url == site + BOARD, "the board")
    assert find(browser, "#nav-sidebar .current-model a").text == "Board"
    assert User.objects.count() == 1
