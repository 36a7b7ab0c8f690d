"""A headless Chromium for browser tests, driven by Playwright. Debian's package is used; nothing is downloaded.

Playwright needs an asyncio loop, and Django refuses the ORM in a thread whose loop runs. With Playwright's synchronous
API that would be the tests' thread, until the browser is closed. So the loop has a thread of its own, and tests use the
asynchronous API through `Remote`: without `await`, otherwise as Playwright's documents say.
"""

from __future__ import annotations

import asyncio
import inspect
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from playwright import async_api

# Playwright adds those for a container, such as --no-sandbox and --disable-dev-shm-usage.
FLAGS = ("--disable-gpu", "--disable-quic", "--disable-sync")
WAIT_MS = 60_000
DESKTOP = {"viewport": {"width": 1400, "height": 860}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True}

# Whether the focused element shows that it is focused, by an outline, a shadow or a border, and is on the screen.
FOCUS_IS_VISIBLE = """() => {
    const e = document.activeElement, box = e.getBoundingClientRect();
    if (e === document.body) return true;  // beyond the page's last element
    const look = (s) => [s.outlineStyle, s.outlineWidth, s.boxShadow, s.borderColor, s.textDecorationLine,
                         s.backgroundColor, s.color].join();
    const focused = getComputedStyle(e), has = look(focused);
    const ring = focused.outlineStyle !== 'none' && parseFloat(focused.outlineWidth) > 0;
    if (!ring) {
        e.blur();
        var differs = look(getComputedStyle(e)) !== has;
        e.focus();
    }
    return (ring || differs) && box.width > 0 && box.bottom > 0 && box.top < innerHeight;
}"""


class Remote:
    """An object of Playwright's asynchronous API. Its methods run in the browser's thread; a call waits for the result.

    A function given to `on()` runs in the browser's thread, with objects that are not `Remote`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        self._loop, self._target = loop, target

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        async def call() -> Any:
            result = self._target(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return self._wrap(asyncio.run_coroutine_threadsafe(call(), self._loop).result())

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._wrap(each) for each in value]
        of_playwright = callable(value) or type(value).__module__.startswith("playwright.")
        return Remote(self._loop, value) if of_playwright else value


def chromium() -> str:
    """Return the path of Chromium. Raises RuntimeError that names the package to install."""
    path = shutil.which("chromium")
    if path is None:
        raise RuntimeError("chromium is not installed: install Debian's chromium (apt-get install chromium).")
    return path


@contextmanager
def open_browser() -> Iterator[Remote]:
    """Open a browser; close it, and end its thread, at the end."""
    path, loop = chromium(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="browser")
    async_api.expect.set_options(timeout=WAIT_MS)
    thread.start()
    with ExitStack() as stack:
        stack.callback(loop.close)
        stack.callback(thread.join)
        stack.callback(loop.call_soon_threadsafe, loop.stop)
        playwright = Remote(loop, async_api.async_playwright()).start()
        stack.callback(playwright.stop)
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        stack.callback(browser.close)
        yield browser


def open_context(browser: Remote, **options: Any) -> Any:
    """Open a profile without cookies, storage and cache, in English unless the options say otherwise."""
    context = browser.new_context(**{"locale": "en-US", **options})
    context.set_default_timeout(WAIT_MS)
    return context


def expect(found: Remote) -> Any:
    """Return Playwright's assertions on a page or locator, which wait until they are true."""
    return found._wrap(async_api.expect(found._target))


def tab_to(page: Any, what: str) -> None:
    """Press Tab until the JavaScript expression `what` is true; in it, `e` is the focused element.

    Waits until the page is loaded. Asserts that each element that gets the focus shows it.
    """
    script = f"() => {{ const e = document.activeElement; return [({FOCUS_IS_VISIBLE})(), {what}]; }}"
    page.wait_for_load_state()
    for _ in range(120):
        page.keyboard.press("Tab")
        visible, found = page.evaluate(script)
        assert visible, page.evaluate("document.activeElement.outerHTML")
        if found:
            return
    raise AssertionError(f"The Tab key does not lead to {what}.")


def page_width(page: Any) -> int:
    """Return the width of the page in pixels, including parts that overflow the window."""
    return page.evaluate("document.documentElement.scrollWidth")
