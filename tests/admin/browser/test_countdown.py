"""The countdown of service levels in a real browser."""

from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver import Chrome

import delaytasks
from tests.support.browser import find, until

pytestmark = pytest.mark.xdist_group("browser")
SCRIPT = (Path(delaytasks.__file__).parent / "static" / "delaytasks" / "sla.js").read_text()
PAGE = """
    document.body.innerHTML = '<span class="dt-state dt-delayed">running</span> <span class="dt-sla" data-left-ms="1"'
        + ' data-now-ms="0" data-open="[[0, 9000000]]" data-breached="too late">0:00:00</span>';
"""


def test_the_badge_says_breached_when_the_countdown_passes_zero(visitor: Chrome, site: Any) -> None:
    visitor.get("about:blank")
    visitor.execute_script(f"{PAGE} {SCRIPT}; document.dispatchEvent(new Event('DOMContentLoaded'))")
    badge = find(visitor, ".dt-state")
    until(visitor, lambda b: badge.text == "too late", "the badge")
    assert badge.get_attribute("class") == "dt-state dt-dead"
