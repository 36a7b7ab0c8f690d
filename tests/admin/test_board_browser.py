"""The board in a real browser: it goes on by itself, survives errors, rests unseen, and follows the theme."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session
from django.core.cache import cache
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from delaytasks import forecast, keeping, lastdays, lasthour
from delaytasks.admin import board, boardnumbers
from delaytasks.models import Job, Topic, TopicStat
from tests.browser import complaints, emulate, find, find_all, until

from .conftest import NOW, TOPIC, make_job

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.xdist_group("browser")]
BOARD = "/admin/delaytasks/board/"
EVERY_MS = 150
MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _lively(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A board that asks often, and a server that keeps nothing."""
    monkeypatch.setattr(board, "EVERY_MS", EVERY_MS)
    monkeypatch.setattr(keeping, "WORTH", 0)
    for module in (forecast, lastdays, lasthour):
        monkeypatch.setattr(module, "FRESH_SECONDS", 0)
    yield
    cache.clear()


@pytest.fixture
def browser(browser: Chrome, site: str) -> Chrome:
    """A browser that looks at the board."""
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
    """What is on a chart's canvas."""
    return browser.execute_script(f"return document.querySelector('#dt-chart-{chart} canvas').toDataURL()")


def asked(browser: Chrome) -> int:
    """How often the page asked for numbers."""
    script = "return performance.getEntriesByType('resource').filter(each => each.name.includes('/numbers/')).length"
    return browser.execute_script(script)


def pass_time(browser: Chrome, ms: int) -> None:
    """Until so much of the browser's time is over."""
    begin = browser.execute_script("return performance.now()")
    until(browser, lambda b: b.execute_script("return performance.now()") > begin + ms, f"{ms} ms to pass")


def test_it_goes_on_without_a_page_load(browser):
    browser.execute_script("window.stillTheSamePage = true")
    before = drawn(browser, "minutes")
    assert tile(browser, "due") == "49"
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(1200)])
    until(browser, lambda b: tile(b, "due") == "1,249", "the new number")
    until(browser, lambda b: drawn(b, "minutes") != before, "the chart to be drawn again")
    assert find(browser, "#dt-chart-minutes .dt-news").text == f"1,201 at 00:31: {TOPIC} 1,201"
    assert browser.execute_script("return window.stillTheSamePage")


def test_a_herd_may_be_shown_at_its_full_height(browser):
    box = find(browser, "#dt-chart-minutes .dt-tall input")
    assert not box.is_displayed()
    row = {"topic": TOPIC, "ttr_ms": 1000, "created_at": NOW, "due_at": NOW + 31 * MINUTE}
    Job.objects.bulk_create([Job(key=f"sale:{n}", **row) for n in range(900)])
    until(browser, lambda b: box.is_displayed(), "the choice")
    find(browser, "#dt-board-stop").click()
    cut = drawn(browser, "minutes")
    box.send_keys(Keys.SPACE)
    until(browser, lambda b: drawn(b, "minutes") != cut, "the herd at its full height")


def test_an_error_is_said_the_numbers_stay_and_it_goes_on_by_itself(browser, monkeypatch):
    with monkeypatch.context() as broken:
        broken.setattr(boardnumbers, "of", lambda *args, **kwargs: 1 / 0)
        until(browser, lambda b: "The server answered 500" in find(b, "#dt-board-error").text, "the error")
        assert (state(browser), tile(browser, "due")) == ("old", "49")
    until(browser, lambda b: state(b) == "fresh", "new numbers")
    assert find(browser, "#dt-board-error").text == ""
    assert all("500" in said for said in complaints(browser) if "favicon" not in said)


def test_whoever_was_logged_out_is_asked_to_log_in(browser):
    Session.objects.all().delete()
    until(browser, lambda b: "/admin/login/" in b.current_url, "the login")
    assert "board" in browser.current_url  # where it leads to afterwards


def test_it_rests_while_nobody_looks(browser):
    hide = "Object.defineProperty(document, 'hidden', {value: arguments[0], configurable: true});"
    browser.execute_script(hide + "document.dispatchEvent(new Event('visibilitychange'))", True)
    pass_time(browser, EVERY_MS)  # what was under way arrives
    before = asked(browser)
    pass_time(browser, 5 * EVERY_MS)
    assert asked(browser) == before
    browser.execute_script(hide + "document.dispatchEvent(new Event('visibilitychange'))", False)
    until(browser, lambda b: asked(b) > before + 1, "it to go on")


