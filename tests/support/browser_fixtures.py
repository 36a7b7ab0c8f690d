"""Fixtures of browser tests: one Chromium and one server for all, and a check of the browser's console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings
from django.core.cache import cache
from django.test import override_settings

if TYPE_CHECKING:  # at run time, only browser tests import selenium
    from selenium.webdriver import Chrome


def strict_policy(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Middleware that forbids inline scripts and content of other hosts. A page that sets its own policy keeps it."""

    def middleware(request: Any) -> Any:
        response = get_response(request)
        response.setdefault("Content-Security-Policy", "default-src 'self'")
        return response

    return middleware


@pytest.fixture(scope="session")
def site(django_db_setup: None) -> Iterator[str]:
    """The URL of a server that uses the test's database and sets a strict content security policy."""
    from pytest_django.live_server_helper import LiveServer

    with override_settings(MIDDLEWARE=[f"{__name__}.strict_policy", *django_settings.MIDDLEWARE]):
        server = LiveServer("localhost")
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Chrome]:
    from tests.support.browser import open_browser

    with open_browser(width=1400) as browser:
        yield browser


@pytest.fixture
def visitor(_chromium: Chrome, site: str, transactional_db: None) -> Iterator[Chrome]:
    """A browser without cookies and storage, on this site. Asserts that its console has no errors at the end."""
    from tests.support.browser import console_errors, emulate

    cache.clear()  # the site runs in this process, so the dashboard would show another test's cached counts
    _chromium.get(site + "/static/shop/icon.svg")
    _chromium.delete_all_cookies()
    _chromium.execute_script("localStorage.clear(); sessionStorage.clear()")
    console_errors(_chromium)
    yield _chromium
    for tab in _chromium.window_handles[1:]:  # left by a failed test
        _chromium.switch_to.window(tab)
        _chromium.close()
    _chromium.switch_to.window(_chromium.window_handles[0])
    emulate(_chromium)
    _chromium.get("about:blank")  # no requests while the tables are emptied
    assert [error for error in console_errors(_chromium) if "/favicon.ico" not in error] == []  # the admin has no icon


@pytest.fixture
def browser(visitor: Chrome, admin_client: Any) -> Chrome:
    """A browser in which the admin is logged in."""
    visitor.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    return visitor
