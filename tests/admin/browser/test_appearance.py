"""The appearance of each page: light and dark themes, phone width, contrast and reachable controls."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from delaytasks.bulk import changes
from delaytasks.models import BulkChange, Job, Topic
from delaytasks.states import Outcome, State
from tests.support.browser import PHONE, expect, page_width
from tests.support.contrast import contrast, hard_to_read, luminance

from ..conftest import NOW, TOPIC, make_event, make_job

pytestmark = pytest.mark.xdist_group("browser")
JOBS, TOPICS, CHANGES = "/admin/delaytasks/job/", "/admin/delaytasks/topic/", "/admin/delaytasks/bulkchange/"
BOARD = "/admin/delaytasks/board/"
TOGETHER = (
    ("due", "herd"),
    ("finished", "cancelled", "skipped"),
    ("failed", "expired", "dead"),
    ("p50", "p99", "worst"),
)
LINES = [name for together in TOGETHER for name in together]
THEMES = pytest.mark.parametrize("theme", ["light", "dark"])

# The texts and controls of these pages; all others are Django's.
WORDS = {
    JOBS: ".dt-state, .dt-relative, .dt-overdue, .dt-one-line, .dt-all, .dt-zone, #result_list td, .object-tools a",
    TOPICS: ".dt-state, .dt-handler, #result_list td, .dt-overdue, #result_list td a",
    BOARD: ".dt-tile-label, .dt-tile-value, .dt-tile-note, .dt-tile-level, .dt-tile-advice, .dt-legend, "
    ".dt-numbers summary, .dt-news li, #dt-board-updated, .dt-tall, .dt-board button",
    JOBS + "all/?state=live": ".dt-state, .dt-choice dt, .dt-choice dd, .dt-relative, .dt-quiet, .dt-radio label, h2",
    CHANGES: ".dt-state, #result_list td, .dt-relative",
}


@pytest.fixture
def busy(no_worker: None) -> BulkChange:
    """Data of each kind: a job in each state, late, failed, paused, a herd, changes in each state."""
    errors = {State.DEAD: "Traceback\nValueError: no such bank"}
    jobs = {state: make_job(f"order:{state}", state, error=errors.get(state, "")) for state in State}
    Job.objects.filter(pk=jobs[State.READY].pk).update(due_at=NOW - timedelta(hours=2))
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW}
    Job.objects.bulk_create([Job(key=f"h:{n}", due_at=NOW + timedelta(minutes=31), **row) for n in range(1200)])
    for n in range(1, 20):
        make_job(f"usual:{n}", due=timedelta(minutes=n))
    for outcome in ("finished", "cancelled", "skipped", "failed", "expired", "dead"):
        make_event(jobs[State.FINISHED], Outcome(outcome), attempt=1, **_a_minute_ago(), error="ValueError: no bank")
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


def open_page(page: Any, address: str) -> None:
    """Open a page and wait until it is complete."""
    page.goto(address)
    page.locator("main").wait_for()
    if BOARD in address:
        page.locator(".dt-board[data-state=fresh]").wait_for()


@THEMES
def test_all_texts_have_sufficient_contrast(page, site, busy, theme):
    page.emulate_media(color_scheme=theme)
    for path, words in WORDS.items():
        open_page(page, site + path)
        assert (luminance(page, "body", "backgroundColor") < 0.2) is (theme == "dark")
        assert hard_to_read(page, words) == [], path
    for state in State:
        page.goto(f"{site}{JOBS}{Job.objects.get(key=f'order:{state}').pk}/change/")
        assert hard_to_read(page, ".dt-state, .dt-timeline span, .dt-now h2, .readonly, .dt-zone") == [], state.word
    page.goto(f"{site}{CHANGES}{busy.pk}/change/")
    assert hard_to_read(page, "#dt-says, #dt-done, .dt-choice dt, .dt-choice dd, #dt-stop button") == []
    page.goto(f"{site}{TOPICS}{TOPIC}/change/")
    assert hard_to_read(page, ".readonly, .readonly a, .help") == []


@THEMES
def test_the_colours_of_charts_can_be_distinguished(page, site, busy, theme):
    page.emulate_media(color_scheme=theme)
    open_page(page, site + BOARD)
    probe = "(board, n) => board.append(Object.assign(document.createElement('b'), {className: 'dt-c-' + n}))"
    for name in (*LINES, "text"):
        page.locator(".dt-board").evaluate(probe, name)
    ground = luminance(page, "body", "backgroundColor")
    seen = {name: contrast(ground, luminance(page, f"b.dt-c-{name}", "color")) for name in (*LINES, "text")}
    assert {name: number for name, number in seen.items() if number < (4.5 if name == "text" else 3)} == {}
    for chart in ("minutes", "hours", "late", "ended", "trouble"):
        assert _colours_on(page, chart) > 3, f"{chart}: more is drawn than its ground and its text"
    for together in TOGETHER:
        colours = [page.locator(f"b.dt-c-{name}").evaluate("e => getComputedStyle(e).color") for name in together]
        assert len(set(colours)) == len(together)


def _colours_on(page: Any, chart: str) -> int:
    """Return the number of colours that cover more than a few pixels of a chart."""
    script = """(canvas) => {
    const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data, counts = {};
    for (let n = 0; n < data.length; n += 4) {
        const colour = [data[n], data[n + 1], data[n + 2], data[n + 3]].join();
        counts[colour] = (counts[colour] ?? 0) + 1;
    }
    return Object.values(counts).filter((count) => count > 8).length;
    }"""
    return page.locator(f"#dt-chart-{chart} canvas").evaluate(script)


def test_the_dark_theme_applies_to_every_page(page, site, busy):
    page.goto(site + JOBS)
    page.evaluate("localStorage.setItem('theme', 'dark')")
    for path, words in WORDS.items():
        open_page(page, site + path)
        assert luminance(page, "body", "backgroundColor") < 0.2, path
        assert hard_to_read(page, words) == [], path


@pytest.mark.browser_context_args(**PHONE)
def test_on_a_phone_no_page_scrolls_sideways_and_all_controls_are_reachable(page, site, busy):
    job = Job.objects.get(key=f"order:{State.DELAYED}")
    single = (f"{JOBS}{job.pk}/change/", f"{CHANGES}{busy.pk}/change/", f"{TOPICS}{TOPIC}/change/")
    for path in (*WORDS, *single, "/admin/", "/"):
        open_page(page, site + path)
        assert page.evaluate("innerWidth") == page_width(page) == 390, path
        assert out_of_reach(page) == [], path


def out_of_reach(page: Any) -> list[str]:
    """Return the visible controls that are outside the screen or covered by another element."""
    script = """() => {
    const all = document.querySelectorAll('main :is(a[href], button, input:not([type=hidden]), select, summary)');
    const shown = [...all].filter((e) => e.checkVisibility({visibilityProperty: true}) && !e.closest('.unseen'));
    return shown.filter((e) => {
        e.scrollIntoView({block: 'center', behavior: 'instant'});
        const box = e.getClientRects()[0];
        const at = document.elementFromPoint(box.x + Math.min(box.width / 2, 8), box.y + box.height / 2);
        return box.left < 0 || box.right > innerWidth || !(e.contains(at) || at?.contains(e));
    }).map((e) => e.outerHTML.slice(0, 200));
    }"""
    return page.evaluate(script)


@pytest.mark.browser_context_args(**PHONE)
def test_on_a_phone_each_row_of_a_list_is_a_card_without_scrolling(page, site, busy):
    for path in (JOBS, TOPICS, CHANGES):
        page.goto(site + path)
        page.locator("#result_list [data-label]").first.wait_for()  # the names of the columns
        scroll, client = page.locator("#result_list").evaluate("e => [e.scrollWidth, e.clientWidth]")
        assert scroll <= client <= 390, path
    page.goto(site + JOBS + "?state=dead")
    card = page.locator("#result_list tbody tr").first.inner_text()
    assert [word in card for word in ("dead", TOPIC, "order:", "ValueError: no such bank")] == [True] * 4
    named = page.locator("#result_list .field-due").first.evaluate("e => getComputedStyle(e, '::before').content")
    assert json.loads(named) == "Due "
    assert not page.locator("#result_list thead .column-last_error").is_visible()


def test_every_page_links_to_the_board(page, site):
    for path in ("/admin/", "/admin/delaytasks/", JOBS, TOPICS, "/admin/auth/user/"):
        open_page(page, site + path)
        page.locator(f"a[href='{BOARD}']").filter(visible=True).first.click()
        expect(page).to_have_url(site + BOARD)
    expect(page.locator("#nav-sidebar .current-model a").filter(visible=True)).to_have_text("Board")
    assert User.objects.count() == 1
