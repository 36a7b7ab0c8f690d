"""The board in a real browser: refreshing, errors, hidden pages and themes."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.cache import cache
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks.admin.dashboard import admin, data
from delaytasks.models import Job, Topic, TopicStat
from delaytasks.monitoring import cache as keeping
from delaytasks.monitoring import daily_stats, forecast, last_hour
from tests.support.browser import console_errors, emulate, find, find_all, until

from ..conftest import NOW, TOPIC, make_job

pytestmark = pytest.mark.xdist_group("browser")
BOARD = "/admin/delaytasks/board/"
POLL_MS = 150
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _lively(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Poll often, and disable the cache of statistics."""
    monkeypatch.setattr(admin, "POLL_MS", POLL_MS)
    monkeypatch.setattr(keeping, "FRESH_PER_COMPUTE_SECOND", 0)
    for module in (forecast, daily_stats, last_hour):
        monkeypatch.setattr(module, "FRESH_SECONDS", 0)
    yield
    cache.clear()


@pytest.fixture
def browser(browser: Chrome, site: str) -> Chrome:
    """A browser that shows the board."""
    for n in range(1, 50):
        make_job(f"usual:{n}", due=n * MINUTE)
    browser.get(site + BOARD)
    until(browser, lambda b: state(b) == "fresh", "the first numbers")
    return browser


def state(browser: Chrome) -> str | None:
    return find(browser, ".dt-board").get_attribute("data-state")


def tile(browser: Chrome, name: str) -> str:
    return find(browser, f'.dt-tile[data-name="{name}"] .dt-tile-value').text


def drawn(browser: Chrome, chart: str) -> str:
    """Return the image of a chart's canvas."""
    return browser.execute_script(f"return document.querySelector('#dt-chart-{chart} canvas').toDataURL()")


def fetch_count(browser: Chrome) -> int:
    """Return how often the page fetched its numbers."""
    script = "return performance.getEntriesByType('resource').filter(each => each.name.includes('/numbers/')).length"
    return browser.execute_script(script)


def pass_time(browser: Chrome, ms: int) -> None:
    """Wait for this time by the browser's clock."""
    begin = browser.execute_script("return performance.now()")
    until(browser, lambda b: b.execute_script("return performance.now()") > begin + ms, f"{ms} ms to pass")


def test_the_board_refreshes_without_a_page_load(browser):
    browser.execute_script("window.stillTheSamePage = true")
    before = drawn(browser, "minutes")
    assert tile(browser, "due") == "49"
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(1200)])
    until(browser, lambda b: tile(b, "due") == "1,249", "the new number")
    until(browser, lambda b: drawn(b, "minutes") != before, "the chart to be drawn again")
    assert find(browser, "#dt-chart-minutes .dt-news").text == f"1,201 at 00:31: {TOPIC} 1,201"
    assert browser.execute_script("return window.stillTheSamePage")


def test_a_herd_can_be_shown_at_full_height(browser):
    box = find(browser, "#dt-chart-minutes .dt-tall input")
    assert not box.is_displayed()
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(900)])
    until(browser, lambda b: box.is_displayed(), "the choice")
    find(browser, "#dt-board-stop").click()
    cut = drawn(browser, "minutes")
    box.send_keys(Keys.SPACE)
    until(browser, lambda b: drawn(b, "minutes") != cut, "the herd at its full height")


