"""Simplified Chinese in a real browser: no control is in English."""

import re
from datetime import timedelta

import pytest
from selenium.webdriver import Chrome

from delaytasks import handlers
from delaytasks.models import Job
from delaytasks.states import State
from tests.support.browser import find, find_all, page_width, until

from ..conftest import TOPIC, make_job

pytestmark = pytest.mark.xdist_group("browser")
JOBS, BOARD = "/admin/delaytasks/job/", "/admin/delaytasks/board/"
NAMES = {TOPIC, "review.ask", "order:1", "Celery", "beat"}  # names, as those of topics; not words


@pytest.fixture
def browser(browser: Chrome) -> Chrome:
    """A browser whose reader prefers Chinese."""
    browser.execute_cdp_cmd("Network.enable", {})
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {"Accept-Language": "zh-CN,zh;q=0.9"}})
    yield browser
    browser.execute_cdp_cmd("Network.setExtraHTTPHeaders", {"headers": {}})


def english_controls(browser: Chrome) -> list[str]:
    """Return the texts of controls and headings that are in English."""
    script = """
    const acts = 'button, input[type=submit], select option, label, legend, summary, .object-tools a, .dt-all';
    return [...document.querySelectorAll(`main :is(${acts}, h1, h2, th, .dt-state, .dt-quiet, .dt-relative)`)]
        .filter((e) => e.checkVisibility() || e.tagName === 'OPTION')
        .map((e) => (e.tagName === 'INPUT' ? e.value : e.innerText ?? e.textContent).trim());
    """
    return [text for text in browser.execute_script(script) if is_english(text)]


def is_english(text: str) -> bool:
    names = NAMES.union(handlers.handled())
    return any(word not in names for word in re.findall(r"[a-z]+[.:][a-z0-9]+|[A-Za-z]{4,}", text))


def test_the_list_and_cancelling_with_a_reason_are_in_chinese(browser, site):
    job = make_job("order:1")
    browser.get(site + JOBS + "?state=live")
    until(browser, lambda b: find(b, f"tr:has(input[value='{job.pk}']) .dt-state").text == "延时中", "the job's state")
    assert english_controls(browser) == []
    find(browser, "#result_list tbody th a").click()
    until(browser, lambda b: find(b, "#dt-reason"), "the job's page")
    assert english_controls(browser) == []
    find(browser, "#dt-reason").send_keys("客户来电")
    find(browser, "button[value=cancel_jobs]").click()
    question = until(browser, lambda b: find_all(b, ".dt-submit input[type=submit]"), "the question")[0]
    assert english_controls(browser) == []
    question.click()
    text = until(browser, lambda b: find(b, ".messagelist").text, "the answer")
    assert re.search(r"[\u4e00-\u9fff]", text)
    assert not is_english(text)
    assert "客户来电" in find(browser, ".dt-timeline").text
    assert english_controls(browser) == []
    assert Job.objects.get().state == State.CANCELLED


def test_the_board_and_its_charts_are_in_chinese(browser, site):
    for n in range(1, 30):
        make_job(f"order:{n}", due=timedelta(minutes=n))
    browser.get(site + BOARD)
    until(browser, lambda b: find(b, ".dt-board").get_attribute("data-state") == "fresh", "the numbers")
    assert find(browser, "h1, #content h1, #content h2").text == "看板"
    tiles = [tile.text for tile in find_all(browser, ".dt-tile")]
    assert tiles
    assert [text for text in tiles if is_english(text)] == []
    spoken = find(browser, "#dt-chart-minutes .dt-plot").get_attribute("aria-label")
    assert "29" in spoken
    assert re.search(r"[\u4e00-\u9fff]", spoken)
    assert english_controls(browser) == []
    assert page_width(browser) <= browser.execute_script("return innerWidth")