def test_it_stands_still_when_told_to_and_goes_on_when_told_to(browser):
    button = find(browser, "#dt-board-stop")
    button.send_keys(Keys.ENTER)
    assert button.text == "Go on refreshing"
    assert find(browser, "#dt-board-updated").text == "Not refreshed since 00:00:00."
    pass_time(browser, EVERY_MS)
    before = asked(browser)
    pass_time(browser, 5 * EVERY_MS)
    assert asked(browser) == before
    button.send_keys(Keys.ENTER)
    until(browser, lambda b: asked(b) > before, "it to go on")


def test_the_charts_follow_the_theme(browser):
    find(browser, "#dt-board-stop").click()
    pass_time(browser, EVERY_MS)
    light = {name: drawn(browser, name) for name in ("minutes", "hours", "late")}
    find(browser, ".theme-toggle").click()
    for name, before in light.items():
        until(browser, lambda b, name=name, before=before: drawn(b, name) != before, f"{name} in the dark")
    find(browser, ".theme-toggle").click()
    find(browser, ".theme-toggle").click()
    for name, before in light.items():
        until(browser, lambda b, name=name, before=before: drawn(b, name) == before, f"{name} in the light again")
    emulate(browser, dark=True)  # the theme is "auto" again: it follows the system
    until(browser, lambda b: drawn(b, "minutes") != light["minutes"], "what the system says")


def test_the_times_on_the_axis_go_on_with_the_time(browser, db_clock):
    """Also where nothing else in the chart changes."""
    Job.objects.all().delete()
    until(browser, lambda b: tile(b, "due") == "0", "an empty chart")
    before = drawn(browser, "minutes")
    db_clock.advance(seconds=180)
    until(browser, lambda b: drawn(b, "minutes") != before, "other times on the axis")


def test_each_chart_is_a_table_too_that_the_keyboard_opens_and_that_goes_on(browser):
    find(browser, "#dt-chart-minutes summary").send_keys(Keys.ENTER)
    rows = until(browser, lambda b: b.find_elements(By.CSS_SELECTOR, "#dt-chart-minutes tbody tr"), "the table")
    assert len(rows) == 60
    assert rows[7].text == "00:07 1"
    make_job("one more", due=7 * MINUTE)
    until(browser, lambda b: rows[7].text == "00:07 2", "the new number in the same row")
    scopes = [cell.get_attribute("scope") for cell in rows[0].find_elements(By.TAG_NAME, "th")]
    assert scopes == ["row"]


def test_each_chart_says_in_words_what_it_shows(browser):
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
def test_a_phone_shows_all_of_it_without_moving_sideways(browser, dark):
    emulate(browser, width=390, dark=dark)
    until(browser, lambda b: b.execute_script("return document.documentElement.scrollWidth") == 390, "it to fit")
    widths = browser.execute_script("return [...document.querySelectorAll('.dt-plot')].map(each => each.clientWidth)")
    assert len(widths) == 5
    assert min(widths) > 300  # one below the other
    canvases = "return [...document.querySelectorAll('.dt-plot .u-wrap')].map(each => each.clientWidth)"
    until(browser, lambda b: b.execute_script(canvases) == widths, "the charts to fit")


def test_the_last_days_are_a_table_where_a_report_has_run_and_no_table_before(browser):
    assert not find(browser, "#dt-past").is_displayed()
    assert "No report" in find(browser, "#dt-past-note").text
    numbers = dict.fromkeys(("finished", "retried", "died", "cancelled", "snoozed", "begun"), 0)
    TopicStat.objects.create(topic="<b>bold</b>", hour_at=NOW - 60 * MINUTE, happened=7, late_p95_ms=40, **numbers)
    until(browser, lambda b: find(b, "#dt-past").is_displayed(), "the table")
    assert [cell.text for cell in find_all(browser, "#dt-past tbody tr > *")] == [
        "<b>bold</b>", "7", "–", "40 ms", "7", "–", "40 ms"]  # fmt: skip
    assert "1 h 0 min ago" in find(browser, "#dt-past-note").text
