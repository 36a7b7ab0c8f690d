"""The countdown of service levels in a real browser."""

from pathlib import Path
from typing import Any

import pytest

import delaytasks
from tests.support.browser import expect

pytestmark = pytest.mark.xdist_group("browser")
SCRIPT = (Path(delaytasks.__file__).parent / "static" / "delaytasks" / "sla.js").read_text()
PAGE = """
    <span class="dt-state dt-delayed">running</span>
    <span class="dt-sla" data-left-ms="1" data-now-ms="0" data-open="[[0, 9000000]]" data-breached="too late"></span>
"""


def test_the_badge_says_breached_when_the_countdown_passes_zero(visitor: Any) -> None:
    visitor.set_content(PAGE)
    visitor.evaluate(f"() => {{ {SCRIPT}; document.dispatchEvent(new Event('DOMContentLoaded')); }}")
    badge = visitor.locator(".dt-state")
    expect(badge).to_have_text("too late")
    expect(badge).to_have_class("dt-state dt-dead")
