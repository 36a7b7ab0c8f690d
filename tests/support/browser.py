"""A headless Chromium for browser tests. Debian's package is used; nothing is downloaded."""

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
    "--no-sandbox",  # continuous integration runs as root in a container
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm is small in a container
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--lang=en-US",
)
WAIT_SECONDS = 60.0
Result = TypeVar("Result")
FOCUS_IS_VISIBLE = """
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


def program(name: str, package: str) -> str:
    """Return the path of a program. Raises RuntimeError that names the package to install."""
    path = shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is not installed: install Debian's {package} (apt-get install {package}).")
    return path


@contextmanager
def open_browser(*, width: int = 1280, height: int = 1000) -> Iterator[Chrome]:
    """Open a browser with a new profile; close it at the end."""
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


def until(browser: Chrome, condition: Callable[[Chrome], Result], what: str) -> Result:
    """Wait until the condition is true and return its value. A missing or replaced element counts as false."""
    missing = (NoSuchElementException, StaleElementReferenceException)
    wait = WebDriverWait(browser, WAIT_SECONDS, poll_frequency=0.05, ignored_exceptions=missing)
    return wait.until(condition, f"Waited {WAIT_SECONDS:.0f} s for this: {what}.")


def find(browser: Chrome, selector: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, selector)


def find_all(browser: Chrome, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def press(browser: Chrome, *keys: str) -> None:
    """Send keys to the focused element."""
    ActionChains(browser).send_keys(*keys).perform()


def tab_to(browser: Chrome, what: str) -> None:
    """Press Tab until the JavaScript expression `what` is true; in it, `e` is the focused element.

    Asserts that each element that gets the focus shows it.
    """
    for _ in range(120):
        press(browser, Keys.TAB)
        script = (
            f"const visible = (() => {{{FOCUS_IS_VISIBLE}}})(), e = document.activeElement; return [visible, {what}]"
        )
        visible, found = browser.execute_script(script)
        assert visible, find(browser, ":focus").get_attribute("outerHTML")
        if found:
            return
    raise AssertionError(f"The Tab key does not lead to {what}.")


def focus_is_visible(browser: Chrome) -> bool:
    """Return whether the focused element shows its focus, by an outline, a shadow or a border, and is on the screen."""
    return browser.execute_script(FOCUS_IS_VISIBLE)


def page_width(browser: Chrome) -> int:
    """Return the width of the page in pixels, including parts that overflow the window."""
    return browser.execute_script("return document.documentElement.scrollWidth")


def emulate(browser: Chrome, *, dark: bool = False, width: int | None = None, height: int = 844) -> None:
    """Emulate a dark or light theme and a width, for example of a phone. width None: that of the window."""
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    if width is None:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    else:
        phone = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": True}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)


def console_errors(browser: Chrome) -> list[str]:
    """Return the errors in the browser's console since the last call, such as violations of a policy."""
    entries = browser.get_log("browser")
    return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]
