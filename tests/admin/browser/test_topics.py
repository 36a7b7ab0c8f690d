"""Topics in a real browser: pause and resume, from the list and by keyboard alone."""

import pytest
from selenium.webdriver.common.keys import Keys

from delaytasks.models import Topic
from tests.support.browser import find, find_all, press, tab_to, until

from ..conftest import TOPIC

pytestmark = pytest.mark.xdist_group("browser")
LIST = "/admin/delaytasks/topic/"
ROW = f"tr:has(input[value='{TOPIC}'])"


def test_by_keyboard_alone_a_topic_is_paused_and_resumed(browser, site):
    browser.get(site + LIST)
    for action, word, paused in (("Pause", "paused", True), ("Resume", "running", False)):
        tab_to(browser, "e.name === 'action'")
        press(browser, action)
        tab_to(browser, f"e.value === '{TOPIC}'")
        press(browser, Keys.SPACE)
        browser.execute_script("document.querySelector('select[name=action]').focus()")  # back, as Shift and Tab would
        tab_to(browser, "e.name === 'index'")
        press(browser, Keys.ENTER)
        until(browser, lambda b, word=word: find(b, f"{ROW} .dt-state").text == word, word)
        assert f"1 topic {action.lower()}d" in find(browser, ".messagelist").text
        assert Topic.objects.get(name=TOPIC).paused is paused


def test_a_topic_paused_on_its_page_is_shown_on_the_board(browser, site):
    browser.get(f"{site}{LIST}{TOPIC}/change/")
    find(browser, "#id_paused").click()
    find(browser, "input[name=_save]").click()
    until(browser, lambda b: find(b, f"{ROW} .dt-state").text == "paused", "the list")
    browser.get(site + "/admin/delaytasks/board/")
    tile = until(browser, lambda b: find(b, '.dt-tile[data-name="paused"]').text, "the board")
    assert TOPIC in tile
    find(browser, '.dt-tile[data-name="paused"] a').click()
    until(browser, lambda b: find_all(b, f"{ROW} .dt-paused"), "the way from the board to the topic")