def test_after_an_error_the_numbers_stay_and_refreshing_continues(browser, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(data, "build", lambda *args, **kwargs: 1 / 0)
        until(browser, lambda b: "The server responded with 500" in find(b, "#dt-board-error").text, "the error")
        assert (state(browser), tile(browser, "due")) == ("old", "49")
    until(browser, lambda b: state(b) == "fresh", "new numbers")
    assert find(browser, "#dt-board-error").text == ""
    assert all("500" in line for line in console_errors(browser) if "favicon" not in line)


def test_a_logged_out_user_is_redirected_to_the_login(browser):
    Session.objects.all().delete()
    until(browser, lambda b: "/admin/login/" in b.current_url, "the login")
    assert "board" in browser.current_url  # redirects there after the login


def test_a_hidden_page_does_not_poll(browser):
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
    browser.execute_script(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    pass_time(browser, POLL_MS)  # pending requests finish
    before = fetch_count(browser)
    pass_time(browser, 5 * POLL_MS)
    assert fetch_count(browser) == before
    browser.execute_script(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    until(browser, lambda b: fetch_count(b) > before + 1, "another refresh")


def test_refreshing_can_be_stopped_and_resumed(browser):
    button = find(browser, "#dt-board-stop")
    button.send_keys(Keys.ENTER)
    assert button.text == "Resume refreshing"
    assert find(browser, "#dt-board-updated").text == "Not refreshed since 00:00:00."
    pass_time(browser, POLL_MS)
    before = fetch_count(browser)
    pass_time(browser, 5 * POLL_MS)
    assert fetch_count(browser) == before
    button.send_keys(Keys.ENTER)
    until(browser, lambda b: fetch_count(b) > before, "another refresh")


def test_the_charts_follow_the_theme(browser):
    find(browser, "#dt-board-stop").click()
    pass_time(browser, POLL_MS)
    light = {name: drawn(browser, name) for name in ("minutes", "hours", "late")}
    find(browser, ".theme-toggle").click()
    for name, before in light.items():
        until(browser, lambda b, name=name, before=before: drawn(b, name) != before, f"{name} in the dark")
    find(browser, ".theme-toggle").click()
    find(browser, ".theme-toggle").click()
    for name, before in light.items():
        until(browser, lambda b, name=name, before=before: drawn(b, name) == before, f"{name} in the light again")
    emulate(browser, dark=True)  # the theme is "auto" again and follows the system
    until(browser, lambda b: drawn(b, "minutes") != light["minutes"], "what the system says")


def test_the_labels_of_the_axis_follow_the_time(browser, db_clock):
    """Even if nothing else in the chart changes."""
    Job.objects.all().delete()
    until(browser, lambda b: tile(b, "due") == "0", "an empty chart")
    before = drawn(browser, "minutes")
    db_clock.advance(seconds=180)
    until(browser, lambda b: drawn(b, "minutes") != before, "other times on the axis")


def test_each_chart_has_a_live_table_that_opens_by_keyboard(browser):
    find(browser, "#dt-chart-minutes summary").send_keys(Keys.ENTER)
    rows = until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#dt-chart-minutes tbody tr"), "the table")
    assert len(rows) == 60
    assert rows[7].text == "00:07 1"
    make_job("one more", due=7 * MINUTE)
    until(browser, lambda b: rows[7].text == "00:07 2", "the new number in the same row")
    scopes = [cell.get_attribute("scope") for cell in rows[0].find_elements(By.TAG_NAME, "th")]
    assert scopes == ["row"]


def test_each_chart_has_a_text_alternative(browser):
    plot = find(browser, "#dt-chart-minutes .dt-plot")
    assert plot.get_attribute("role") == "img"
    assert plot.get_attribute("aria-label") == "49 fall due, most of them at 00:01: 1."


def test_one_topic_is_chosen_without_a_page_load(browser, site):
    Topic.objects.create(name="mail.send")
    make_job("a", due=MINUTE, topic="mail.send")
    browser.get(site + BOARD)
    until(browser, lambda b: state(b) == "fresh" and tile(b, "due") == "50", "the first numbers")
    browser.execute_script("window.stillTheSamePage = true")
    find(browser, "#dt-topic").send_keys("mail.send")
    until(browser, lambda b: tile(b, "due") == "1", "that topic's number")
    assert browser.current_url.endswith("?topic=mail.send")
    assert browser.execute_script("return window.stillTheSamePage")


@pytest.mark.parametrize("dark", [False, True])
def test_on_a_phone_the_board_does_not_scroll_sideways(browser, dark):
    emulate(browser, width=390, dark=dark)
    until(browser, lambda b: b.execute_script("return document.documentElement.scrollWidth") == 390, "it to fit")
    widths = browser.execute_script("return [...document.querySelectorAll('.dt-plot')].map(each => each.clientWidth)")
    assert len(widths) == 5
    assert min(widths) > 300  # one below the other
    canvases = "return [...document.querySelectorAll('.dt-plot .u-wrap')].map(each => each.clientWidth)"
    until(browser, lambda b: b.execute_script(canvases) == widths, "the charts to fit")


def test_the_table_of_the_last_days_appears_after_a_report(browser):
    assert not find(browser, "#dt-past").is_displayed()
    assert "No report" in find(browser, "#dt-past-note").text
    numbers = dict.fromkeys(("finished", "retried", "died", "cancelled", "snoozed", "begun"), 0)
    TopicStat.objects.create(topic="<b>bold</b>", hour_at=NOW - 60 * MINUTE, happened=7, late_p95_ms=40, **numbers)
    until(browser, lambda b: find(b, "#dt-past").is_displayed(), "the table")
    assert [cell.text for cell in find_all(browser, "#dt-past tbody tr > *")] == [
        "<b>bold</b>", "7", "–", "40 ms", "7", "–", "40 ms"]  # fmt: skip
    assert "1 h 0 min ago" in find(browser, "#dt-past-note").text
