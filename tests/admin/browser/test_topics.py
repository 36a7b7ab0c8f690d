"""Topics in a real browser: pause and resume, from the list and by keyboard alone."""

import pytest

from delaytasks.models import Topic
from tests.support.browser import expect, tab_to

from ..conftest import TOPIC

pytestmark = pytest.mark.xdist_group("browser")
LIST = "/admin/delaytasks/topic/"
ROW = f"tr:has(input[value='{TOPIC}'])"


def test_by_keyboard_alone_a_topic_is_paused_and_resumed(page, site):
    page.goto(site + LIST)
    for action, word, paused in (("Pause", "paused", True), ("Resume", "running", False)):
        tab_to(page, "e.name === 'action'")
        page.keyboard.type(action)
        tab_to(page, f"e.value === '{TOPIC}'")
        page.keyboard.press("Space")
        page.locator("select[name=action]").focus()  # back, as Shift and Tab would
        tab_to(page, "e.name === 'index'")
        page.keyboard.press("Enter")
        expect(page.locator(f"{ROW} .dt-state")).to_have_text(word)
        expect(page.locator(".messagelist")).to_contain_text(f"1 topic {action.lower()}d")
        assert Topic.objects.get(name=TOPIC).paused is paused


def test_a_topic_paused_on_its_page_is_shown_on_the_board(page, site):
    page.goto(f"{site}{LIST}{TOPIC}/change/")
    page.locator("#id_paused").click()
    page.locator("input[name=_save]").click()
    expect(page.locator(f"{ROW} .dt-state")).to_have_text("paused")
    page.goto(site + "/admin/delaytasks/board/")
    tile = page.locator('.dt-tile[data-name="paused"]')
    expect(tile).to_contain_text(TOPIC)
    tile.locator("a").click()
    expect(page.locator(f"{ROW} .dt-paused")).to_be_visible()  # the way from the board to the topic
