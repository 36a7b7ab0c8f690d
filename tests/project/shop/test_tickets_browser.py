"""The countdown of a ticket in a real browser: it runs in open hours, and stands still while paused."""

import json
from typing import Any

import pytest

from project.shop import tickets
from project.shop.models import Customer
from tests.support.browser import expect

pytestmark = pytest.mark.xdist_group("browser")

ALWAYS = [[0, 4_102_444_800_000]]
SET = "(countdown, open) => Object.assign(countdown.dataset, {open: JSON.stringify(open), leftMs: 1500})"


def test_the_countdown_runs_in_open_hours_only(page: Any, site: str) -> None:
    customer = Customer.objects.create(name="Ann", email="ann@shop.example")
    tickets.open_ticket(customer, "First")
    other = tickets.open_ticket(customer, "Other")
    tickets.ask_customer(other.pk)
    page.goto(f"{site}/admin/shop/ticket/")
    paused, running = page.locator(".dt-sla").all()  # the newest first
    assert json.loads(paused.get_attribute("data-open")) == []
    running.evaluate(SET, ALWAYS)  # whatever time of the day it is
    paused.evaluate(SET, [])
    expect(running).to_contain_text("-0:00:0")  # the countdown passes zero
    assert paused.inner_text() == "0:00:01"
