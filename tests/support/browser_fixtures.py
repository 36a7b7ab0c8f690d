"""Fixtures of browser tests: one Chromium and one server for all, a page for each, and a check of its console."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.test import override_settings


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


class Profiles:
    """One Chromium, and a page for each set of options: a new page for each test would take most of a second."""

    def __init__(self, browser: Any) -> None:
        self.browser = browser
        self.errors: list[str] = []
        self.pages: dict[str, Any] = {}

    def page(self, options: dict[str, Any]) -> Any:
        from tests.support.browser import open_context

        name = repr(sorted(options.items()))
        if name not in self.pages:
            context = open_context(self.browser, **options)
            context.on("console", self._note)
            context.on("weberror", lambda error: self.errors.append(str(error.error)))
            self.pages[name] = context.new_page()
        return self.pages[name]

    def _note(self, message: Any) -> None:
        address = message.location["url"]
        if message.type == "error" and "/favicon.ico" not in address:  # the admin has no icon
            self.errors.append(f"{message.text} {address}")


@pytest.fixture(scope="session")
def _profiles() -> Iterator[Profiles]:
    from tests.support.browser import open_browser  # at run time, only browser tests import Playwright

    with open_browser() as browser:
        yield Profiles(browser)


@pytest.fixture
def console_errors(_profiles: Profiles) -> list[str]:
    """The errors in the console of the visitor's pages, such as violations of a policy.

    A test that expects some clears the list; others fail at their end.
    """
    _profiles.errors.clear()
    return _profiles.errors


@pytest.fixture
def visitor(
    request: pytest.FixtureRequest, _profiles: Profiles, site: str, transactional_db: None, console_errors: list[str]
) -> Iterator[Any]:
    """A page of Playwright without cookies and storage. Asserts that its console has no errors at the end.

    The marker `browser_context_args` chooses the options of its profile.
    """
    from tests.support.browser import DESKTOP

    options: dict[str, Any] = dict(DESKTOP)
    for marker in reversed([*request.node.iter_markers("browser_context_args")]):  # the closest last
        options |= marker.kwargs
    page = _profiles.page(options)
    page.context.clear_cookies()
    page.context.set_offline(False)
    page.set_viewport_size(options["viewport"])
    page.emulate_media(color_scheme="light")
    page.goto(site + "/static/shop/icon.svg")
    page.evaluate("() => { localStorage.clear(); sessionStorage.clear(); }")
    page.goto("about:blank")
    yield page
    for tab in page.context.pages[1:]:
        tab.close()
    page.goto("about:blank")  # no requests while the tables are emptied, and all errors are known
    assert console_errors == []


@pytest.fixture
def page(visitor: Any, site: str, admin_client: Any) -> Any:
    """A page of Playwright whose visitor is logged in to the admin."""
    session = admin_client.cookies["sessionid"].value
    visitor.context.add_cookies([{"name": "sessionid", "value": session, "url": site}])
    return visitor
