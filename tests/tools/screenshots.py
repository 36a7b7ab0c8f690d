"""`make screenshots`: starts the whole shop, gives it a lively day, and takes the pictures of the README.

OUT=folder says where to (docs/images). Needs Debian's chromium and chromium-driver; for the Chinese picture a font
that has the characters (fonts-wqy-microhei).
"""

import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from project.run.preflight import find_free_port
from tests.support.browser import emulate, find, find_all, open_browser, program, until

BASE = Path(__file__).resolve().parents[2]
WIDE, TALL, PHONE = 1280, 860, 390
MOST_BYTES = 150_000  # of a picture in its full colours
JOBS, BOARD = "/admin/delaytasks/job/", "/admin/delaytasks/board/"


def main() -> int:
    """0, or 1 after one sentence about what is missing."""
    out = Path(os.environ.get("OUT") or BASE / "docs" / "images")
    try:
        for name, package in (("chromium", "chromium"), ("chromedriver", "chromium-driver")):
            program(name, package)
    except RuntimeError as missing:
        print(missing, file=sys.stderr)
        return 1
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as var, shop(Path(var)) as (site, password):
        join(Path(var))
        with open_browser(width=WIDE, height=1000) as browser:
            Studio(browser, site, password, out).take_all()
    return 0


@contextmanager
def shop(var: Path) -> Iterator[tuple[str, str]]:
    """A `make run` of its own: its address and the admin's password."""
    env = {**os.environ, "VAR_DIR": str(var), "PORT": str(find_free_port()), "SHOP_SEED": "7"}
    for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "ORDERS"):
        env.pop(name, None)
    command = [sys.executable, "-m", "project.run"]
    run = subprocess.Popen(command, cwd=BASE, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert run.stdout is not None
    said = []
    try:
        for line in run.stdout:
            said.append(line)
            if found := re.search(r"Admin: (http://\S+)/admin/  login: admin, password: (\S+)", line):
                yield found[1], found[2]
                break
        else:
            raise RuntimeError("`make run` did not start:\n" + "".join(said))
    finally:
        run.terminate()
        run.communicate(timeout=90)


def join(var: Path) -> None:
    """This process is one of the shop's, as manage.py would be."""
    os.environ["VAR_DIR"] = str(var)
    os.environ["REDIS_URL"] = (var / "run" / "redis_url").read_text().strip()
    os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
    import django

    django.setup()


class Studio:
    """One browser, one site, and what is done for each picture."""

    def __init__(self, browser: Chrome, site: str, password: str, out: Path) -> None:
        self.browser, self.site, self.password, self.out = browser, site, password, out
        self.rng = random.Random(7)

    def take_all(self) -> None:
        from . import screenshot_data

        self.dark(False)
        screenshot_data.remember(self.rng)
        screenshot_data.promise(self.rng)
        dead = screenshot_data.kill_one()
        self.visit_shop()
        self.log_in()
        self.sidebar(False)
        self.board()
        self.job(dead.pk)
        self.topics()
        screenshot_data.put_in_every_state()
        self.jobs()
        self.phone(dead.pk)
        self.chinese()
        self.bulk()

    # The pictures

    def visit_shop(self) -> None:
        """Three orders: one to be paid in time, one with half an hour left, one whose money comes back."""
        from delaytasks import reschedule
        from project.shop.models import Order

        self.look(TALL, "/?keep=900")
        for place, buttons in ((0, ("pay", "back")), (2, ("pay",)), (1, ())):
            self.order(place, buttons)
        placed = Order.objects.filter(customer__name__startswith="Guest").latest("pk")
        self.look(TALL, "/?keep=120")
        self.order(3, ())
        reschedule("order.close", placed.key, delay=12 * 60 + 34)
        until(self.browser, lambda b: "12:3" in find(b, f"#order-{placed.pk} .clock").text, "the countdown")
        until(self.browser, lambda b: find_all(b, "#others .order"), "what others do")
        self.browser.execute_script("document.activeElement.blur(); scrollTo(0, 0)")
        self.take("shop")

    def order(self, place: int, then: tuple[str, ...]) -> None:
        """One of a product; then the buttons of its card, one after the other."""
        before = len(find_all(self.browser, "#mine .order"))
        find_all(self.browser, ".tile button")[place].click()
        until(self.browser, lambda b: len(find_all(b, "#mine .order")) > before, "the order")
        for button in then:
            find(self.browser, f"#mine .order button[id^={button}]").click()
            gone = f"#mine .order:first-child button[id^={button}]"
            until(self.browser, lambda b, gone=gone: not find_all(b, gone), "it is done")

    def board(self) -> None:
        self.take_board("board")
        self.dark(True)
        self.take_board("board-dark")
        self.dark(False)

    def take_board(self, name: str) -> None:
        """Down to the end of the second row of charts, when all is counted."""
        self.look(1400, BOARD)
        self.settle_board()
        end = "return document.getElementById('dt-chart-late').getBoundingClientRect().bottom"
        image = self.shot()
        self.keep(name, image.crop((0, 0, WIDE, min(image.height, round(self.browser.execute_script(end)) + 12))))

    def settle_board(self) -> None:
        until(self.browser, lambda b: find(b, ".dt-board").get_attribute("data-state") == "fresh", "the numbers")
        until(self.browser, lambda b: find_all(b, "#dt-chart-minutes .dt-news li"), "the herd of the next hour")
        herd = re.compile(r"[^+]*\b4\d,\d{3}\b[^+]*")  # a + would mean: still being counted
        news = "#dt-chart-hours .dt-news"
        until(self.browser, lambda b: herd.fullmatch(find(b, news).text), "the herd of the day, counted")

    def job(self, pk: int) -> None:
        self.look(2400, f"{JOBS}{pk}/change/")
        self.settle_times()
        image, end = self.shot(), "return document.querySelector('{}').getBoundingClientRect().{}"
        top = self.browser.execute_script(end.format(".field-attempt", "top"))
        bottom = self.browser.execute_script(end.format(".dt-timeline", "bottom"))
        self.keep("job", image.crop((0, 0, WIDE, round(top) - 50)))
        self.keep("dead", image.crop((0, round(top) - 50, WIDE, round(bottom) + 12)))

    def topics(self) -> None:
        self.look(440, "/admin/delaytasks/topic/")
        self.take("topics")

    def jobs(self) -> None:
        self.look(TALL, JOBS)
        self.settle_times()
        self.take("jobs")

    def phone(self, pk: int) -> None:
        """Three pages as wide as a phone, beside each other."""
        shots = []
        for page in (JOBS, f"{JOBS}{pk}/change/", BOARD):
            emulate(self.browser, width=PHONE, height=TALL)
            self.browser.get(self.site + page)
            if page == BOARD:
                self.settle_board()
            else:
                self.settle_times()
            shots.append(self.shot())
        emulate(self.browser)
        gap = 24
        whole = Image.new("RGB", (PHONE * len(shots) + gap * (len(shots) - 1), TALL), "#d5dade")
        for n, shot in enumerate(shots):
            whole.paste(shot, (n * (PHONE + gap), 0))
        self.keep("phone", whole)

    def chinese(self) -> None:
        self.browser.add_cookie({"name": "django_language", "value": "zh-hans"})
        self.take_board("board-chinese")
        self.browser.delete_cookie("django_language")

    def bulk(self) -> None:
        """Forty thousand are postponed; the picture is taken when a part is done."""
        self.look(560, JOBS + "all/?topic=review.ask&state=delayed")
        find(self.browser, "input[name=what][value=postpone]").click()
        find(self.browser, "input[name=amount]").send_keys("2")
        find(self.browser, "input[name=reason]").send_keys("The mail provider is closed until eleven")
        find(self.browser, ".dt-submit input").click()
        share = "const bar = document.getElementById('dt-bar'); return bar && bar.value / bar.max"
        until(self.browser, lambda b: (b.execute_script(share) or 0) > 0.12, "a part of it is done")
        self.take("bulk")

    # How they are taken

    def log_in(self) -> None:
        self.look(TALL, "/admin/login/?next=/admin/")
        find(self.browser, "#id_username").send_keys("admin")
        find(self.browser, "#id_password").send_keys(self.password)
        find(self.browser, "input[type=submit]").click()
        until(self.browser, lambda b: b.find_element(By.ID, "user-tools"), "to be logged in")

    def look(self, height: int, page: str) -> None:
        """At a page, in a window of this height."""
        metrics: dict[str, Any] = {"width": WIDE, "height": height or TALL, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.execute_cdp_cmd("Emulation.setScrollbarsHidden", {"hidden": True})
        self.browser.get(self.site + page)

    def sidebar(self, is_open: bool) -> None:
        word = "true" if is_open else "false"
        self.browser.execute_script(f"localStorage.setItem('django.admin.navSidebarIsOpen', '{word}')")

    def dark(self, is_dark: bool) -> None:
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        calm = {"name": "prefers-reduced-motion", "value": "reduce"}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme, calm]})

    def settle_times(self) -> None:
        until(self.browser, lambda b: "this browser" in find(b, ".dt-zone").text, "times in the browser's zone")

    def shot(self) -> Image.Image:
        return Image.open(BytesIO(self.browser.get_screenshot_as_png())).convert("RGB")

    def take(self, name: str) -> None:
        self.keep(name, self.shot())

    def keep(self, name: str, image: Image.Image) -> None:
        path = self.out / f"{name}.png"
        image.save(path, optimize=True)
        if path.stat().st_size > MOST_BYTES:  # text and flat areas lose little
            image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(path, optimize=True)
        shown = path.relative_to(BASE) if path.is_relative_to(BASE) else path
        print(f"{shown}  {path.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    sys.exit(main())
