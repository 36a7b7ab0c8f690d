"""A headless Chromium, for tests that look at pages as people do. Debian's own, nothing is downloaded."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # continuous integration is root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm is small there
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
)
WAIT_SECONDS = 60.0
Found = TypeVar("Found")


def program(name: str, package: str) -> str:
    """Where the program is. Raises RuntimeError, which says what to install."""
    found = shutil.which(name)
    if found is None:
        raise RuntimeError(f"There is no {name} here: install Debian's {package} (apt-get install {package}).")
    return found


@contextmanager
def open_browser(*, width: int = 1280, height: int = 1000) -> Iterator[Chrome]:
    """A browser with a profile of its own, closed at the end."""
    chromium, driver = program("chromium", "chromium"), program("chromedriver", "chromium-driver")
    options = ChromeOptions()
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--window-size={width},{height}", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        browser = Chrome(options=options, service=Service(driver))
        try:
            yield browser
        finally:
            browser.quit()


def until(browser: Chrome, condition: Callable[[Chrome], Found], what: str) -> Found:
    """The condition's answer once it is true; an element that is not there yet, or was replaced, is waited for."""
    missing = (NoSuchElementException, StaleElementReferenceException)
    wait = WebDriverWait(browser, WAIT_SECONDS, poll_frequency=0.05, ignored_exceptions=missing)
    return wait.until(condition, f"Waited {WAIT_SECONDS:.0f} s for this: {what}.")


def find(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def find_all(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def press(browser: Chrome, *keys: str) -> None:
    """Keys for whatever has the focus."""
    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser: Chrome, what: str) -> None:
    """Goes on with the Tab key until the focus is where the script `what` says, given the focused element as e.

    Whatever has the focus on the way can be seen to have it.
    """
    for _ in range(120):
        press(browser, Keys.TAB)
        assert focus_is_visible(browser), find(browser, ":focus").get_attribute("outerHTML")
        if browser.execute_script(f"const e = document.activeElement; return {what}"):
            return
    raise AssertionError(f"The Tab key does not lead to {what}.")


def focus_is_visible(browser: Chrome) -> bool:
    """Whether the focused element looks focused: an outline, a shadow or a border of its own, on the screen."""
    return browser.execute_script(
        """
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
        """
    )


def page_width(browser: Chrome) -> int:
    """In pixels, with what sticks out."""
    return browser.execute_script("return document.documentElement.scrollWidth")


def emulate(browser: Chrome, *, dark: bool = False, width: int | None = None, height: int = 844) -> None:
    """Dark or light, and as wide as a phone or, without a width, as the window."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    if width is None:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    else:
        phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)


def complaints(browser: Chrome) -> list[str]:
    """What the browser's console has to complain about since it was asked last: errors, refusals by a policy."""
    entries = browser.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
