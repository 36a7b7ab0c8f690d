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


def test_the_page_shows_the_fields_of_the_chosen_kind_and_saves_the_target(page, site):
    Topic.objects.create(name="order.timeout")
    page.goto(f"{site}{LIST}order.timeout/change/")
    for name in ("kafka_topic", "amqp_exchange", "webhook_url", "celery_task", "target_format"):
        expect(page.locator(f"#id_{name}")).to_be_hidden()
    page.locator("#id_target_kind").select_option("webhook")
    for name in ("webhook_url", "webhook_settings", "target_format", "target_timeout"):
        expect(page.locator(f"#id_{name}")).to_be_visible()
    expect(page.locator("#id_kafka_topic")).to_be_hidden()
    page.locator("#id_webhook_url").fill("http://shop.example/")
    page.locator("input[name=_save]").click()
    expect(page.locator(".field-webhook_url .errorlist")).to_contain_text("must begin with https://")
    page.locator("#id_target_kind").select_option("celery")
    page.locator("#id_celery_task").fill("shop.tasks.close")
    page.locator("input[name=_save]").click()
    expect(page.locator("tr:has(input[value='order.timeout']) .field-handler_name")).to_contain_text("shop.tasks.close")
    assert Topic.objects.get(name="order.timeout").target["task"] == "shop.tasks.close"
