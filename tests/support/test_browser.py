"""The browser leaves no trace in the tests' thread."""

import asyncio
import os
from typing import Any

import pytest

pytestmark = pytest.mark.xdist_group("browser")


def test_no_loop_runs_in_the_tests_thread_while_a_page_is_open(visitor: Any, site: str) -> None:
    """A running one would make Django refuse the ORM in this test, and in all later ones of this process."""
    visitor.goto(site)
    with pytest.raises(RuntimeError, match="no running event loop"):
        asyncio.get_running_loop()
    assert "DJANGO_ALLOW_ASYNC_UNSAFE" not in os.environ


def test_errors_in_a_pages_script_and_console_are_noted(visitor: Any, console_errors: list[str]) -> None:
    visitor.set_content("<script>console.error('said'); missing()</script>")
    visitor.evaluate("1")
    assert [line.strip() for line in console_errors] == ["said", "missing is not defined"]
    console_errors.clear()
