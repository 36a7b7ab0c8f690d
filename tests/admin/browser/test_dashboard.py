"""The board in a real browser: refreshing, errors, hidden pages and themes."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session

from delaytasks.admin.dashboard import admin, data
from delaytasks.models import Job, Topic, TopicStat
from delaytasks.monitoring import cache as keeping
from delaytasks.monitoring import daily_stats, forecast, last_hour
from tests.support.browser import expect, page_width
from tests.support.servers import wait_until

from ..conftest import NOW, TOPIC, make_job

pytestmark = pytest.mark.xdist_group("browser")
BOARD = "/admin/delaytasks/board/"
POLL_MS = 150
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _lively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Poll often, and disable the cache of statistics."""
    monkeypatch.setattr(admin, "POLL_MS", POLL_MS)
    monkeypatch.setattr(keeping, "FRESH_PER_COMPUTE_SECOND", 0)
    for module in (forecast, daily_stats, last_hour):
        monkeypatch.setattr(module, "FRESH_SECONDS", 0)


@pytest.fixture
def page(page: Any, site: str) -> Any:
    """A page that shows the board."""
    for n in range(1, 50):
        make_job(f"usual:{n}", due=n * MINUTE)
    open_board(page, site)
    return page


def open_board(page: Any, site: str) -> None:
    page.goto(site + BOARD)
    fresh(page)


def fresh(page: Any) -> None:
    """Wait for new numbers."""
    page.locator(".dt-board[data-state=fresh]").wait_for()


def tile(page: Any, name: str) -> Any:
    return page.locator(f'.dt-tile[data-name="{name}"] .dt-tile-value')


def drawn(page: Any, chart: str) -> str:
    """Return the image of a chart's canvas."""
    return page.locator(f"#dt-chart-{chart} canvas").evaluate("canvas => canvas.toDataURL()")


def redrawn(page: Any, chart: str, before: str) -> None:
    wait_until(lambda: drawn(page, chart) != before, seconds=60, what=f"the chart {chart} to be drawn again")


def fetch_count(page: Any) -> int:
    """Return how often the page fetched its numbers."""
    return page.evaluate("performance.getEntriesByType('resource').filter(e => e.name.includes('/numbers/')).length")


def fetched(page: Any, more_than: int) -> None:
    wait_until(lambda: fetch_count(page) > more_than, seconds=60, what="another refresh")


def pass_time(page: Any, ms: int) -> None:
    """Wait for this time by the browser's clock."""
    page.evaluate("ms => new Promise(done => setTimeout(done, ms))", ms)


def test_the_board_refreshes_without_a_page_load(page):
    page.evaluate("window.stillTheSamePage = true")
    before = drawn(page, "minutes")
    assert tile(page, "due").inner_text() == "49"
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(1200)])
    expect(tile(page, "due")).to_have_text("1,249")
    redrawn(page, "minutes", before)
    assert page.locator("#dt-chart-minutes .dt-news").inner_text() == f"1,201 at 00:31: {TOPIC} 1,201"
    assert page.evaluate("window.stillTheSamePage")


def test_a_herd_can_be_shown_at_full_height(page):
    box = page.locator("#dt-chart-minutes .dt-tall input")
    assert not box.is_visible()
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(900)])
    box.wait_for()
    page.locator("#dt-board-stop").click()
    cut = drawn(page, "minutes")
    box.press("Space")
    redrawn(page, "minutes", cut)


RECORD_CALLS = """
window.calls = [];
for (const name of ['fillRect', 'fillText']) {
    const original = CanvasRenderingContext2D.prototype[name];
    CanvasRenderingContext2D.prototype[name] = function (first, ...rest) {
        if (this.canvas.closest('#dt-chart-minutes')) {
            calls.push(name === 'fillText' ? first : name);
        }
        return original.call(this, first, ...rest);
    };
}
"""


def test_the_cut_of_a_herd_does_not_clear_the_number_of_the_herd_beside_it(page, site):
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW}
    for minute, count in ((31, 900), (32, 700)):
        due_at = NOW + minute * MINUTE
        Job.objects.bulk_create([Job(key=f"sale:{minute}:{n}", due_at=due_at, **row) for n in range(count)])
    page.add_init_script(RECORD_CALLS)
    open_board(page, site)
    page.wait_for_function("calls.includes('901') && calls.includes('fillRect')")
    last_drawing = page.evaluate("calls.slice(calls.lastIndexOf('901'))")
    assert "fillRect" not in last_drawing


def test_after_an_error_the_numbers_stay_and_refreshing_continues(page, monkeypatch, console_errors):
    with monkeypatch.context() as broken:
        broken.setattr(data, "build", lambda *args, **kwargs: 1 / 0)
        expect(page.locator("#dt-board-error")).to_contain_text("The server responded with 500")
        assert page.locator(".dt-board").get_attribute("data-state") == "old"
        assert tile(page, "due").inner_text() == "49"
    fresh(page)
    assert page.locator("#dt-board-error").inner_text() == ""
    assert all("500" in line for line in console_errors)
    console_errors.clear()


