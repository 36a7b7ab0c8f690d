"""What tests in a browser ask for: one Chromium and one server for all of them, and a page that has no complaints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings as django_settings
from django.core.cache import cache
from django.test import override_settings

if TYPE_CHECKING:  # selenium is imported by those who need it
    from selenium.webdriver import Chrome


def strict_policy(get_response: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A middleware: nothing inline, nothing from elsewhere. A page that brings a policy of its own keeps it."""

    def answer(request: Any) -> Any:
        response = get_response(request)
        response.setdefault("Content-Security-Policy", "default-src 'self'")
        return response

    return answer


@pytest.fixture(scope="session")
def site(django_db_setup: None) -> Iterator[str]:
    """The address of a server over the test's database, under a strict policy."""
    from pytest_django.live_server_helper import LiveServer

    with override_settings(MIDDLEWARE=[f"{__name__}.strict_policy", *django_settings.MIDDLEWARE]):
        server = LiveServer("localhost")
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def _chromium() -> Iterator[Chrome]:
    from tests.browser import open_browser

    with open_browser(width=1400) as browser:
        yield browser


@pytest.fixture
def visitor(_chromium: Chrome, site: str, transactional_db: None) -> Iterator[Chrome]:
    """A browser that nobody has used before, on this site. At the end its console has nothing to complain about."""
    from tests.browser import complaints, emulate

    cache.clear()  # the site is in this process: the board would show what it counted a moment ago for another test
    _chromium.get(site + "/static/shop/icon.svg")
    _chromium.delete_all_cookies()
    _chromium.execute_script("localStorage.clear(); sessionStorage.clear()")
    complaints(_chromium)
    yield _chromium
    for tab in _chromium.window_handles[1:]:  # a test that failed may have left them
        _chromium.switch_to.window(tab)
        _chromium.close()
    _chromium.switch_to.window(_chromium.window_handles[0])
    emulate(_chromium)
    _chromium.get("about:blank")  # it asks the server nothing while the tables are emptied
    assert [said for said in complaints(_chromium) if "/favicon.ico" not in said] == []  # pages of the admin have none


@pytest.fixture
def browser(visitor: Chrome, admin_client: Any) -> Chrome:
    """The same with the admin logged in."""
    visitor.add_cookie({"name": "sessionid", "value": admin_client.cookies["sessionid"].value})
    return visitor
