"""The form of a schedule in a real browser: it shows the next ten runs while it is filled in."""

import pytest
from selenium.webdriver.common.by import By

from tests.support.browser import find, until

pytestmark = pytest.mark.xdist_group("browser")


def test_the_next_runs_follow_what_is_typed(browser, site):
    browser.get(site + "/admin/delaytasks/schedule/add/")
    cron, runs = browser.find_element(By.NAME, "cron"), ".dt-next-runs"
    browser.find_element(By.NAME, "tz").send_keys("Europe/Berlin")
    cron.send_keys("0 9 * *")
    until(browser, lambda b: "with 4 fields" in find(b, runs).text, "what is wrong")
    cron.send_keys(" *")
    until(browser, lambda b: find(b, runs).text.count(" 09:00:00 ") == 10, "the next ten runs")