def test_a_logged_out_user_is_redirected_to_the_login(page):
    Session.objects.all().delete()
    page.wait_for_url("**/admin/login/**")
    assert "board" in page.url  # redirects there after the login


def test_a_hidden_page_does_not_poll(page):
    hide = """(hidden) => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    pass_time(page, POLL_MS)  # pending requests finish
    before = fetch_count(page)
    pass_time(page, 5 * POLL_MS)
    assert fetch_count(page) == before
    page.evaluate(hide, False)
    fetched(page, before + 1)


def test_refreshing_can_be_stopped_and_resumed(page):
    button = page.locator("#dt-board-stop")
    button.press("Enter")
    assert button.inner_text() == "Resume refreshing"
    assert page.locator("#dt-board-updated").inner_text() == "Not refreshed since 00:00:00."
    pass_time(page, POLL_MS)
    before = fetch_count(page)
    pass_time(page, 5 * POLL_MS)
    assert fetch_count(page) == before
    button.press("Enter")
    fetched(page, before)


def test_the_charts_follow_the_theme(page):
    page.locator("#dt-board-stop").click()
    pass_time(page, POLL_MS)
    light = {name: drawn(page, name) for name in ("minutes", "hours", "late")}
    toggle = page.locator(".theme-toggle:visible")
    toggle.click()
    for name, before in light.items():
        redrawn(page, name, before)  # in the dark
    toggle.click()
    toggle.click()
    wait_until(lambda: {name: drawn(page, name) for name in light} == light, seconds=60, what="the light again")
    page.emulate_media(color_scheme="dark")  # the theme is "auto" again and follows the system
    redrawn(page, "minutes", light["minutes"])


def test_the_labels_of_the_axis_follow_the_time(page, db_clock):
    """Even if nothing else in the chart changes."""
    Job.objects.all().delete()
    expect(tile(page, "due")).to_have_text("0")
    before = drawn(page, "minutes")
    db_clock.advance(seconds=180)
    redrawn(page, "minutes", before)


def test_each_chart_has_a_live_table_that_opens_by_keyboard(page):
    page.locator("#dt-chart-minutes summary").press("Enter")
    rows = page.locator("#dt-chart-minutes tbody tr")
    expect(rows).to_have_count(60)
    row = rows.nth(7)
    assert row.inner_text().split() == ["00:07", "1"]
    element = row.element_handle()
    make_job("one more", due=7 * MINUTE)
    wait_until(
        lambda: element.inner_text().split() == ["00:07", "2"], seconds=60, what="the new number in the same row"
    )
    assert [cell.get_attribute("scope") for cell in rows.first.locator("th").all()] == ["row"]


def test_each_chart_has_a_text_alternative(page):
    plot = page.locator("#dt-chart-minutes .dt-plot")
    assert plot.get_attribute("role") == "img"
    assert plot.get_attribute("aria-label") == "49 fall due. The busiest time is 00:01: 1."


def test_one_topic_is_chosen_without_a_page_load(page, site):
    Topic.objects.create(name="mail.send")
    make_job("a", due=MINUTE, topic="mail.send")
    open_board(page, site)
    expect(tile(page, "due")).to_have_text("50")
    page.evaluate("window.stillTheSamePage = true")
    page.locator("#dt-topic").select_option("mail.send")
    expect(tile(page, "due")).to_have_text("1")
    assert page.url.endswith("?topic=mail.send")
    assert page.evaluate("window.stillTheSamePage")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_the_board_does_not_scroll_sideways(page, theme):
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": 390, "height": 844})
    wait_until(lambda: page_width(page) == 390, seconds=60, what="it to fit")
    widths = page.evaluate("[...document.querySelectorAll('.dt-plot')].map(each => each.clientWidth)")
    assert len(widths) == 5
    assert min(widths) > 300  # one below the other
    canvases = "[...document.querySelectorAll('.dt-plot .u-wrap')].map(each => each.clientWidth)"
    wait_until(lambda: page.evaluate(canvases) == widths, seconds=60, what="the charts to fit")


def test_the_table_of_the_last_days_appears_after_a_report(page):
    assert not page.locator("#dt-past").is_visible()
    assert "No report" in page.locator("#dt-past-note").inner_text()
    numbers = dict.fromkeys(("finished", "retried", "died", "cancelled", "snoozed", "begun"), 0)
    TopicStat.objects.create(topic="<b>bold</b>", hour_at=NOW - 60 * MINUTE, happened=7, late_p95_ms=40, **numbers)
    page.locator("#dt-past").wait_for()
    assert page.locator("#dt-past tbody tr > *").all_inner_texts() == [
        "<b>bold</b>", "7", "–", "40 ms", "7", "–", "40 ms"]  # fmt: skip
    assert "1 h 0 min ago" in page.locator("#dt-past-note").inner_text()
