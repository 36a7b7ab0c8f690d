"""The form of a schedule in a real browser: it shows the next ten runs while it is filled in."""

import pytest

from tests.support.browser import expect
from tests.support.servers import wait_until

pytestmark = pytest.mark.xdist_group("browser")


def test_the_next_runs_follow_what_is_typed(page, site):
    page.goto(site + "/admin/delaytasks/schedule/add/")
    cron, runs = page.locator("[name=cron]"), page.locator(".dt-next-runs")
    page.locator("[name=tz]").fill("Europe/Berlin")
    cron.press_sequentially("0 9 * *")
    expect(runs).to_contain_text("with 4 fields")
    cron.press_sequentially(" *")
    wait_until(lambda: runs.inner_text().count(" 09:00:00 ") == 10, seconds=60, what="the next ten runs")


def test_the_next_runs_follow_what_is_chosen_from_the_clock(page, site):
    page.goto(site + "/admin/delaytasks/schedule/add/")
    runs = page.locator(".dt-next-runs")
    values = {"tz": "UTC", "every": "86400", "start_at_0": "2029-12-01", "start_at_1": "00:07:30"}
    for name, value in values.items():
        page.locator(f"[name={name}]").fill(value)
    expect(runs).to_contain_text(" 00:07:30 UTC")
    page.locator("#clocklink0").click()
    page.locator("#clockbox0").get_by_text("Noon").click()
    expect(runs).to_contain_text(" 12:00:00 UTC")
