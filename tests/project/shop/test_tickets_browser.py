"""The countdown of a ticket in a real browser: it runs in open hours, and stands still while paused."""

import json
from typing import Any

import pytest
from selenium.webdriver.common.by import By

from project.shop import tickets
from project.shop.models import Customer
from tests.support.browser import until

pytestmark = pytest.mark.xdist_group("browser")

ALWAYS = [[0, 4_102_444_800_000]]


def test_the_countdown_runs_in_open_hours_only(browser: Any, site: str) -> None:
    customer = Customer.objects.create(name="Ann", email="ann@shop.example")
    tickets.open_ticket(customer, "First")
    other = tickets.open_ticket(customer, "Other")
    tickets.ask_customer(other.pk)
    browser.get(f"{site}/admin/shop/ticket/")
    paused, running = browser.find_elements(By.CSS_SELECTOR, ".dt-sla")  # the newest first
    assert json.loads(paused.get_attribute("data-open")) == []
    set_open = "arguments[0].dataset.open = arguments[1]; arguments[0].dataset.leftMs = arguments[2]"
    browser.execute_script(set_open, running, json.dumps(ALWAYS), 1500)  # whatever time of the day it is
    browser.execute_script(set_open, paused, "[]", 1500)
    until(browser, lambda browser: running.text.startswith("-0:00:0"), "the countdown passes zero")
    assert paused.text == "0:00:01"
