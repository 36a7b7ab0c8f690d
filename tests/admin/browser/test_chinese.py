"""Simplified Chinese in a real browser: no control is in English."""

import re
from datetime import timedelta
from typing import Any

import pytest

from delaytasks import handlers
from delaytasks.models import Job
from delaytasks.states import State
from tests.support.browser import expect, page_width

from ..conftest import TOPIC, make_job

pytestmark = [pytest.mark.xdist_group("browser"), pytest.mark.browser_context_args(locale="zh-CN")]
JOBS, BOARD = "/admin/delaytasks/job/", "/admin/delaytasks/board/"
NAMES = {TOPIC, "review.ask", "order:1", "Celery", "beat"}  # names, as those of topics; not words


def english_controls(page: Any) -> list[str]:
    """Return the texts of controls and headings of the loaded page that are in English."""
    page.wait_for_load_state()
    script = """() => {
    const acts = 'button, input[type=submit], select option, label, legend, summary, .object-tools a, .dt-all';
    return [...document.querySelectorAll(`main :is(${acts}, h1, h2, th, .dt-state, .dt-quiet, .dt-relative)`)]
        .filter((e) => e.checkVisibility() || e.tagName === 'OPTION')
        .map((e) => (e.tagName === 'INPUT' ? e.value : e.innerText ?? e.textContent).trim());
    }"""
    return [text for text in page.evaluate(script) if is_english(text)]


def is_english(text: str) -> bool:
    names = NAMES.union(handlers.handled())
    return any(word not in names for word in re.findall(r"[a-z]+[.:][a-z0-9]+|[A-Za-z]{4,}", text))


def test_the_list_and_cancelling_with_a_reason_are_in_chinese(page, site):
    job = make_job("order:1")
    page.goto(site + JOBS + "?state=live")
    expect(page.locator(f"tr:has(input[value='{job.pk}']) .dt-state")).to_have_text("延时中")
    assert english_controls(page) == []
    page.locator("#result_list tbody th a").click()
    page.locator("#dt-reason").wait_for()
    assert english_controls(page) == []
    page.locator("#dt-reason").fill("客户来电")
    page.locator("button[value=cancel_jobs]").click()
    question = page.locator(".dt-submit input[type=submit]").first
    question.wait_for()
    assert english_controls(page) == []
    question.click()
    page.locator(".messagelist li").wait_for()
    page.wait_for_load_state()
    text = page.locator(".messagelist").inner_text()
    assert re.search(r"[\u4e00-\u9fff]", text)
    assert not is_english(text)
    assert "客户来电" in page.locator(".dt-timeline").inner_text()
    assert english_controls(page) == []
    assert Job.objects.get().state == State.CANCELLED


def test_the_board_and_its_charts_are_in_chinese(page, site, settings):
    settings.DELAYTASKS = {**settings.DELAYTASKS, "RUNBOOK_URL": f"{site}/runbook"}  # otherwise its path is shown
    for n in range(1, 30):
        make_job(f"order:{n}", due=timedelta(minutes=n))
    page.goto(site + BOARD)
    page.locator(".dt-board[data-state=fresh]").wait_for()
    expect(page.locator("h1, #content h1, #content h2").first).to_have_text("看板")
    tiles = page.locator(".dt-tile").all_inner_texts()
    assert tiles
    assert [text for text in tiles if is_english(text)] == []
    runbook = page.locator('.dt-tile[data-name="beat"] .dt-tile-advice a')
    expect(runbook).to_have_text("运维手册")
    assert runbook.get_attribute("href") == f"{site}/runbook#beat"
    spoken = page.locator("#dt-chart-minutes .dt-plot").get_attribute("aria-label")
    assert "29" in spoken
    assert re.search(r"[\u4e00-\u9fff]", spoken)
    assert english_controls(page) == []
    assert page_width(page) <= page.evaluate("innerWidth")
